// The widget's nodes, made once: header, conversation, message box. Knows how they stand in one another and what they are
// called; knows nothing of what happens in them.

import { ICONS, icon, make, ring } from "./dom.js";

/** Fills `root` (a shadow root) and returns the parts that change, by name. */
export function build(root) {
  const parts = {};
  const part = (name, ...node) => (parts[name] = make(...node));

  const header = make("header", { class: "top", part: "header" },
    make("div", { class: "brand" },
      ring(),
      make("slot", { name: "heading" }, part("heading", "h2", { class: "name" })),
      part("model", "span", { class: "model", hidden: true }),
    ),
    make("div", { class: "top-end" },
      part("state", "span", { class: "state", "data-state": "connecting" },
        make("span", { class: "state-dot", "aria-hidden": "true" }),
        part("stateText", "span", {}, "Connecting"),
      ),
      make("slot", { name: "actions" }),
      part("talksButton", "button", { class: "quiet", "aria-expanded": "false", hidden: true },
        icon(...ICONS.list), make("span", { class: "name-of" }, "Conversations"), part("talksCount", "span", { class: "count" })),
      part("new", "button", { class: "quiet", "aria-label": "New conversation", hidden: true },
        icon(...ICONS.plus), make("span", { class: "name-of" }, "New conversation")),
    ),
    part("talks", "div", { class: "talks", role: "group", "aria-label": "Conversations", hidden: true },
      part("talksList", "ul", { class: "talks-list" })),
  );

  const empty = part("empty", "section", { class: "panel empty" },
    part("greeting", "p", { class: "empty-title" }),
    make("p", { class: "empty-lead" }, "The answer appears as it is written, and you can stop it at any moment."),
    part("suggestions", "ul", { class: "suggestions", "aria-label": "Suggestions" }),
  );

  const keyForm = part("keyForm", "form", { class: "panel key", hidden: true },
    make("p", { class: "empty-title" }, "This server asks for a key."),
    make("label", { class: "empty-lead", for: "key" }, "Enter the key you were given. It is kept in this tab only, until you close it."),
    make("div", { class: "key-row" },
      part("key", "input", {
        id: "key", type: "password", autocomplete: "off", required: true, "aria-describedby": "key-problem",
      }),
      make("button", { class: "solid", type: "submit" }, "Use key"),
    ),
    part("keyProblem", "p", { class: "key-problem", id: "key-problem", role: "alert" }),
  );

  const scroll = part("scroll", "div", {
    class: "scroll", part: "conversation", tabindex: "0", role: "region", "aria-label": "Conversation",
  }, empty, keyForm, part("turns", "div", { class: "turns-place" }));

  const bottom = make("div", { class: "bottom", part: "composer" },
    part("latest", "button", { class: "latest", hidden: true }, icon(...ICONS.down), "Latest"),
    part("notice", "div", { class: "notice", hidden: true },
      part("noticeText", "span"),
      part("noticeAction", "button", { class: "link" }, "Try now"),
    ),
    part("editing", "div", { class: "editing", hidden: true },
      make("span", {}, "Editing your question: sending it replaces the answer and all that follows."),
      part("editingCancel", "button", { class: "link" }, "Keep as it was"),
    ),
    part("composer", "form", { class: "composer" },
      make("label", { class: "unseen", for: "message" }, "Your message"),
      part("message", "textarea", {
        id: "message", part: "message", rows: "1", placeholder: "Write a message", enterkeyhint: "send", dir: "auto", "aria-describedby": "hint",
      }),
      part("send", "button", { class: "solid round", part: "send", type: "submit", "aria-label": "Send", disabled: true }, icon(...ICONS.up)),
      part("stop", "button", {
        class: "solid round filled", part: "stop", "aria-label": "Stop", "aria-keyshortcuts": "Escape", hidden: true,
      }, icon(...ICONS.stop)),
    ),
    part("kept", "p", { class: "kept", hidden: true }),
    part("hint", "p", { class: "hint", id: "hint" },
      part("hintYours", "span", {}, ...hint("Enter", " sends · ", "Shift", "+", "Enter", " new line")),
      part("hintAnswering", "span", {}, ...hint("Esc", " stops · ", "Enter", " sends once the answer has ended")),
    ),
  );

  root.append(
    part("skip", "button", { class: "skip" }, "Skip to the message box"),
    make("div", { class: "frame" }, header, scroll, bottom),
    part("status", "p", { class: "unseen", role: "status", "aria-live": "polite" }),
    part("speech", "div", { class: "unseen", role: "log", "aria-live": "polite", "aria-label": "Answer" }),
  );
  return parts;
}

/** Keys and what they do, in turn. */
function hint(...words) {
  return words.map((word, index) => (index % 2 ? word : make("kbd", {}, word)));
}
