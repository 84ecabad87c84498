// Makes nodes: the only way in which the widget's own markup comes to be. Knows no page and no turn.
//
// There is no way from text to markup here: a child that is a string becomes a text node.

const SVG = "http://www.w3.org/2000/svg";

/** An element with `attributes` (true: present and empty; false, null: absent) and `children` (nodes or strings). */
export function make(tag, attributes = {}, ...children) {
  const element = fill(document.createElement(tag), attributes, children);
  // Else it would send the form it may stand in.
  if (tag === "button") element.type = attributes.type ?? "button";
  return element;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

function drawn(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

const HIDDEN = { "aria-hidden": "true", focusable: "false" };

/** A line drawing of 20 by 20; `paths` are path data. */
export function icon(...paths) {
  return drawn("svg", { class: "icon", viewBox: "0 0 20 20", ...HIDDEN }, ...paths.map((d) => drawn("path", { d })));
}

/** The ring: six turns, one of them now. */
export function ring() {
  const circle = (name) => drawn("circle", { class: name, cx: 16, cy: 16, r: 12, pathLength: 60 });
  return drawn("svg", { class: "ring", viewBox: "0 0 32 32", ...HIDDEN }, circle("ring-others"), circle("ring-turn"));
}

export const ICONS = {
  plus: ["M10 4v12M4 10h12"],
  up: ["M10 16V4M4.5 9.5 10 4l5.5 5.5"],
  down: ["M10 4v12M5 11l5 5 5-5"],
  stop: ["M6 6h8v8H6z"],
  list: ["M4 5h12M4 10h12M4 15h8"],
  cross: ["M5 5l10 10M15 5 5 15"],
  pencil: ["M12.5 4.5l3 3L7 16l-3.6.6L4 13z"],
  copy: ["M7 7h9v9H7z", "M4 13V4h9"],
};
