// Reads an answer to a screen reader while it is written: whole sentences, not tokens. Knows the two places that are read
// aloud; knows nothing of turns.

const BREATH_MS = 1000;
const NODES = 12;
// A sentence ends at such a sign and a space, or at the end of a line.
const END = /[.!?…]["'”’)\]]*\s|[。！？]|\n/g;

export class Speech {
  #status;
  #log;
  #rest = ""; // of the answer, not read out yet
  #said = "";
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
    this.reset();
    this.say(sentence, { anew: true });
  }

  /** Another conversation: what was left to read is not read. */
  reset() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#rest = "";
  }

  #breathe() {
    this.#timer = null;
    const end = lastEnd(this.#rest);
    if (end === 0) return;
    this.#append(this.#rest.slice(0, end));
    this.#rest = this.#rest.slice(end);
  }

  #append(written) {
    const spoken = written.replace(/[*_`#>|~]+/g, "").replace(/\s+/g, " ").trim();
    if (spoken === "") return;
    const node = document.createElement("p");
    node.textContent = spoken;
    this.#log.append(node);
    while (this.#log.childElementCount > NODES) this.#log.firstElementChild.remove();
  }
}

function lastEnd(text) {
  let end = 0;
  for (const found of text.matchAll(END)) end = found.index + found[0].length;
  return end;
}
