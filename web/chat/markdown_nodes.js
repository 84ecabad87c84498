// Makes the nodes of an answer. Knows no Markdown.
//
// Every element of an answer is made here, from these names and attributes; what a model writes is only ever text, or the
// address of a link that markdown_inline.js has looked at.

const TAGS = new Set(
  ["a", "blockquote", "br", "button", "code", "del", "div", "em", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "span",
   "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
);
const ATTRIBUTES = new Set(["class", "dir", "href", "referrerpolicy", "rel", "scope", "start", "target", "type"]);

const LONGEST_TEXT = 4000; // of a text node that is still added to

export function element(tag, attributes = {}, ...children) {
  if (!TAGS.has(tag)) throw new Error(`An answer holds no <${tag}>.`);
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (!ATTRIBUTES.has(name)) throw new Error(`An element of an answer has no attribute ${name}.`);
    made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Adds text behind what is in `parent`. What is there is not touched, so that a selection in it stays. */
export function addText(parent, text) {
  if (text === "") return;
  const last = parent.lastChild;
  if (last?.nodeType === Node.TEXT_NODE && last.length < LONGEST_TEXT) last.appendData(text);
  else parent.append(text);
}

/** Adds parts of markdown_inline.js. */
export function addParts(parent, parts) {
  for (const part of parts) {
    if (typeof part === "string") addText(parent, part);
    else if (part.tag !== "cut") parent.append(node(part));
  }
}

function node({ tag, href, parts = [] }) {
  const made = element(tag, href ? linkTo(href) : {});
  addParts(made, parts);
  return made;
}

function linkTo(href) {
  return { href, target: "_blank", rel: "noopener noreferrer nofollow ugc", referrerpolicy: "no-referrer" };
}
