// What stands inside a paragraph: emphasis, code, links. Takes text in pieces, gives parts: strings and plain objects.
//
// Knows nothing of blocks nor of the page. A part is settled once no text to come can change it; all that may still change
// lies within REACH characters and MOST_OPEN marks of the end, so the work is linear in the text, whatever it is.
//
// Where it leaves CommonMark: a line feed is a line break; what closes first wins; `*` beside punctuation may open and close
// (Chinese and Japanese need that); runs of more than three marks are text; a link is http or https or it is text.

const REACH = 2000;
const MOST_OPEN = 16;
const DEEPEST_MARKS = 6;
const LONGEST_ADDRESS = 2000;
const LONGEST_TARGET = 3000; // address, title and what stands around them

// A paragraph longer than this goes on in another, because a browser lays a paragraph out as a whole whenever it grows.
const CUT = 8000;
const CUT_LATEST = 500; // so much later even where there is no space, and twice that whatever is open

const SPECIAL = /\\|`+|\*+|_+|~+|!?\[|\]|<|\n|https?:\/\//gi;
const HELD_BACK = /(?:!|h\w{0,4}:?\/{0,2}|[\ud800-\udbff])$/i; // may be the start of something
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const SPACE = /\s/;
const WORD = /[\p{L}\p{N}]/u;
const LOW_HALF = /[\udc00-\udfff]/;
const BARE = /https?:\/\/[\w\-.~:/?#@!$&'()*+,;=%]{0,2000}/iy;
const BRACKETED = /<(https?:\/\/[\w\-.~:/?#@!$&'()*+,;=%[\]]*)>/iy;
const BRACKETED_SO_FAR = /<[^\s>]*$/y;
const TARGET = /\(((?:[^\s()<>]|\([^\s()<>]*\)){1,2000})(?:[ \n]{1,9}(?:"[^"]{0,500}"|'[^']{0,500}'))?[ \n]{0,9}\)/y;
const TARGET_SO_FAR = /\((?:[^\s()<>]|\([^\s()<>]*\))*(?:\([^\s()<>]*|[ \n]+(?:["'][^)]*)?)?$/y;
const UNSEEN = /[\p{C}\p{Z}"<>\\^`{|}]/u;

/** The address to link to, or null for anything that is not plainly http or https. A name before the host ("bank.com@")
 *  would only mislead. */
