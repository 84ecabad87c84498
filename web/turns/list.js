// The same numbers beside the picture, as real lists: each request's life, and the waiting room.
//
// Makes nodes and changes only texts that have changed, so that a reader's place in them is kept.

import { nameOf, titleOf, waiting } from "./history.js";
import { gapOf, isOver, isSetAside, ttftOf } from "./lives.js";
import { figureWords, placeWords } from "./readout.js";
import { count, number, stateOf } from "./words.js";

const MOST_LIVES = 64;
const MOST_WAITING = 20;

/** `actions`: {choose(key), cancel(key)}; `own(key)`: whether this page may cancel it. */
export class Lists {
  #page;
  #actions;
  #items = new Map(); // key -> {element, parts}

  constructor(page, actions) {
    this.#page = page;
    this.#actions = actions;
  }

  /** Newest first. `chosen`: the key that is pinned, or null. */
  show(history, lives, { now, chosen, own }) {
    const shown = [...lives].sort((one, other) => other.received_at - one.received_at).slice(0, MOST_LIVES);
    this.#page["lives-empty"].hidden = shown.length > 0;
    this.#page["lives-more"].hidden = lives.length <= MOST_LIVES;
    setText(this.#page["lives-more"], `${count(lives.length - shown.length, "older request")} not listed.`);
    const keys = new Set(shown.map(({ key }) => key));
    for (const [key, { element }] of this.#items) {
      if (keys.has(key)) continue;
      if (element.contains(document.activeElement)) this.#page["lives-title"].focus();
      element.remove();
      this.#items.delete(key);
    }
    shown.forEach((life, place) => {
      const item = this.#items.get(life.key) ?? this.#make(life.key);
      this.#fill(item, history, life, { now, chosen, own });
      const there = this.#page.lives.children[place];
      if (there !== item.element) this.#page.lives.insertBefore(item.element, there ?? null);
    });
    this.#showWaiting(history);
  }

  #make(key) {
    const element = this.#page["life-template"].content.firstElementChild.cloneNode(true);
    const part = (name) => element.querySelector(`.${name}`);
    const parts = {
      name: part("life-name"), swatch: part("swatch"), state: part("life-state"), input: part("life-input"), output: part("life-output"),
      ttft: part("life-ttft"), gap: part("life-gap"), cancel: part("cancel"),
    };
    element.querySelector(".life-choose").addEventListener("click", () => this.#actions.choose(key));
    parts.cancel.addEventListener("click", () => this.#actions.cancel(key));
    const item = { element, parts, choose: part("life-choose") };
    this.#items.set(key, item);
    return item;
  }

  #fill({ element, parts, choose }, history, life, { now, chosen, own }) {
    setText(parts.name, titleOf(history, life.key));
    parts.swatch.style.background = `var(--hue-${(history.hues.get(life.key) ?? 0) + 1})`;
    setText(parts.state, stateOf(life, isSetAside(life, history.steps.at(-1))));
    setText(parts.input, life.input_tokens === null ? "not known" : count(life.input_tokens, "token"));
    const most = life.max_output_tokens === null ? "" : ` of ${number(life.max_output_tokens)}`;
    setText(parts.output, `${number(life.output_tokens)}${most}`);
    for (const [where, figure] of [[parts.ttft, ttftOf(life, now)], [parts.gap, gapOf(life)]]) {
      setText(where, life.first_seen_running && where === parts.ttft ? "before it was watched" : figureWords(figure));
      where.dataset.verdict = figure.verdict;
    }
    element.classList.toggle("over", isOver(life));
    choose.setAttribute("aria-pressed", String(chosen === life.key));
    if (!own(life.key) && document.activeElement === parts.cancel) choose.focus({ preventScroll: true });
    parts.cancel.hidden = !own(life.key);
    parts.cancel.setAttribute("aria-label", `Cancel ${titleOf(history, life.key)}`);
  }

  #showWaiting(history) {
    const list = waiting(history);
    this.#page["waiting-empty"].hidden = list.length > 0;
    this.#page["waiting-more"].hidden = list.length <= MOST_WAITING;
    setText(this.#page["waiting-more"], `and ${number(list.length - MOST_WAITING)} more behind them.`);
    const lines = list.slice(0, MOST_WAITING).map((life) => {
      const tokens = life.input_tokens === null ? "" : `, ${count(life.input_tokens, "token")} to read`;
      return [nameOf(history, life.key), `${placeWords(life)}${tokens}`, `var(--hue-${(history.hues.get(life.key) ?? 0) + 1})`];
    });
    const { children } = this.#page.waiting;
    while (children.length > lines.length) children[children.length - 1].remove();
    const { firstElementChild } = this.#page["waiting-template"].content;
    while (children.length < lines.length) this.#page.waiting.append(firstElementChild.cloneNode(true));
    lines.forEach(([name, text, colour], place) => {
      setText(children[place].querySelector(".waiting-name"), name);
      setText(children[place].querySelector(".waiting-text"), text);
      children[place].querySelector(".swatch").style.background = colour;
    });
  }
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
