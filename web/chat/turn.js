// Draws one turn into the page, and again whenever it has changed. Knows nothing of the socket.
//
// What a model writes is text and only ever becomes a text node: nothing in it can become markup.

import { copy } from "./clipboard.js";
import { wasTooLong } from "./conversation.js";
import { ending, facts, progress, untilThen } from "./words.js";

const PLACES_DRAWN = 8;
const COPIED_SHOWN_MS = 2000;

export class TurnView {
  #turn;
  #actions;
  #parts;
  #answer = document.createTextNode("");
  #countdown = null;
  #copiedTimer = null;
  #offersAnything = true;

  /** `actions`: what the buttons under an ended turn do: {again(turn), goOn(turn), edit(turn), editAnew(turn)}, and
   *  say(sentence) for what they have done themselves. `number` is null for a turn that asks the question above it again. */
  constructor(turn, number, actions) {
    this.#turn = turn;
    this.#actions = actions;
    this.element = document.getElementById("turn").content.firstElementChild.cloneNode(true);
    const part = (name) => this.element.querySelector(`.${name}`);
    this.#parts = {
      aside: part("aside"),
      progress: part("progress"),
      progressText: part("progress-text"),
      line: part("line"),
      answer: part("answer"),
      end: part("end"),
      endText: part("end-text"),
      endActions: part("end-actions"),
      foot: part("foot"),
      facts: part("facts"),
      copy: part("copy"),
      copyText: part("copy-text"),
    };
    this.#parts.copy.addEventListener("click", () => this.#copy());
    if (number === null) this.element.classList.add("again");
    else part("turn-number").textContent = String(number);
    part("question-text").textContent = turn.question;
    this.#parts.answer.append(this.#answer);
    this.draw();
  }

  draw() {
    const turn = this.#turn;
    const { answer, progress: running, progressText, end } = this.#parts;
    this.element.dataset.phase = turn.phase;
    this.element.dataset.ending = turn.ending?.reason ?? "";
    this.element.setAttribute("aria-busy", String(turn.ending === null));

    // Only what is new: a selection the reader has made in the text stays.
    this.#answer.appendData(turn.text.slice(this.#answer.length));
    answer.hidden = turn.text === "";
    running.hidden = turn.ending !== null || (turn.phase === "decoding" && !turn.stopping);
    if (!running.hidden) {
      progressText.textContent = progress(turn);
      this.#drawLine();
    }
    if (turn.ending !== null && end.hidden) this.#drawEnd();
  }

  /** A sentence between question and answer, about how the answer came to be. */
  remark(sentence) {
    this.#parts.aside.textContent = sentence;
    this.#parts.aside.hidden = false;
    this.#answer.data = "";
  }

  /** The conversation has gone on: nothing more can be done about this turn, except to copy it. */
  settle() {
    clearInterval(this.#countdown);
    this.#offersAnything = false;
    this.#parts.endActions.replaceChildren();
  }

  /** The line one stands in, last place ours. */
  #drawLine() {
    const position = this.#turn.phase === "queued" && !this.#turn.stopping ? (this.#turn.place?.position ?? 0) : 0;
    const drawn = Math.min(position, PLACES_DRAWN);
    const { line } = this.#parts;
    while (line.childElementCount > drawn) line.firstElementChild.remove();
    while (line.childElementCount < drawn) line.prepend(document.createElement("i"));
  }

  #drawEnd() {
    const turn = this.#turn;
    const sentence = ending(turn);
    const numbers = facts(turn);
    this.#parts.endText.textContent = sentence ?? "";
    this.#parts.end.hidden = sentence === null;
    this.#parts.facts.textContent = numbers ?? "";
    this.#parts.facts.hidden = numbers === null;
    this.#parts.copy.hidden = turn.text === "";
    this.#parts.foot.hidden = numbers === null && turn.text === "";
    if (!this.#offersAnything) return;
    switch (turn.ending.reason) {
      case "length":
      case "deadline":
      case "cancelled":
        if (turn.text !== "") this.#offer("Continue", () => this.#actions.goOn(turn));
        break;
      case "failed":
      case "lost":
      case "refused":
        this.#offerAnother(turn);
        break;
    }
  }

  /** What may help after a failure. The same once more only where that can come to another end. */
  #offerAnother(turn) {
    const { reason, mayPass, retryAfterMs } = turn.ending;
    if (mayPass) this.#offerLater("Try again", retryAfterMs, () => this.#actions.again(turn));
    if (reason === "refused" || !mayPass) this.#offer("Edit message", () => this.#actions.edit(turn));
    if (wasTooLong(turn.ending) && turn.follows) this.#offer("New conversation", () => this.#actions.editAnew(turn));
  }

  async #copy() {
    const { answer, copyText } = this.#parts;
    const copied = await copy(this.#turn.text, answer);
    copyText.textContent = copied ? "Copied" : "Selected";
    this.#actions.say(copied ? "Copied." : "The answer could not be copied, but it is selected.");
    clearTimeout(this.#copiedTimer);
    this.#copiedTimer = setTimeout(() => (copyText.textContent = "Copy"), COPIED_SHOWN_MS);
  }

  #offer(label, act) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "action";
    button.textContent = label;
    button.addEventListener("click", act);
    this.#parts.endActions.append(button);
    return button;
  }

  /** Counts down to the moment the server named; until then the button says how long. It stays focusable meanwhile. */
  #offerLater(label, waitMs, act) {
    const button = this.#offer(label, () => button.getAttribute("aria-disabled") !== "true" && act());
    if (!waitMs) return;
    const moment = Date.now() + waitMs;
    const show = () => {
      const left = moment - Date.now();
      button.setAttribute("aria-disabled", String(left > 0));
      button.textContent = left > 0 ? `${label} in ${untilThen(left)}` : label;
      if (left <= 0) clearInterval(this.#countdown);
    };
    this.#countdown = setInterval(show, 250);
    show();
  }
}