export function address(written) {
  if (written.length > LONGEST_ADDRESS || UNSEEN.test(written) || !/^https?:\/\/[^/?#]/i.test(written)) return null;
  try {
    const url = new URL(written);
    return /^https?:$/.test(url.protocol) && url.username === "" && url.password === "" ? url.href : null;
  } catch {
    return null;
  }
}

/** Parts: a string, {tag: "em" | "strong" | "del" | "code" | "a", parts, href?}, {tag: "br"}, and {tag: "cut"} where a
 *  paragraph may go on in another. */
export class Inline {
  #text = ""; // from one character before what is not read yet
  #at = 0;
  #offset = 0; // of #text in all there was
  #parts = [];
  #open = []; // marks among the parts that something later may close, {mark, count, at, index}
  #lastCut = 0;

  feed(text) {
    if (this.#at > 1) {
      this.#text = this.#text.slice(this.#at - 1);
      this.#offset += this.#at - 1;
      this.#at = 1;
    }
    this.#text += text;
    this.#read(false);
  }

  /** No more text comes: all that is left. */
  end() {
    this.#read(true);
    this.#open = [];
    return this.settled();
  }

  /** The parts that will never change, each given once. */
  settled() {
    const count = this.#open.length > 0 ? this.#open[0].index : this.#parts.length;
    for (const opener of this.#open) opener.index -= count;
    return this.#parts.splice(0, count).map(plain);
  }

  /** The parts behind them, as they look for now. */
  unsettled() {
    return [...this.#parts.map(plain), this.#text.slice(this.#at)];
  }

  #read(whole) {
    const text = this.#text;
    const end = whole ? text.length : text.length - (HELD_BACK.exec(text.slice(-8))?.[0].length ?? 0);
    while (this.#at < end) {
      SPECIAL.lastIndex = this.#at;
      const found = SPECIAL.exec(text);
      const next = Math.min(found?.index ?? end, end);
      this.#addText(next);
      if (next === end) return;
      this.#expire();
      if (!this.#special(found[0], whole)) return;
    }
  }

  /** Reads what stands at #at; false if that cannot be known yet. */
  #special(found, whole) {
    const behind = this.#at + found.length;
    const atEnd = behind === this.#text.length && !whole;
    switch (found[0]) {
      case "\n":
        this.#breakLine();
        return true;
      case "\\":
        return !atEnd && this.#escape();
      case "`":
        return !atEnd && this.#code(found.length, whole);
      case "*":
      case "_":
      case "~":
        if (atEnd) return false;
        this.#mark(found[0], found.length);
        return true;
      case "!":
      case "[":
        this.#push("[", found);
        this.#at = behind;
        return true;
      case "]":
        return !atEnd && this.#link(whole);
      case "<":
        return this.#bracketed(whole);
      default:
        return this.#bare(whole);
    }
  }

  #add(part) {
    const last = this.#parts.length - 1;
    if (typeof part === "string" && typeof this.#parts[last] === "string") this.#parts[last] += part;
    else this.#parts.push(part);
  }

  /** Everything up to `end` is plain. */
  #addText(end) {
    while (this.#at < end) {
      const cut = this.#nextCut(end);
      if (cut > this.#at) this.#add(this.#text.slice(this.#at, cut));
      this.#at = cut;
      if (cut < end) this.#cut();
    }
  }

  // Where to cut may depend on the text only, never on the pieces it came in.
  #nextCut(end) {
    const due = this.#lastCut + CUT - this.#offset;
    const closed = this.#open.length > 0 ? this.#open.at(-1).at + REACH + 1 - this.#offset : 0;
    for (let at = Math.max(this.#at, due, Math.min(closed, due + 2 * CUT_LATEST)); at < end; at++) {
      if ((SPACE.test(this.#text[at - 1]) || at >= due + CUT_LATEST) && !LOW_HALF.test(this.#text[at])) return at;
    }
    return end;
  }

  #cut() {
    this.#open = [];
    this.#parts.push({ tag: "cut" });
    this.#lastCut = this.#offset + this.#at;
  }

  #breakLine() {
    this.#at += 1;
    if (this.#open.length === 0 && this.#offset + this.#at - this.#lastCut > CUT / 2) this.#cut();
    else this.#parts.push({ tag: "br" });
  }

  #escape() {
    const next = this.#text[this.#at + 1] ?? "";
    if (PUNCTUATION.test(next)) {
      this.#add(next);
      this.#at += 2;
    } else {
      if (next !== "\n") this.#add("\\");
      this.#at += 1;
    }
    return true;
  }

  #code(length, whole) {
    const text = this.#text;
    const from = this.#at + length;
    const last = this.#at + REACH;
    let at = text.indexOf("`", from);
    while (at >= 0 && at < last) {
      let end = at + 1;
      while (text[end] === "`") end++;
      if (end === text.length && !whole) return false;
      if (end - at === length) {
        const inside = text.slice(from, at).replaceAll("\n", " ");
        const padded = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim() !== "";
        this.#add({ tag: "code", parts: [padded ? inside.slice(1, -1) : inside], depth: 1 });
        this.#at = end;
        return true;
      }
      at = text.indexOf("`", end);
    }
    if (!whole && text.length < last) return false;
    this.#add(text.slice(this.#at, from));
    this.#at = from;
    return true;
  }

  // --- emphasis ---

  #mark(mark, count) {
    const before = this.#text[this.#at - 1] ?? "\n";
    const after = this.#text[this.#at + count] ?? "\n";
    this.#at += count;
    let left = count;
    if (count <= 3 && (mark !== "~" || count === 2)) {
      const closes = !SPACE.test(before) && (mark !== "_" || !WORD.test(after));
      const opens = !SPACE.test(after) && (mark !== "_" || !WORD.test(before));
      while (closes && left > 0) {
        const used = this.#close(mark, left);
        if (used === 0) break;
        left -= used;
      }
      if (opens && left > 0) {
        this.#push(mark, mark.repeat(left));
        return;
      }
    }
    if (left > 0) this.#add(mark.repeat(left));
  }

  /** Ends what the nearest fitting mark began, and says how many marks that took. */
  #close(mark, count) {
    const fits = (opener) => opener.mark === mark && (opener.text.length === count || opener.text.length === 3 || count === 3);
    const place = this.#open.findLastIndex(fits);
    if (place < 0) return 0;
    const opener = this.#open[place];
    const used = Math.min(2, count, opener.text.length);
    const tag = mark === "~" ? "del" : used === 2 ? "strong" : "em";
    const rest = opener.text.slice(used);
    const inside = this.#wrap(tag, opener.index + 1);
    if (inside === null) return 0;
    this.#open.length = place;
    this.#parts.length = opener.index;
    if (rest !== "") this.#push(mark, rest, opener.at);
    this.#parts.push(inside);
    return used;
  }

  #push(mark, text, at = this.#offset + this.#at) {
    const opener = { mark, text, at, index: this.#parts.length };
    this.#parts.push(opener);
    this.#open.push(opener);
    if (this.#open.length > MOST_OPEN) this.#open.shift();
  }

  #expire() {
    while (this.#open.length > 0 && this.#offset + this.#at - this.#open[0].at > REACH) this.#open.shift();
  }

  /** All parts from `index` on as one, or null if that would be too deep. They stay where they are. */
  #wrap(tag, index, more) {
    const parts = this.#parts.slice(index).map(plain);
    const depth = 1 + Math.max(0, ...parts.map((part) => part.depth ?? 0));
    return depth > DEEPEST_MARKS ? null : { tag, parts, depth, ...more };
  }

  // --- links ---

  #link(whole) {
    const place = this.#open.findLastIndex((opener) => opener.mark === "[");
    const target = this.#at + 1;
    if (place >= 0 && this.#text[target] === "(") {
      TARGET.lastIndex = target;
      const found = TARGET.exec(this.#text);
      if (found === null && !whole && this.#text.length - target < LONGEST_TARGET) {
        TARGET_SO_FAR.lastIndex = target;
        if (TARGET_SO_FAR.test(this.#text)) return false;
      }
      const href = found && address(found[1]);
      const { index } = this.#open[place];
      const link = href && this.#wrap("a", index + 1, { href });
      if (link) {
        link.parts = link.parts.length > 0 ? withoutLinks(link.parts) : [href];
        const said = link.parts.length === 1 && address(String(link.parts[0]));
        // What looks like the address of one place and goes to another tells where.
        if (said && new URL(said).host !== new URL(href).host) link.parts.push(` (${new URL(href).host})`);
        this.#parts.length = index;
        this.#parts.push(link);
        // No link stands in a link, so brackets before this one open none.
        this.#open = this.#open.slice(0, place).filter((opener) => opener.mark !== "[");
        this.#at = target + found[0].length;
        return true;
      }
    }
    if (place >= 0) this.#open.splice(place, 1);
    this.#add("]");
    this.#at += 1;
    return true;
  }

  #bracketed(whole) {
    const at = this.#at;
    BRACKETED.lastIndex = at;
    const found = BRACKETED.exec(this.#text);
    if (found === null && !whole && this.#text.length - at < LONGEST_TARGET) {
      BRACKETED_SO_FAR.lastIndex = at;
      if (BRACKETED_SO_FAR.test(this.#text)) return false;
    }
    const href = found && address(found[1]);
    this.#add(href ? { tag: "a", href, parts: [found[1]], depth: 1, bare: true } : "<");
    this.#at += href ? found[0].length : 1;
    return true;
  }

  #bare(whole) {
    const text = this.#text;
    const from = this.#at;
    BARE.lastIndex = from;
    const found = BARE.exec(text)[0];
    const run = found.slice(0, LONGEST_ADDRESS);
    if (!whole && found === run && from + run.length === text.length) return false;
    const written = withoutPunctuation(run);
    const href = found === run && !WORD.test(text[from - 1] ?? " ") ? address(written) : null;
    this.#add(href ? { tag: "a", href, parts: [written], depth: 1, bare: true } : run);
    this.#at += href ? written.length : run.length;
    return true;
  }
}

function plain(part) {
  return part.mark === undefined ? part : part.text;
}

/** `[https://a.example](https://a.example)`: what stands in brackets looks like a link by itself. */
function withoutLinks(parts) {
  return parts.flatMap((part) => {
    if (part.bare) return part.parts;
    return part.parts ? [{ ...part, parts: withoutLinks(part.parts) }] : [part];
  });
}

/** A sentence may end behind an address, and brackets may stand around it. */
function withoutPunctuation(run) {
  let end = run.length;
  let surplus = run.split(")").length - run.split("(").length;
  for (; end > 0; end--) {
    const last = run[end - 1];
    if (last === ")" && surplus > 0) surplus -= 1;
    else if (!/[?!.,:;*_~']/.test(last)) break;
  }
  return run.slice(0, end);
}
