// The list of conversations, behind a button: which there are, what each is doing, go to one, delete one. Knows talks from
// outside (words.js); what happens when one is chosen is for `act` to say.

import { ICONS, icon, make } from "./dom.js";
import { doing, title } from "./words.js";

export class TalksList {
  #parts;
  #act;

  /** `act`: {choose(talk), remove(talk)}. `root`: within which a click elsewhere closes it. */
  constructor(parts, root, act) {
    this.#parts = parts;
    this.#act = act;
    parts.talksButton.addEventListener("click", () => (this.open ? this.close() : this.#show()));
    root.addEventListener("click", (event) => {
      const path = event.composedPath();
      if (this.open && !path.includes(parts.talks) && !path.includes(parts.talksButton)) this.close();
    });
    parts.talks.addEventListener("focusout", ({ relatedTarget }) => {
      if (relatedTarget && !parts.talks.contains(relatedTarget) && relatedTarget !== parts.talksButton) this.close();
    });
  }

  get open() {
    return !this.#parts.talks.hidden;
  }

  close({ focus = false } = {}) {
    this.#parts.talks.hidden = true;
    this.#parts.talksButton.setAttribute("aria-expanded", "false");
    if (focus) this.#parts.talksButton.focus();
  }

  /** `talks`: oldest first. Only what has changed is touched: a button that has the focus keeps it. */
  draw(talks, current) {
    const { talksButton, talksCount, talksList } = this.#parts;
    talksButton.hidden = talks.length < 2;
    if (talks.length < 2) this.close();
    talksCount.textContent = String(talks.length);
    const unread = talks.filter((talk) => talk.unread).length;
    talksButton.setAttribute("aria-label", `Conversations: ${talks.length}${unread > 0 ? `, ${unread} with something new` : ""}`);
    talksButton.toggleAttribute("data-unread", unread > 0);
    if (!this.open) return;
    const rows = new Map([...talksList.children].map((row) => [row.dataset.talk, row]));
    for (const talk of talks) {
      const row = rows.get(talk.id) ?? this.#row(talk);
      rows.delete(talk.id);
      drawRow(row, talk, talk === current);
      if (!row.isConnected) talksList.prepend(row);
    }
    for (const row of rows.values()) row.remove();
  }

  #show() {
    this.#parts.talks.hidden = false;
    this.#parts.talksButton.setAttribute("aria-expanded", "true");
    this.#act.opened();
    this.#parts.talksList.querySelector("button")?.focus();
  }

  #row(talk) {
    const choose = make("button", { class: "talk" }, make("span", { class: "talk-title", dir: "auto" }), make("span", { class: "doing" }));
    const remove = make("button", { class: "remove" }, icon(...ICONS.cross));
    choose.addEventListener("click", () => {
      this.close();
      this.#act.choose(talk);
    });
    remove.addEventListener("click", () => {
      const next = remove.parentElement.nextElementSibling ?? remove.parentElement.previousElementSibling;
      this.#act.remove(talk);
      (this.open ? next?.querySelector(".remove") : this.#parts.message)?.focus();
    });
    return make("li", { "data-talk": talk.id }, choose, remove);
  }
}

function drawRow(row, talk, current) {
  const [choose, remove] = row.children;
  const name = title(talk.turns);
  const [titleText, doingText] = choose.children;
  if (titleText.textContent !== name) titleText.textContent = name;
  const does = doing(talk);
  if (doingText.textContent !== does) doingText.textContent = does;
  if (current) choose.setAttribute("aria-current", "true");
  else choose.removeAttribute("aria-current");
  remove.setAttribute("aria-label", `Delete conversation: ${name}`);
}
