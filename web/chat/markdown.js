// An answer's Markdown as it comes, a piece at a time. Knows lines, and how long a page may be kept busy; which block a line
// belongs to is markdown_blocks.js. Knows nothing of turns nor of sockets.
//
// What has been settled is never touched again, and the page in the end does not depend on the pieces the text came in. All
// work is linear in the text. Nothing but the elements of markdown_nodes.js can come of it.

import { Blocks } from "./markdown_blocks.js";
import { element } from "./markdown_nodes.js";

export { markdownStyle } from "./markdown_style.js";

const BUSY_MS = 8;
const READ_AT_ONCE = 4000; // characters, between two looks at the clock

export class Markdown {
  element = element("div", { class: "markdown" });
  text = "";
  #tools;
  #names = new WeakMap(); // of what may scroll
  #observer = new ResizeObserver((entries) => entries.forEach(({ target }) => this.#resized(target)));
  #blocks;
  #rest; // what is not read yet, from #at on
  #at;
  #newline; // where the next is, if that is behind #at
  #searched; // up to here there is no other
  #inLine; // its beginning is read
  #ended;
  #isDrawn;

  /** `copy(text, element, button)` is what the copy button of a code block does; `element` holds the text. */
  constructor({ copy }) {
    this.#tools = { copy, watch: (region, content, name) => this.#watch(region, content, name) };
    this.clear();
  }

  /** More text. Shown by `draw`. */
  append(text) {
    this.text += text;
    this.#rest += text.replaceAll("\r", "");
    this.#isDrawn = false;
  }

  /** No more text comes: closes what is open. Shown by `draw`. */
  end() {
    this.#ended = true;
    this.#isDrawn = false;
  }

  clear() {
    this.#observer.disconnect();
    this.element.replaceChildren();
    this.text = "";
    this.#blocks = new Blocks(this.element, this.#tools);
    this.#rest = "";
    this.#at = 0;
    this.#newline = -1;
    this.#searched = 0;
    this.#inLine = false;
    this.#ended = false;
    this.#isDrawn = true;
  }

  /** Brings the page up to date, for some milliseconds at most. True if it is; else call again in the next frame. */
  draw() {
    if (this.#isDrawn) return true;
    const until = performance.now() + BUSY_MS;
    let more = true;
    while (more && performance.now() < until) more = this.#read();
    this.#forget();
    this.#isDrawn = !more;
    if (this.#ended && !more) this.#blocks.end();
    else this.#blocks.draw();
    return !more;
  }

  /** Reads the beginning of a line, or some of the rest of it; false if there is nothing to read. */
  #read() {
    const newline = this.#nextNewline();
    const end = newline < 0 ? this.#rest.length : newline;
    const whole = newline >= 0 || this.#ended;
    if (this.#inLine) return this.#readOn(end, whole);
    if (newline < 0 && this.#at === end) return false;
    const read = this.#blocks.begin(this.#rest.slice(this.#at, end), whole);
    if (read === null) return false;
    this.#at += read;
    this.#inLine = true;
    return true;
  }

  #readOn(end, whole) {
    let upTo = Math.min(end, this.#at + READ_AT_ONCE);
    // Half a character waits for the other half.
    if (isHighHalf(this.#rest, upTo - 1)) upTo += upTo < end ? 1 : whole ? 0 : -1;
    const some = upTo > this.#at;
    if (some) this.#blocks.add(this.#rest.slice(this.#at, upTo));
    this.#at = upTo;
    if (upTo < end || !whole) return some;
    this.#inLine = false;
    if (end < this.#rest.length) this.#at += 1;
    return true;
  }

  #nextNewline() {
    if (this.#newline < this.#at) {
      this.#newline = this.#rest.indexOf("\n", Math.max(this.#at, this.#searched));
      this.#searched = this.#newline < 0 ? this.#rest.length : this.#newline;
    }
    return this.#newline;
  }

  #forget() {
    this.#rest = this.#rest.slice(this.#at);
    this.#searched = Math.max(0, this.#searched - this.#at);
    this.#newline = Math.max(-1, this.#newline - this.#at);
    this.#at = 0;
  }

  // --- what is wider than the page ---

  #watch(region, content, name) {
    this.#names.set(region, name);
    this.#observer.observe(region);
    this.#observer.observe(content);
  }

  /** What scrolls can be reached by keyboard, and has a name. */
  #resized(target) {
    const region = this.#names.has(target) ? target : target.parentElement;
    if (region === null) return;
    const name = this.#names.get(region);
    if (region.scrollWidth <= region.clientWidth) {
      for (const attribute of ["tabindex", "role", "aria-label"]) region.removeAttribute(attribute);
    } else if (!region.hasAttribute("tabindex")) {
      region.tabIndex = 0;
      region.setAttribute("role", "group");
      region.setAttribute("aria-label", name);
    }
  }
}

function isHighHalf(text, at) {
  const code = text.charCodeAt(at);
  return code >= 0xd800 && code < 0xdc00;
}
