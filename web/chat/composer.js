// The box one writes in: sends, keeps what cannot be sent yet, and holds a question that is being edited. Knows its own
// nodes and keys; what happens to a message is for `act` to say.

export class Composer {
  #parts;
  #act;
  #editing = null; // the turn whose question is in the box
  #before = ""; // what was in the box before that

  /** `act`: {submit(text, editing), stop(), typing(), running()}. `submit` returns false when it could not be sent: it stays. */
  constructor(parts, act) {
    this.#parts = parts;
    this.#act = act;
    parts.composer.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    parts.message.addEventListener("input", () => {
      this.fit();
      act.typing();
    });
    parts.message.addEventListener("keydown", (event) => this.#key(event));
    parts.stop.addEventListener("click", () => act.stop());
    parts.editingCancel.addEventListener("click", () => {
      this.leaveEditing();
      this.focus();
    });
  }

  submit() {
    const text = this.#parts.message.value.trim();
    if (text === "") return;
    const before = this.#before;
    if (!this.#act.submit(text, this.#editing)) return;
    this.leaveEditing();
    this.#write(before);
  }

  /** Puts a refused question back where it can be changed, in front of what has been written there meanwhile. */
  putInFront(question) {
    const { message } = this.#parts;
    this.#write([question, message.value].filter((text) => text.trim() !== "").join("\n\n"));
    message.focus();
  }

  /** Puts the question of `turn` there to be changed; what was being written comes back afterwards. */
  edit(turn) {
    const { message, editing } = this.#parts;
    if (this.#editing === null) this.#before = message.value;
    this.#editing = turn;
    this.#write(turn.question);
    editing.hidden = false;
    message.focus();
  }

  leaveEditing() {
    if (this.#editing === null) return false;
    this.#editing = null;
    this.#write(this.#before);
    this.#before = "";
    this.#parts.editing.hidden = true;
    return true;
  }

  /** Says, below the box, why what is in it has not been sent; null: nothing. */
  note(sentence) {
    this.#parts.kept.hidden = sentence === null;
    this.#parts.kept.textContent = sentence ?? "";
  }

  get noted() {
    return !this.#parts.kept.hidden;
  }

  show({ running, locked }) {
    const { composer, hint, hintYours, hintAnswering, stop, send } = this.#parts;
    composer.hidden = locked;
    hint.hidden = locked;
    hintYours.hidden = running;
    hintAnswering.hidden = !running;
    stop.hidden = !running;
    send.hidden = running;
    if (!running) this.note(null);
    this.fit();
  }

  /** On a touch screen focus would bring the keyboard up, over the answer. The page around stays where it is. */
  focus({ touch = false } = {}) {
    if (touch || hasKeyboard()) this.#parts.message.focus({ preventScroll: true });
  }

  /** As high as what is written in it, as far as the style lets it. */
  fit() {
    const { message, send } = this.#parts;
    message.style.height = "auto";
    message.style.height = `${message.scrollHeight}px`;
    send.disabled = message.value.trim() === "";
    if (send.disabled) this.note(null);
  }

  #write(text) {
    this.#parts.message.value = text;
    this.fit();
  }

  #key(event) {
    if (event.key === "ArrowUp" && this.#parts.message.value === "" && this.#act.editLast()) {
      event.preventDefault();
      return;
    }
    // While an input method composes a word, Enter belongs to it (229 is how Safari says so).
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
    event.preventDefault();
    this.submit();
  }
}

export function hasKeyboard() {
  return window.matchMedia("(hover: hover)").matches;
}
