// Makes the nodes of an answer. Knows no Markdown.
//
// Every element of an answer is one of these, with attributes that are written here and beside; what a model writes is only
// ever text, or the address of a link that markdown_inline.js has looked at.

import { make } from "./dom.js";

const TAGS = /^(a|blockquote|br|button|code|del|div|em|h[3-6]|hr|li|[ou]l|p|pre|span|strong|t(able|body|d|h|head|r))$/;

const LONGEST_TEXT = 4000; // of a text node that is still added to

export function element(tag, ...rest) {
  if (!TAGS.test(tag)) throw new Error(`An answer holds no <${tag}>.`);
  return make(tag, ...rest);
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
