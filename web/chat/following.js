// Keeps the end of the text in sight until the reader scrolls up. Knows a box that scrolls and a button back down.

const NEAR_THE_END_PX = 40;

export class Following {
  #box;
  #button;
  #begun;
  #following = true;
  #lastTop = 0;
  #wanted = false;

  /** `begun()`: whether there is anything to follow; if not, the beginning is in sight. `pressed()`: the reader has gone
   *  back to the end by the button. */
  constructor(box, button, begun, pressed) {
    this.#box = box;
    this.#begun = begun;
    this.#button = button;
    box.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    button.addEventListener("click", () => {
      this.follow();
      pressed();
    });
    new ResizeObserver(() => this.grown()).observe(box);
  }

  /** From now on the end is in sight again. */
  follow() {
    this.#following = true;
    this.grown();
  }

  /** There may be more than there was. */
  grown() {
    if (this.#wanted) return;
    this.#wanted = true;
    requestAnimationFrame(() => {
      this.#wanted = false;
      if (!this.#begun()) this.#box.scrollTop = 0;
      else if (this.#following) this.#box.scrollTop = this.#box.scrollHeight;
      this.#show();
    });
  }

  #scrolled() {
    const top = this.#box.scrollTop;
    if (this.#distance() < NEAR_THE_END_PX) this.#following = true;
    else if (top < this.#lastTop) this.#following = false;
    this.#lastTop = top;
    this.#show();
  }

  #show() {
    this.#button.hidden = this.#following || !this.#begun() || this.#distance() < NEAR_THE_END_PX;
  }

  #distance() {
    return this.#box.scrollHeight - this.#box.clientHeight - this.#box.scrollTop;
  }
}
