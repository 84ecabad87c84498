// Reads an answer to a screen reader while it is written: whole sentences, not tokens. Knows the two places that are read
// aloud; knows nothing of turns.

import { make } from "./dom.js";

const BREATH_MS = 1000;
const NODES = 12;
const LONGEST = 1500;
const PIECES = /.{1,1500}/gs;
// A sentence ends at such a sign and a space, or at the end of a line.
const END = /[.!?…]["'”’)\]]*\s|[。！？]|\n/g;

export class Speech {
  #status;
  #log;
  #rest = ""; // of the answer, not read out yet
  #said = "";
  #code = false; // within a fence
  #lineBegins = true; // what comes next
  #timer = null;

  /** `status`: for what goes on, where only the newest matters. `log`: for what is read in order. */
  constructor(status, log) {
    this.#status = status;
    this.#log = log;
  }

  /** `anew`: even if it is what was said last. Only a change is read aloud, hence the space nobody hears. */
  say(sentence, { anew = false } = {}) {
    if (sentence === this.#said && !anew) return;
    this.#said = sentence;
    this.#status.textContent = this.#status.textContent === sentence ? `${sentence}\u00a0` : sentence;
  }

  /** More of an answer. Whole sentences of it are read, a breath's worth at a time. */
  add(text) {
    this.#rest += text;
    this.#timer ??= setTimeout(() => this.#breathe(), BREATH_MS);
  }

  /** The answer is over: what is left of it is read, and then `sentence`. */
  end(sentence) {
    this.#append(this.#rest);
    this.#rewind();
    this.say(sentence, { anew: true });
  }

  /** Another conversation: what was left to read is not read. */
  reset() {
    this.#rewind();
    this.#log.replaceChildren();
  }

  #rewind() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#rest = "";
    this.#code = false;
    this.#lineBegins = true;
  }

  #breathe() {
    this.#timer = null;
    const end = lastEnd(this.#rest) || (this.#rest.length > LONGEST ? this.#rest.length : 0);
    if (end === 0) return;
    this.#append(this.#rest.slice(0, end));
    this.#rest = this.#rest.slice(end);
  }

  /** Without its marks, unless it is code: there they are meant. */
  #line(line, begins) {
    if (begins && /^\s*(```|~~~)/.test(line)) {
      this.#code = !this.#code;
      return this.#code ? "Code:" : "";
    }
    return this.#code ? line : line.replace(/[*`>|~#]+|(?<!\w)_+|_+(?!\w)/g, "");
  }

  #append(written) {
    const spoken = written.split("\n").map((line, index) => this.#line(line, index > 0 || this.#lineBegins)).join(" ").replace(/\s+/g, " ").trim();
    this.#lineBegins = written.endsWith("\n");
    if (spoken === "") return;
    // One without end would take a browser seconds to lay out.
    for (const some of spoken.match(PIECES)) this.#log.append(make("p", {}, some));
    while (this.#log.childElementCount > NODES) this.#log.firstElementChild.remove();
  }
}

function lastEnd(text) {
  let end = 0;
  for (const found of text.matchAll(END)) end = found.index + found[0].length;
  return end;
}
