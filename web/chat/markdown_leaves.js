// The blocks that hold text: a paragraph, a heading, a code block, a table. Each takes its text in pieces, line by line.
// Knows how they look in the page; which line belongs to which is markdown_blocks.js.
//
// `add` and `nextLine` put into the page what can be settled; `draw` shows the rest as it looks for now; `end` settles all.

import { Inline } from "./markdown_inline.js";
import { addParts, addText, element } from "./markdown_nodes.js";

export const LONGEST_ROW = 4000; // of a table; a longer line is none
const MOST_COLUMNS = 32;
const ROWS_TOGETHER = 200; // a browser lays out all rows of a table again for each new one, so a long one goes on in another
const CODE_TOGETHER = 4000;

/** Text with emphasis, code and links. `onCut`, where there may be cuts, gives the element in which it goes on. */
class Flow {
  #inline = new Inline();
  #parent;
  #onCut;
  #unsettled = [];

  constructor(parent, onCut = null) {
    this.#parent = parent;
    this.#onCut = onCut;
  }

  add(text) {
    this.#inline.feed(text);
    this.#settle(this.#inline.settled());
  }

  draw() {
    this.#clear();
    const fresh = document.createDocumentFragment();
    addParts(fresh, this.#inline.unsettled());
    this.#unsettled = [...fresh.childNodes];
    this.#parent.append(fresh);
  }

  end() {
    this.#settle(this.#inline.end());
  }

  #settle(parts) {
    this.#clear();
    if (this.#onCut === null) {
      addParts(this.#parent, parts);
      return;
    }
    for (const part of parts) {
      if (part.tag === "cut") this.#parent = this.#onCut(this.#parent);
      else addParts(this.#parent, [part]);
    }
  }

  #clear() {
    for (const node of this.#unsettled) node.remove();
    this.#unsettled = [];
  }
}

export class Paragraph {
  kind = "paragraph";
  element = element("p");
  head = ""; // its first line while there is no second: that of a table looks the same
  isPiped = false; // begins with a |
  #flow = new Flow(this.element, goOn);

  add(text) {
    if (this.head === "") this.isPiped = text.startsWith("|");
    if (this.head !== null) this.head = this.head.length + text.length > LONGEST_ROW ? null : this.head + text;
    this.#flow.add(text);
  }

  nextLine() {
    this.head = null;
    this.#flow.add("\n");
  }

  draw() {
    this.#flow.draw();
  }

  end() {
    this.#flow.end();
  }
}

function goOn(paragraph) {
  const next = element("p", { class: "more" });
  if (paragraph.dir) next.dir = paragraph.dir;
  paragraph.after(next);
  return next;
}

export class Heading {
  kind = "heading";
  #flow;
  #held = ""; // a row of # at the end belongs to the mark
  #isEmpty = true;

  constructor(level) {
    this.element = element(`h${Math.min(level + 2, 6)}`);
    this.#flow = new Flow(this.element);
  }

  add(text) {
    const all = this.#held + text;
    let end = all.length;
    while (isSpace(all[end - 1])) end--;
    let marks = end;
    while (all[marks - 1] === "#") marks--;
    if (marks === 0 ? this.#isEmpty : isSpace(all[marks - 1])) end = marks;
    while (isSpace(all[end - 1])) end--;
    this.#flow.add(all.slice(0, end));
    this.#held = all.slice(end);
    this.#isEmpty &&= end === 0;
  }

  draw() {
    this.#flow.draw();
  }

  end() {
    this.#flow.end();
  }
}

function isSpace(character) {
  return character === " " || character === "\t";
}

export class Code {
  kind = "code";
  #tools;
  #pre;
  #code = element("code");
  #lines = null; // the last of the stretches it is kept in: only a whole stretch is laid out again for a new line
  #length = 0; // of that

  /** `fence`: {mark, length, indent, language}. `tools`: {copy, watch} of markdown.js. */
  constructor(fence, tools) {
    this.fence = fence;
    this.#tools = tools;
    const button = element("button", { class: "code-copy" }, "Copy");
    button.addEventListener("click", () => tools.copy(this.#code.textContent, this.#code, button));
    const head = element("div", { class: "code-head" }, element("span", { class: "code-language" }, fence.language), button);
    this.#pre = element("pre", {}, this.#code);
    this.element = element("div", { class: "code", dir: "ltr" }, head, this.#pre);
  }

  watch() {
    this.#tools.watch(this.#pre, this.#code, this.fence.language ? `Code, ${this.fence.language}` : "Code");
  }

  add(text) {
    addText(this.#lines, text);
    this.#length += text.length;
  }

  nextLine() {
    if (this.#lines !== null) this.add("\n");
    if (this.#lines !== null && this.#length < CODE_TOGETHER) return;
    this.#lines = element("span");
    this.#length = 0;
    this.#code.append(this.#lines);
  }

  draw() {}

  end() {}
}

/** A table from its first line on; it is one once the line under that has come. */
export class Table {
  kind = "table";
  element = element("div", { class: "table" });
  isTable = false;
  head; // null once it is a table
  isPiped;
  #tools;
  #table;
  #body;
  #rows = 0;
  #columns;
  #alignments = [];
  #sketch = null; // of a row that is still being written

  constructor(head, tools) {
    this.head = head;
    this.isPiped = head.startsWith("|");
    this.#tools = tools;
    const texts = cells(head, MOST_COLUMNS);
    this.#columns = texts.length;
    this.#newTable(element("thead", {}, row("th", texts, [])));
  }

  watch() {
    this.#tools.watch(this.element, this.#table, "Table");
  }

  underline(line) {
    this.isTable = true;
    this.head = null;
    this.#alignments = cells(line, MOST_COLUMNS).map(alignment);
    this.element.querySelectorAll("th").forEach((cell, index) => align(cell, this.#alignments[index]));
  }

  addRow(line) {
    if (this.#rows > 0 && this.#rows % ROWS_TOGETHER === 0) {
      this.#newTable();
      this.watch();
    }
    this.#body.append(this.#row(line));
    this.#rows += 1;
  }

  /** Shows a row of which more may come, or none. */
  sketch(line) {
    this.#sketch?.remove();
    this.#sketch = line === null ? null : this.#row(line);
    if (this.#sketch !== null) this.#body.append(this.#sketch);
  }

  draw() {}

  end() {
    this.sketch(null);
  }

  #row(line) {
    return row("td", cells(line, this.#columns), this.#alignments);
  }

  #newTable(...head) {
    this.#body = element("tbody");
    this.#table = element("table", {}, ...head, this.#body);
    this.element.append(this.#table);
  }
}

/** Whether `line` stands under `head` and makes a table of it. */
export function isUnderline(line, head) {
  if (head === null || !head.includes("|") || line.length > LONGEST_ROW || !/^[|:\- \t]*$/.test(line)) return false;
  const marks = cells(line, Infinity);
  return marks.length <= MOST_COLUMNS && marks.length === cells(head, Infinity).length && marks.every((mark) => /^:?-+:?$/.test(mark));
}

/** The cells of a row; what is too many stays in the last. */
function cells(line, most) {
  const found = [];
  let from = line.startsWith("|") ? 1 : 0;
  for (let at = from; at < line.length && found.length < most - 1; at++) {
    if (line[at] === "\\") at++;
    else if (line[at] === "|") {
      found.push(line.slice(from, at));
      from = at + 1;
    }
  }
  const last = line.slice(from).trimEnd();
  if (found.length === most - 1) found.push(last.replace(/(?<!\\)\|$/, ""));
  else if (last !== "" || found.length === 0) found.push(last);
  return found.map((text) => text.trim().replaceAll("\\|", "|"));
}

function row(tag, texts, alignments) {
  const made = element("tr");
  texts.forEach((text, index) => {
    const cell = element(tag, tag === "th" ? { scope: "col" } : {});
    const flow = new Flow(cell);
    flow.add(text);
    flow.end();
    align(cell, alignments[index]);
    made.append(cell);
  });
  return made;
}

function alignment(mark) {
  if (!mark.endsWith(":")) return null;
  return mark.startsWith(":") ? "centre" : "far";
}

function align(cell, name) {
  if (name) cell.className = name;
}
