// The turns of one conversation as a list in the page, drawn at most once a frame. Knows which turn looks like what
// (turn.js) and which have changed since they were drawn.

import { make } from "./dom.js";
import { TurnView } from "./turn.js";

export class TalkView {
  #talk;
  #actions;
  #views = new Map(); // turn -> TurnView
  #changed = new Set();

  constructor(talk, actions) {
    this.#talk = talk;
    this.#actions = actions;
    this.element = make("ol", { class: "turns", "aria-label": "Turns" });
    for (const turn of talk.turns) this.changed(turn);
    this.#settle();
  }

  /** Something about `turn` is new. One that is not there yet is added at the end. */
  changed(turn) {
    if (!this.#views.has(turn)) {
      this.#settle();
      const view = new TurnView(turn, turn.again || turn.goesOn ? null : this.#number(), this.#actions);
      this.#views.set(turn, view);
      this.element.append(view.element);
    }
    this.#changed.add(turn);
  }

  /** Takes away those that are no longer among the talk's turns. */
  prune() {
    for (const [turn, view] of this.#views) {
      if (this.#talk.turns.includes(turn)) continue;
      view.settle();
      view.element.remove();
      this.#views.delete(turn);
      this.#changed.delete(turn);
    }
  }

  /** Draws what has changed. True when nothing is left to draw. */
  draw() {
    for (const turn of this.#changed) {
      if (this.#views.get(turn).draw()) this.#changed.delete(turn);
    }
    return this.#changed.size === 0;
  }

  /** A sentence about how `turn` came to be answered. */
  remark(turn, sentence) {
    this.#views.get(turn).remark(sentence);
  }

  settle(turn) {
    this.#views.get(turn).settle();
  }

  /** The last turn keeps what it offers; what is above it is history. */
  #settle() {
    const last = this.#talk.turns.at(-1);
    for (const [turn, view] of this.#views) if (turn !== last) view.settle();
  }

  #number() {
    return this.element.querySelectorAll(".turn:not(.again)").length + 1;
  }
}
