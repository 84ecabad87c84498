// The widget's nodes, made once: header, conversation, message box. Knows how they stand in one another and what they are
// called; knows nothing of what happens in them.

import { ICONS, icon, make, ring } from "./dom.js";

/** Fills `root` (a shadow root) and returns the parts that change, by name. */
export function build(root) {
  const parts = {};
  const part = (name, node) => (parts[name] = node);

  const header = make("header", { class: "top", part: "header" },
    make("div", { class: "brand" },
      ring(),
      make("slot", { name: "heading" }, part("heading", make("h2", { class: "name" }))),
      part("model", make("span", { class: "model", hidden: true })),
    ),
    make("div", { class: "top-end" },
      part("state", make("span", { class: "state", "data-state": "connecting" },
        make("span", { class: "state-dot", "aria-hidden": "true" }),
        part("stateText", make("span", {}, "Connecting")),
      )),
      make("slot", { name: "actions" }),
      part("talksButton", make("button", { class: "quiet", type: "button", "aria-expanded": "false", hidden: true },
        icon(...ICONS.list), make("span", { class: "long" }, "Conversations"), part("talksCount", make("span", { class: "count" })))),
      part("new", make("button", { class: "quiet", type: "button", "aria-label": "New conversation", hidden: true },
        icon(...ICONS.plus), make("span", { class: "long" }, "New conversation"))),
    ),
    part("talks", make("div", { class: "talks", role: "group", "aria-label": "Conversations", hidden: true },
      part("talksList", make("ul", { class: "talks-list" })))),
  );

  const empty = part("empty", make("section", { class: "panel empty" },
    part("greeting", make("p", { class: "empty-title" })),
    make("p", { class: "empty-lead" }, "The answer appears as it is written, and you can stop it at any moment."),
    part("suggestions", make("ul", { class: "suggestions", "aria-label": "Suggestions" })),
  ));

  const keyForm = part("keyForm", make("form", { class: "panel key", hidden: true },
    part("keyTitle", make("p", { class: "empty-title" }, "This server asks for a key.")),
    make("label", { class: "empty-lead", for: "key" }, "Enter the key you were given. It is kept in this tab only, until you close it."),
    make("div", { class: "key-row" },
      part("key", make("input", {
        id: "key", type: "password", autocomplete: "off", spellcheck: "false", autocapitalize: "off", required: true, "aria-describedby": "key-problem",
      })),
      make("button", { class: "solid", type: "submit" }, "Use key"),
    ),
    part("keyProblem", make("p", { class: "key-problem", id: "key-problem", role: "alert" })),
  ));

  const scroll = part("scroll", make("div", {
    class: "scroll", part: "conversation", tabindex: "0", role: "region", "aria-label": "Conversation",
  }, empty, keyForm, part("turns", make("div", { class: "turns-place" }))));

  const bottom = make("div", { class: "bottom", part: "composer" },
    part("latest", make("button", { class: "latest", type: "button", hidden: true }, icon(...ICONS.down), "Latest")),
    part("notice", make("div", { class: "notice", hidden: true },
      part("noticeText", make("span")),
      part("noticeAction", make("button", { class: "link", type: "button" }, "Try now")),
    )),
    part("editing", make("div", { class: "editing", hidden: true },
      make("span", {}, "Editing your question: sending it replaces the answer and all that follows."),
      part("editingCancel", make("button", { class: "link", type: "button" }, "Keep as it was")),
    )),
    part("composer", make("form", { class: "composer" },
      make("label", { class: "unseen", for: "message" }, "Your message"),
      part("message", make("textarea", {
        id: "message", part: "message", rows: "1", placeholder: "Write a message", enterkeyhint: "send", dir: "auto", "aria-describedby": "hint",
      })),
      part("send", make("button", { class: "solid round", part: "send", type: "submit", "aria-label": "Send", disabled: true }, icon(...ICONS.up))),
      part("stop", make("button", {
        class: "solid round filled", part: "stop", type: "button", "aria-label": "Stop", "aria-keyshortcuts": "Escape", hidden: true,
      }, icon(...ICONS.stop))),
    )),
    part("kept", make("p", { class: "kept", hidden: true })),
    part("hint", make("p", { class: "hint", id: "hint" },
      part("hintYours", hint(["Enter", " sends"], ["Shift", "+", "Enter", " new line"])),
      part("hintAnswering", hint(["Esc", " stops"], ["Enter", " sends once the answer has ended"])),
    )),
  );

  root.append(
    part("skip", make("button", { class: "skip", type: "button" }, "Skip to the message box")),
    make("div", { class: "frame" }, header, scroll, bottom),
    part("status", make("p", { class: "unseen", role: "status", "aria-live": "polite" })),
    part("speech", make("div", { class: "unseen", role: "log", "aria-live": "polite", "aria-label": "Answer, read as it is written" })),
  );
  return parts;
}

const KEYS = new Set(["Enter", "Shift", "Esc"]);

function hint(...groups) {
  const written = groups.flatMap((words, index) => [
    ...(index > 0 ? [" ", make("span", { "aria-hidden": "true" }, "·"), " "] : []),
    ...words.map((word) => (KEYS.has(word) ? make("kbd", {}, word) : word)),
  ]);
  return make("span", {}, ...written);
}
