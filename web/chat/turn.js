// Draws one turn, and again whenever it has changed. Knows nothing of the socket.
//
// What a model writes becomes nodes by markdown.js, which can make nothing else; what a reader asks is a text node.

import { copyAndSay } from "./clipboard.js";
import { wasTooLong } from "./conversation.js";
import { ICONS, icon, make, ring } from "./dom.js";
import { Markdown } from "./markdown.js";
import { ending, facts, progress, untilThen } from "./words.js";

const PLACES_DRAWN = 8;

const LONG_CHARACTERS = 1200;

/** A long question has a box of its own to scroll in, or what comes of it would be screens away. */
function longOr(question) {
  return question.length > LONG_CHARACTERS ? { class: "question-text long", tabindex: "0" } : { class: "question-text" };
}

export class TurnView {
  #turn;
  #actions;
  #parts;
  #markdown;
  #drawn = 0; // characters of the answer that the Markdown has been given
  #over = false;
  #countdown = null;
  #offersAnything = true;

  /** `actions`: what the buttons of a turn do: {again(turn), goOn(turn), takeBack(turn), takeAlong(turn), edit(turn)}, and
   *  say(sentence) for what they have done themselves. `number` is null for a turn that asks the question above it again. */
  constructor(turn, number, actions) {
    this.#turn = turn;
    this.#actions = actions;
    this.#markdown = new Markdown({ copy: (code, element, label) => copyAndSay(code, element, label, "code", actions.say) });
    this.element = this.#build(number);
    if (turn.goesOn) this.remark("Continued");
    this.draw();
  }

  /** True when all there is of the turn is drawn; else it wants to be called again in the next frame. */
  draw() {
    const turn = this.#turn;
    const { answer, progress: running, end } = this.#parts;
    this.element.dataset.phase = turn.phase;
    this.element.dataset.ending = turn.ending?.reason ?? "";
    this.element.setAttribute("aria-busy", String(turn.ending === null));
    answer.hidden = turn.text === "";
    running.hidden = turn.ending !== null || (turn.phase === "decoding" && !turn.stopping);
    if (!running.hidden) this.#drawProgress();
    const done = this.#drawAnswer();
    if (turn.ending !== null && end.hidden) this.#drawEnd();
    return done;
  }

  /** A sentence between question and answer, about how the answer came to be. */
  remark(sentence) {
    this.#parts.aside.textContent = sentence;
    this.#parts.aside.hidden = false;
  }

  /** The conversation has gone on: nothing more can be done about this turn, except to copy it, and to ask otherwise. */
  settle() {
    clearInterval(this.#countdown);
    this.#offersAnything = false;
    this.#parts.endActions.replaceChildren();
  }

  #build(number) {
    const parts = {};
    const part = (name, ...node) => (parts[name] = make(...node));
    const element = make("li", { class: number === null ? "turn again" : "turn" },
      make("span", { class: "turn-number", "aria-hidden": "true" }, number === null ? "" : String(number)),
      make("div", { class: "turn-body" },
        make("div", { class: "asked" },
          make("h2", { class: "question" }, make("span", { class: "unseen" }, "You asked: "), make("bdi", longOr(this.#turn.question), this.#turn.question)),
          part("edit", "button", { class: "edit", "aria-label": "Edit this question" }, icon(...ICONS.pencil)),
        ),
        part("aside", "p", { class: "aside", hidden: true }),
        part("progress", "div", { class: "progress" },
          ring(),
          part("progressText", "span", { class: "progress-text" }),
          part("line", "span", { class: "line", "aria-hidden": "true" }),
          part("meter", "progress", { class: "meter", "aria-label": "Of your question read", hidden: true }),
        ),
        part("answer", "div", { class: "answer", hidden: true }, this.#markdown.element),
        part("end", "div", { class: "end", hidden: true },
          part("endText", "p", { class: "end-text" }),
          part("endActions", "div", { class: "end-actions" }),
        ),
        part("foot", "div", { class: "foot", hidden: true },
          part("facts", "p", { class: "facts", hidden: true }),
          part("copy", "button", { class: "copy", hidden: true },
            icon(...ICONS.copy), part("copyText", "span", { class: "copy-text" }, "Copy"), make("span", { class: "unseen" }, " answer")),
        ),
      ),
    );
    parts.edit.addEventListener("click", () => this.#actions.edit(this.#turn));
    parts.copy.addEventListener("click", () => copyAndSay(this.#turn.text, parts.answer, parts.copyText, "answer", this.#actions.say));
    this.#parts = parts;
    return element;
  }

  #drawAnswer() {
    const { text, ending: ended } = this.#turn;
    if (text.length < this.#drawn) {
      // It begins anew: the server had forgotten what it was to follow.
      this.#markdown.clear();
      this.#drawn = 0;
    }
    if (text.length > this.#drawn) {
      this.#markdown.append(text.slice(this.#drawn));
      this.#drawn = text.length;
    }
    if (ended !== null && !this.#over) {
      this.#over = true;
      this.#markdown.end();
    }
    return this.#markdown.draw();
  }

  #drawProgress() {
    const { progressText, meter } = this.#parts;
    const { phase, read, stopping } = this.#turn;
    const sentence = progress(this.#turn);
    if (progressText.textContent !== sentence) progressText.textContent = sentence;
    this.#drawLine();
    const measured = phase === "prefilling" && !stopping && read !== null && read.tokens > 0 && read.tokens < read.of;
    meter.hidden = !measured;
    if (!measured) return;
    meter.max = read.of;
    meter.value = read.tokens;
  }

  /** The line one stands in, last place ours. */
  #drawLine() {
    const position = this.#turn.phase === "queued" && !this.#turn.stopping ? (this.#turn.place?.position ?? 0) : 0;
    const drawn = Math.min(position, PLACES_DRAWN);
    const { line } = this.#parts;
    while (line.childElementCount > drawn) line.firstElementChild.remove();
    while (line.childElementCount < drawn) line.prepend(make("i"));
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
    if (reason === "refused" || !mayPass) this.#offer("Edit message", () => this.#actions.takeBack(turn));
    if (wasTooLong(turn.ending) && turn.follows) this.#offer("New conversation", () => this.#actions.takeAlong(turn));
  }

  #offer(label, act) {
    const button = make("button", { class: "action" }, label);
    button.addEventListener("click", act);
    this.#parts.endActions.append(button);
    return button;
  }

  /** Counts down to the moment the server named; until then the button says how long. It stays focusable meanwhile. */
  #offerLater(label, waitMs, act) {
    const button = this.#offer(label, () => button.getAttribute("aria-disabled") !== "true" && act());
    if (!waitMs) return;
    const moment = performance.now() + waitMs;
    const show = () => {
      const left = moment - performance.now();
      button.setAttribute("aria-disabled", String(left > 0));
      button.textContent = left > 0 ? `${label} in ${untilThen(left)}` : label;
      if (left <= 0) clearInterval(this.#countdown);
    };
    this.#countdown = setInterval(show, 250);
    show();
  }
}
