// What stands between the reader and the server: the note of a lost connection, the form for a key, the words for both.
// Knows the socket's states from outside; opens nothing itself.

import { keyCanBeSent } from "./socket.js";
import { storeKey } from "./storage.js";
import { untilThen } from "./words.js";

export class Door {
  #parts;
  #act;
  #state = { name: "connecting" };
  #countdown = null;
  #away = false; // the device has no network

  /** `act`: {tryNow(), useKey(key), say(sentence)}. */
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
    const { notice, keyForm, keyProblem, key } = this.#parts;
    const before = this.#state;
    this.#state = state;
    clearInterval(this.#countdown);
    keyForm.hidden = state.name !== "locked" || ownKey;
    switch (state.name) {
      case "open":
        notice.hidden = true;
        if (before.name !== "open" && idle) this.#act.say("Connected. Your turn.");
        break;
      case "offline":
        this.#showRetry(state);
        this.#countdown = setInterval(() => this.#showRetry(state), 1000);
        this.#act.say(`${state.sentence} Trying again by itself.`);
        break;
      case "locked":
        notice.hidden = true;
        if (ownKey) {
          this.#refusedKey();
          break;
        }
        keyProblem.textContent = state.rejected ? "The server did not accept that key." : "";
        if (state.rejected) storeKey(null);
        key.focus();
        break;
      case "connecting":
        if (!notice.hidden) this.note("Trying to connect…");
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
    switch (this.#state.name) {
      case "open":
        return ["ready", "Your turn"];
      case "resting":
        return ["resting", "Your turn"];
      case "offline":
        return ["offline", "Offline"];
      case "locked":
        return ["locked", "Key needed"];
      case "closed":
        return ["offline", "Closed"];
      default:
        return ["connecting", "Connecting"];
    }
  }

  #showRetry({ sentence, retryAt }) {
    this.note(`${sentence} Trying again in ${untilThen(retryAt - Date.now())}.`, { canTryNow: true });
  }

  #refusedKey() {
    const sentence = "The server did not accept this page’s key, so nothing can be asked here.";
    this.note(sentence);
    this.#act.say(sentence);
  }

  #submitKey() {
    const { key, keyProblem } = this.#parts;
    const given = key.value.trim();
    if (!keyCanBeSent(given)) {
      keyProblem.textContent = "A key is made of letters, digits and a few signs such as - _ . and has no spaces.";
      return;
    }
    key.value = "";
    storeKey(given);
    this.#act.useKey(given);
  }
}
