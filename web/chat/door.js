// What stands between the reader and the server: the note of a lost connection, the form for a key, the words for both.
// Knows the socket's states from outside; opens nothing itself.

import { keyCanBeSent } from "./socket.js";
import { untilThen } from "./words.js";

const WORDS = {
  connecting: ["connecting", "Connecting"],
  open: ["ready", "Your turn"],
  resting: ["resting", "Your turn"],
  offline: ["offline", "Offline"],
  closed: ["offline", "Closed"],
};

export class Door {
  #parts;
  #act;
  #state = { name: "connecting" };
  #countdown = null;
  #away = false; // the device has no network
  refusal = "The server did not accept this page’s key, so nothing can be asked here.";

  /** `act`: {tryNow(), useKey(key), say(sentence), focus()}. */
  constructor(parts, act) {
    this.#parts = parts;
    this.#act = act;
    parts.noticeAction.addEventListener("click", () => act.tryNow());
    parts.keyForm.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submitKey();
    });
  }

  get state() {
    return this.#state;
  }

  get locked() {
    return this.#state.name === "locked";
  }

  /** The socket's new state. `ownKey`: the page has a key of its own, so its reader cannot be asked for one. */
  enter(state, { ownKey, idle }) {
    const { notice, keyForm, keyProblem } = this.#parts;
    const before = this.#state;
    this.#state = state;
    clearInterval(this.#countdown);
    keyForm.hidden = state.name !== "locked" || ownKey;
    switch (state.name) {
      case "open":
        this.#hideNotice();
        if (before.name !== "open" && idle) this.#act.say("Connected. Your turn.");
        break;
      case "offline":
        this.#showRetry(state);
        this.#countdown = setInterval(() => this.#showRetry(state), 1000);
        this.#act.say(`${state.sentence} Trying again by itself.`);
        break;
      case "locked":
        this.#hideNotice();
        if (ownKey) {
          this.note(this.refusal);
          this.#act.say(this.refusal);
          break;
        }
        keyProblem.textContent = state.rejected ? "The server did not accept that key." : "";
        break;
      case "connecting":
        if (!notice.hidden) this.note("Trying to connect…", { canTryNow: true });
        break;
    }
  }

  /** The device has lost its network, or has it again. The socket hears of neither by itself. */
  network(away) {
    this.#away = away;
    if (this.#state.name === "open") this.#parts.notice.hidden = !away;
    if (!away) return;
    const sentence = "This device is offline.";
    this.note(sentence);
    this.#act.say(sentence);
  }

  /** Says something about the connection that nobody has to act on. */
  note(sentence, { canTryNow = false } = {}) {
    const { notice, noticeText, noticeAction } = this.#parts;
    noticeText.textContent = sentence;
    noticeAction.hidden = !canTryNow;
    notice.hidden = false;
  }

  /** What the header says: [the state's name, words]. */
  words(current) {
    if (this.#away) return ["offline", "Offline"];
    if (current !== null && this.#state.name === "open") {
      return current.phase === "queued" ? ["queued", "In line"] : ["answering", "The model’s turn"];
    }
    return WORDS[this.#state.name] ?? ["locked", this.#parts.keyForm.hidden ? "Not let in" : "Key needed"];
  }

  /** What had the focus in it gives it to the message box, rather than to nothing. */
  #hideNotice() {
    const { notice } = this.#parts;
    if (notice.matches(":focus-within")) this.#act.focus();
    notice.hidden = true;
  }

  #showRetry({ sentence, retryAt }) {
    this.note(`${sentence} Trying again in ${untilThen(retryAt - Date.now())}.`, { canTryNow: true });
  }

  #submitKey() {
    const { key, keyProblem } = this.#parts;
    const given = key.value.trim();
    if (!keyCanBeSent(given)) {
      keyProblem.textContent = "A key is made of letters, digits and signs such as - _ . and has no spaces.";
      return;
    }
    key.value = "";
    this.#act.useKey(given);
  }
}
