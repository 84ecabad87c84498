// Which block a line belongs to: paragraphs, headings, lists, quotes, fences, tables. Knows what a line begins with; what
// stands in a paragraph is markdown_inline.js, how a block looks markdown_leaves.js.
//
// A line is read as soon as its beginning leaves no doubt; until then nothing of it is shown, which lasts a few characters.
// Only a fence and a row of a table are sketched while they are in doubt.
//
// Where it leaves CommonMark: no indented code, no underlined heading (`---` is a rule), no references, no HTML; two columns
// more than the mark are enough to stand in a list item; a fence in a list asks for no indentation; a line that begins with
// `|` ends a paragraph, and only such lines are rows of a table whose head begins with one.

import { Code, Heading, LONGEST_ROW, Paragraph, Table, isUnderline } from "./markdown_leaves.js";
import { element } from "./markdown_nodes.js";

// A browser looks at all children of a block that has grown, so they are kept in parts of a bounded number.
const BLOCKS_TOGETHER = 40;
const ITEMS_TOGETHER = 100;

const DEEPEST = 8; // lists and quotes in one another; what would be deeper is text in the deepest
const LONGEST_RULE = 200;
const LONGEST_FENCE = 200;

const RULE = /^([-*_])[ \t]*(?:\1[ \t]*){2,}$/;
const RULE_SO_FAR = /^([-*_])[ \t]*(?:\1[ \t]*)*$/;
const LIST_MARK = /^(?:[-*+]|(\d{1,9})([.)]))(?=[ \t]|$)/;
const HEADING = /^(#{1,6})(?:[ \t]+|$)/;
const FENCE = /^(`{3,}|~{3,})(.*)$/;
const UNDERLINE_SO_FAR = /^[|:\- \t]*$/;
const IN_DOUBT = /^(?:[-*+]|\d{1,9}[.)]?|#{1,6}|`{1,2}|~{1,2})$/;

export class Blocks {
  #root;
  #part; // the last in the root
  #tools;
  #outline = 0; // the level of the last heading
  #containers = []; // open ones, outermost first: {mark, element} and of a list {list, number, need}
  #leaf = null;
  #sketch = null; // stands for a line in doubt

  /** `tools`: {copy, say, watch} of markdown.js. */
  constructor(root, tools) {
    this.#root = root;
    this.#tools = tools;
    this.#newPart();
  }

  /** Reads the beginning of a line, of which all has come if it is `whole`. Returns how much of it is read; the rest goes to
   *  `add`. Null while there is doubt, never of a whole line. */
  begin(line, whole) {
    this.#wipe();
    const place = this.#follow(line, whole);
    if (place === null) return null;
    if (place.matched === this.#containers.length) {
      if (this.#leaf?.kind === "code") return this.#inFence(line, place.at, whole);
      const read = this.#underHead(line, place.at, whole);
      if (read !== undefined) return read;
    }
    return this.#start(line, place, whole);
  }

  add(text) {
    this.#leaf.add(text);
  }

  draw() {
    this.#leaf?.draw();
  }

  end() {
    this.#wipe();
    this.#enter(0, []);
  }

  // --- reading a line ---

  /** How many of the open containers the line stands in, and where it goes on. */
  #follow(line, whole) {
    let at = 0;
    let matched = 0;
    for (const { mark, need } of this.#containers) {
      const [indent, next] = indentAt(line, at);
      const blank = next === line.length;
      if (blank && !whole) return null;
      if (mark === ">") {
        if (line[next] !== ">") break;
        at = indentAt(line, next + 1, 1)[1];
      } else if (blank || indent >= need || this.#leaf?.kind === "code") {
        at = indentAt(line, at, need)[1];
      } else {
        break;
      }
      matched += 1;
    }
    return { matched, at };
  }

  #inFence(line, at, whole) {
    const { mark, length, indent } = this.#leaf.fence;
    const [columns, next] = indentAt(line, at);
    let end = next;
    while (line[end] === mark) end++;
    const mayClose = columns <= indent + 3 && indentAt(line, end)[1] === line.length;
    if (!whole && (mayClose || next === line.length)) return null;
    if (mayClose && end - next >= length) {
      this.#closeLeaf();
      return line.length;
    }
    this.#leaf.nextLine();
    return indentAt(line, at, indent)[1];
  }

  /** The second line of a table. Undefined if it is none. */
  #underHead(line, at, whole) {
    const head = this.#leaf?.head;
    const rest = line.slice(indentAt(line, at)[1]);
    if (!head?.includes("|") || rest === "") return undefined;
    if (!whole) return rest.length <= LONGEST_ROW && UNDERLINE_SO_FAR.test(rest) ? null : undefined;
    if (!isUnderline(rest, head)) return undefined;
    if (this.#leaf.kind === "paragraph") this.#turnInto(new Table(head, this.#tools));
    this.#leaf.underline(rest);
    return line.length;
  }

  /** Reads what begins on this line: containers, then a leaf, unless the line goes on with a paragraph. */
  #start(line, { matched, at: from }, whole) {
    const opened = [];
    let at = from;
    let carry = 0; // columns between where a mark on this line would let its text begin and where it does
    for (;;) {
      const [columns, next] = indentAt(line, at);
      const rest = line.slice(next);
      if (!whole && inDoubt(rest)) return null;
      if (rest === "") {
        this.#enter(matched, opened);
        return line.length;
      }
      if (rest.length <= LONGEST_RULE && RULE.test(rest)) {
        this.#enter(matched, opened);
        this.#put(element("hr"));
        return line.length;
      }
      const isDeepest = matched + opened.length >= DEEPEST;
      const [mark, number, delimiter] = LIST_MARK.exec(rest) ?? [];
      if (isDeepest || (rest[0] !== ">" && !mark)) return this.#startLeaf({ line, rest, next, matched, opened, columns, whole });
      if (mark) {
        const isEmpty = rest.slice(mark.length).trim() === "";
        if (isEmpty && !whole) return null;
        const interrupts = this.#goesOn(opened) && matched === this.#containers.length;
        if (interrupts && (isEmpty || Number(number ?? 1) !== 1)) return this.#goOn(next);
        opened.push({ mark: delimiter ?? "-", number: Number(number ?? 0), need: columns + carry + 2 });
        carry = mark.length - 1;
      } else {
        opened.push({ mark: ">" });
        carry = 0;
      }
      at = indentAt(line, next + (mark ?? ">").length, 1)[1];
    }
  }

  #startLeaf({ line, rest, next, matched, opened, columns, whole }) {
    const heading = HEADING.exec(rest);
    if (heading) {
      if (!whole && heading[0] === rest) return null;
      // An outline with steps left out cannot be followed by ear, so one that begins at ## begins at the top.
      this.#outline = Math.min(heading[1].length, this.#outline + 1);
      this.#open(new Heading(this.#outline), matched, opened);
      return next + heading[0].length;
    }
    const fence = fenceIn(rest, columns);
    if (fence) {
      const code = new Code(fence, this.#tools);
      if (!whole) return this.#draft(code, matched, opened);
      this.#open(code, matched, opened);
      return line.length;
    }
    if (rest.length <= LONGEST_ROW) {
      const leaf = this.#leaf;
      if (leaf?.isTable && matched === this.#containers.length && opened.length === 0) {
        const isRow = rest[0] === "|" || (!leaf.isPiped && rest.includes("|"));
        if (!whole && (isRow || !leaf.isPiped)) {
          leaf.sketch(isRow ? rest : null);
          return null;
        }
        if (isRow) {
          leaf.addRow(rest);
          return line.length;
        }
      } else if (rest[0] === "|" && !(this.#goesOn(opened) && leaf.isPiped)) {
        const table = new Table(rest, this.#tools);
        if (!whole) return this.#draft(table, matched, opened);
        this.#open(table, matched, opened);
        return line.length;
      }
    }
    if (this.#goesOn(opened)) return this.#goOn(next);
    this.#open(new Paragraph(), matched, opened);
    return next;
  }

  /** Whether a line of mere text would be the next of the open paragraph. */
  #goesOn(opened) {
    const leaf = this.#leaf;
    return opened.length === 0 && (leaf?.kind === "paragraph" || (leaf?.kind === "table" && !leaf.isTable));
  }

  #goOn(at) {
    this.#beParagraph();
    this.#leaf.nextLine();
    return at;
  }

  // --- putting it into the page ---

  #put(node) {
    if (this.#containers.length > 0) this.#containers.at(-1).element.append(node);
    else {
      this.#part.append(topmost(node));
      if (this.#part.childElementCount >= BLOCKS_TOGETHER) this.#newPart();
    }
  }

  #newPart() {
    this.#part = element("div");
    this.#root.append(this.#part);
  }

  #open(leaf, matched, opened) {
    this.#enter(matched, opened);
    this.#put(leaf.element);
    this.#leaf = leaf;
    leaf.watch?.();
  }

  /** Leaves all containers but the first `matched`, and opens others. */
  #enter(matched, opened) {
    this.#closeLeaf();
    let before = this.#containers[matched];
    this.#containers.length = matched;
    for (const container of opened) {
      const { mark, number } = container;
      if (mark === ">") {
        container.element = element("blockquote");
        this.#put(container.element);
      } else {
        if (before?.mark === mark) container.number = before.number + 1;
        const goesOn = before?.mark === mark && before.list.childElementCount < ITEMS_TOGETHER;
        container.list = goesOn ? before.list : this.#newList(container, before?.mark === mark);
        container.element = element("li");
        container.list.append(container.element);
      }
      before = undefined;
      this.#containers.push(container);
    }
  }

  #newList({ mark, number }, isMore) {
    const start = mark === "-" || number === 1 ? {} : { start: String(number) };
    const list = element(mark === "-" ? "ul" : "ol", { ...start, ...(isMore ? { class: "more" } : {}) });
    this.#put(list);
    return list;
  }

  #closeLeaf() {
    this.#beParagraph();
    this.#leaf?.end();
    this.#leaf = null;
  }

  /** A table without its second line is none. */
  #beParagraph() {
    const leaf = this.#leaf;
    if (leaf?.kind !== "table" || leaf.isTable) return;
    this.#turnInto(new Paragraph());
    this.#leaf.add(leaf.head);
  }

  #turnInto(leaf) {
    const before = this.#leaf.element;
    if (before.dir) leaf.element.dir = before.dir;
    before.replaceWith(leaf.element);
    this.#leaf = leaf;
    leaf.watch?.();
  }

  /** Shows what the line looks like so far, until more of it comes. */
  #draft(leaf, matched, opened) {
    if (opened.length > 0) return null;
    this.#sketch = leaf.element;
    if (matched > 0) this.#containers[matched - 1].element.append(leaf.element);
    else this.#part.append(topmost(leaf.element));
    return null;
  }

  #wipe() {
    this.#sketch?.remove();
    this.#sketch = null;
    if (this.#leaf?.isTable) this.#leaf.sketch(null);
  }
}

/** How many columns of space there are, up to `most`, a tab being four; and where they end. */
function indentAt(line, at, most = Infinity) {
  let columns = 0;
  let end = at;
  for (; columns < most && (line[end] === " " || line[end] === "\t"); end++) columns += line[end] === " " ? 1 : 4;
  return [columns, end];
}

function inDoubt(rest) {
  return rest === "" || IN_DOUBT.test(rest) || (rest.length <= LONGEST_RULE && RULE_SO_FAR.test(rest));
}

function fenceIn(rest, indent) {
  if (rest.length > LONGEST_FENCE) return null;
  const [, marks, info] = FENCE.exec(rest) ?? [];
  if (!marks || (marks[0] === "`" && info.includes("`"))) return null;
  return { mark: marks[0], length: marks.length, indent, language: info.trim() };
}

/** Each block finds its own direction; what stands in it finds it by style (markdown_style.js), because a block does not look
 *  into those within that have a direction. */
function topmost(node) {
  if (!node.dir) node.dir = "auto";
  return node;
}
