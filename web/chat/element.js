// <rota-chat>: what the reader does becomes a request, what the server says becomes something to read.
//
// The one place where the parts meet: talks (what is said), their views, the socket, the message box, the list of
// conversations, what is read aloud, and the page around the element, by attributes, methods and events.

import { Composer, hasKeyboard } from "./composer.js";
import { LEFT, isRunning } from "./conversation.js";
import { Door } from "./door.js";
import { make } from "./dom.js";
import { Following } from "./following.js";
import { build } from "./panel.js";
import { ResponsesSocket, addresses, keyCanBeSent } from "./socket.js";
import { Speech } from "./speech.js";
import { Keeper, storeKey, storedKey } from "./storage.js";
import { sheets } from "./style.js";
import { Talk } from "./talk.js";
import { TalkView } from "./talk_view.js";
import { TalksList } from "./talks_list.js";
import { ending, kept, progress } from "./words.js";

const MOST_TALKS = 20;
const FORGOTTEN = "The server had forgotten this conversation, so it was sent again in full.";

export class RotaChat extends HTMLElement {
  static home = null; // the socket of the server that sent this script: where it goes without a src
  static observedAttributes = ["src", "key", "suggestions", "heading", "greeting"];

  #parts;
  #socket = null;
  #door;
  #composer;
  #list;
  #speech;
  #following;
  #keeper = null;
  #origin = "";
  #model = null;
  #talks = []; // oldest first
  #talk = null; // the one in sight
  #views = new Map(); // talk -> TalkView
  #waiting = new WeakMap(); // turn -> what resolves the promise of who asked
  #progressSaid = ""; // so that each step is said once, and not over something said since
  #frame = null;
  #elsewhere = null; // ends the listening to window and document

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = sheets();
    this.#parts = build(root);
    const parts = this.#parts;
    this.#speech = new Speech(parts.status, parts.speech);
    const say = (sentence) => this.#speech.say(sentence);
    this.#door = new Door(parts, {
      say,
      tryNow: () => this.#tryNow(),
      useKey: (key) => this.#useKey(key),
      focus: () => this.#composer.focus(),
    });
    this.#composer = new Composer(parts, {
      submit: (text, editing) => this.#submit(text, editing),
      stop: () => this.#stop(),
      typing: () => this.#door.state.name === "resting" && this.#socket.wake(),
      editLast: () => this.#editLast(),
    });
    this.#list = new TalksList(parts, root, {
      opened: () => this.#drawList(),
      choose: (talk) => this.#goTo(talk),
      remove: (talk) => this.#remove(talk),
    });
    this.#following = new Following(
      parts.scroll,
      parts.latest,
      () => this.#talk !== null && this.#talk.turns.length > 0 && !this.#door.locked,
      () => this.#composer.focus(),
    );
    parts.new.addEventListener("click", () => this.#startAnew());
    parts.skip.addEventListener("click", () => parts.message.focus());
    parts.suggestions.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button !== null) this.#submit(button.textContent, null);
    });
    root.addEventListener("keydown", (event) => this.#escape(event));
  }

  // --- for the page around it ---------------------------------------------------------------------------------------

  /** Asks in the conversation that is in sight. Resolves when the answer has ended, to what `rota-finish` or `rota-error`
   *  tells. Rejects with a DOMException: InvalidStateError while an answer is being written there, SyntaxError for a
   *  question without a word. */
  async ask(question) {
    const text = String(question).trim();
    if (text === "") throw new DOMException("There is nothing to ask.", "SyntaxError");
    if (this.#socket === null) throw new DOMException("This <rota-chat> is not in a page.", "InvalidStateError");
    if (this.#talk.current !== null) {
      throw new DOMException("An answer is being written.", "InvalidStateError");
    }
    return new Promise((resolve) => {
      this.#ask(this.#talk, () => {
        const turn = this.#talk.ask(text);
        this.#waiting.set(turn, resolve);
        return turn;
      });
    });
  }

  /** Stops the answer that is being written in the conversation in sight, if one is. What has come stays. */
  stop() {
    this.#talk?.stop();
  }

  /** Forgets every conversation, here and in the tab's storage, and whatever is being written. */
  reset() {
    for (const talk of [...this.#talks]) talk.end();
    this.#talks = [];
    this.#views.clear();
    this.#keeper?.forget();
    if (this.#socket !== null) this.#show(this.#begin());
  }

  focus(options) {
    (this.#door.locked ? this.#parts.key : this.#parts.message).focus(options);
  }

  connectedCallback() {
    if (this.#elsewhere !== null) return; // moved within the page
    this.#drawAttributes();
    this.#elsewhere = new AbortController();
    const listen = (target, type, act) => target.addEventListener(type, act, { signal: this.#elsewhere.signal });
    listen(window, "online", () => this.#network(false));
    listen(window, "offline", () => this.#network(true));
    listen(document, "visibilitychange", () => document.visibilityState === "visible" && this.#socket?.wake());
    // The server frees the answer's memory the moment it hears this, rather than when it notices the silence.
    listen(window, "pagehide", () => this.#leave());
    listen(window, "pageshow", (event) => event.persisted && this.#socket?.open());
    this.#start();
    if (this.hasAttribute("autofocus")) this.#composer.focus({ touch: true });
  }

  disconnectedCallback() {
    queueMicrotask(() => {
      if (this.isConnected) return;
      this.#elsewhere?.abort();
      this.#elsewhere = null;
      this.#leave();
      this.#socket = null;
    });
  }

  attributeChangedCallback(name, before, now) {
    if (this.#elsewhere === null || before === now) return;
    if (name === "src" || name === "key") {
      this.#leave();
      this.#socket = null;
      this.#start();
    } else this.#drawAttributes();
  }

  // --- life ---------------------------------------------------------------------------------------------------------

  #start() {
    let address;
    try {
      address = addresses(this.getAttribute("src") ?? RotaChat.home, document.baseURI);
    } catch {
      this.#door.note(`This chat cannot connect: '${this.getAttribute("src")}' is no address of a WebSocket.`);
      return;
    }
    const key = this.getAttribute("key");
    if (key && !keyCanBeSent(key)) {
      this.#door.note("This chat cannot connect: its key cannot be one.");
      return;
    }
    this.#origin = address.models.origin;
    this.#keeper = new Keeper(`${address.socket}${this.id ? `#${this.id}` : ""}`);
    this.#socket = new ResponsesSocket({
      address,
      key: key || storedKey(this.#origin),
      onState: (state) => this.#connectionChanged(state),
      onNotice: ({ message }) => {
        // About the socket as a whole, such as its age; the answer that runs, if one does, goes on.
        this.#door.note(message);
        this.#speech.say(message);
      },
    });
    this.#restore();
    this.#socket.open();
  }

  #restore() {
    const { talks = [], current } = this.#keeper.load() ?? {};
    this.#views.clear();
    this.#talks = talks.filter((one) => typeof one?.id === "string" && Array.isArray(one.turns)).map((one) => this.#talkOf(one.id, one.turns));
    this.#show(this.#talks.find(({ id }) => id === current) ?? this.#begin());
  }

  #leave() {
    if (this.#socket === null) return;
    this.#save(); // while what runs is still known to run
    this.#socket.close(LEFT);
  }

  #save() {
    const begun = this.#talks.filter(({ turns }) => turns.length > 0);
    if (begun.length === 0) this.#keeper?.forget();
    else this.#keeper.save(this.#talk.id, begun.map((talk) => talk.keep()));
  }

  // --- conversations ------------------------------------------------------------------------------------------------

  #talkOf(id, keptTurns) {
    return new Talk({
      id,
      socket: this.#socket,
      // What is undefined is not sent.
      extras: () => ({ model: this.#model ?? undefined, instructions: this.getAttribute("instructions") || undefined }),
      heard: (...heard) => this.#heard(...heard),
      kept: keptTurns,
    });
  }

  /** A conversation in which nothing has been said. There is at most one such. */
  #begin() {
    const unbegun = this.#talks.find(({ turns }) => turns.length === 0);
    if (unbegun !== undefined) return unbegun;
    const spare = this.#talks.find(({ current }) => current === null);
    if (this.#talks.length >= MOST_TALKS && spare !== undefined) this.#drop(spare);
    const talk = this.#talkOf(freshId(), []);
    this.#talks.push(talk);
    return talk;
  }

  #show(talk) {
    this.#talk = talk;
    talk.unread = false;
    this.#progressSaid = "";
    this.#speech.reset();
    this.#composer.leaveEditing();
    this.#parts.turns.replaceChildren(this.#view(talk).element);
    this.#following.follow();
    this.#drawSoon();
    this.#refresh();
  }

  #goTo(talk) {
    this.#show(talk);
    this.#save();
    this.#composer.focus();
  }

  #startAnew() {
    this.#goTo(this.#begin());
    this.#speech.say("New conversation.", { anew: true });
  }

  #remove(talk) {
    this.#drop(talk);
    if (talk === this.#talk) this.#show(this.#talks.at(-1) ?? this.#begin());
    this.#save();
    this.#refresh();
    this.#speech.say("Conversation deleted.", { anew: true });
  }

  #drop(talk) {
    talk.end();
    this.#views.delete(talk);
    this.#talks.splice(this.#talks.indexOf(talk), 1);
  }

  #view(talk) {
    let view = this.#views.get(talk);
    if (view === undefined) {
      view = new TalkView(talk, this.#actions(talk));
      this.#views.set(talk, view);
    }
    return view;
  }

  /** What the buttons under the turns of `talk` do. They are pressed where that talk is in sight. */
  #actions(talk) {
    const ask = (begin) => {
      this.#ask(talk, begin);
      this.#composer.focus();
    };
    const take = (turn, then) => {
      turn.superseded = true;
      this.#view(talk).settle(turn);
      then();
      this.#composer.putInFront(turn.question);
    };
    return {
      again: (turn) => ask(() => talk.again(turn)),
      goOn: () => ask(() => talk.goOn()),
      edit: (turn) => talk.current === null && this.#composer.edit(turn),
      takeBack: (turn) => take(turn, () => this.#save()),
      takeAlong: (turn) => take(turn, () => this.#startAnew()),
      say: (sentence) => this.#speech.say(sentence, { anew: true }),
    };
  }

  // --- asking -------------------------------------------------------------------------------------------------------

  /** False: it cannot be sent now. `editing`: the turn in whose place it is asked. */
  #submit(text, editing) {
    const talk = this.#talk;
    if (this.#socket === null) return false;
    if (talk.current !== null) {
      this.#keepMessage();
      return false;
    }
    if (editing !== null) {
      talk.rewind(editing);
      this.#view(talk).prune();
    }
    this.#ask(talk, () => talk.ask(text));
    this.#composer.focus();
    return true;
  }

  #ask(talk, begin) {
    this.#progressSaid = "";
    const turn = begin();
    this.#view(talk).changed(turn);
    this.#following.follow();
    this.#drawSoon();
    this.#refresh();
    this.#save();
    this.#dispatch("rota-start", { question: turn.question, conversation: talk.id });
  }

  #stop() {
    this.stop();
    this.#composer.focus();
  }

  #editLast() {
    const last = this.#talk?.turns.at(-1);
    if (last === undefined || this.#talk.current !== null) return false;
    this.#composer.edit(last);
    return true;
  }

  /** One answer at a time: the text stays in the box, and its writer is told why. Never sent by itself, because the answer
   *  it would then follow has not been read yet. */
  #keepMessage() {
    if (this.#talk.current.phase === "unsent") this.#socket.wake();
    const sentence = kept(this.#talk.current, hasKeyboard());
    this.#composer.note(sentence);
    this.#speech.say(sentence, { anew: true });
  }

  #escape(event) {
    if (event.key !== "Escape" || event.isComposing || event.repeat) return;
    if (this.#list.open) this.#list.close({ focus: true });
    else if (this.#talk?.current) this.#stop();
    else if (!this.#composer.leaveEditing()) return;
    event.preventDefault();
  }

  // --- hearing ------------------------------------------------------------------------------------------------------

  #heard(talk, turn, event) {
    const shown = talk === this.#talk;
    this.#view(talk).changed(turn);
    this.#drawSoon();
    if (event.type === "response.output_text.delta") {
      if (shown) this.#speech.add(event.delta);
      this.#dispatch("rota-delta", { delta: event.delta, conversation: talk.id });
      if (shown && this.#progressSaid !== "Writing…") this.#sayProgress(turn);
      return;
    }
    if (event.type === "forgotten") {
      this.#view(talk).remark(turn, FORGOTTEN);
      if (shown) this.#speech.say(FORGOTTEN);
    } else if (isRunning(turn)) {
      if (shown) this.#sayProgress(turn);
    } else this.#ended(talk, turn, shown);
    this.#refresh();
  }

  #sayProgress(turn) {
    // What changes all the time is for the eye.
    const step = progress({ ...turn, read: null, place: turn.place && { ...turn.place, waitMs: null } });
    if (step !== this.#progressSaid) {
      this.#speech.say(step);
      this.#refresh();
    }
    this.#progressSaid = step;
  }

  #ended(talk, turn, shown) {
    talk.unread = !shown;
    if (shown) {
      const waiting = this.#composer.noted && "Your message can be sent now.";
      this.#speech.end([ending(turn) ?? "Answer finished.", waiting].filter(Boolean).join(" "));
      if (this.shadowRoot.activeElement === this.#parts.stop) this.#composer.focus();
    }
    this.#save();
    const detail = finishOf(talk, turn);
    this.#dispatch(detail.code === null ? "rota-finish" : "rota-error", detail);
    this.#waiting.get(turn)?.(detail);
  }

  #dispatch(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail, bubbles: true, composed: true }));
  }

  // --- the connection -----------------------------------------------------------------------------------------------

  #connectionChanged(state) {
    if (state.name === "open") {
      this.#model = state.models[0]?.id ?? null;
      this.#parts.model.textContent = this.#model ?? "";
      this.#parts.model.hidden = this.#model === null;
    }
    const ownKey = Boolean(this.getAttribute("key"));
    this.#door.enter(state, { ownKey, idle: this.#talk?.current == null });
    if (state.name === "locked") {
      if (state.rejected && !ownKey) storeKey(this.#origin, null);
      // Nobody can be asked for another, so what is asked is refused rather than kept for a connection that never comes.
      if (ownKey) this.#socket.refuse({ type: "authentication_error", code: "authentication_failed", message: this.#door.refusal });
      else if (this.matches(":focus-within") || this.hasAttribute("autofocus")) this.focus({ preventScroll: true });
    }
    if (this.#talk !== null) this.#refresh();
  }

  #network(away) {
    if (this.#socket === null) return;
    this.#door.network(away);
    if (!away) this.#socket.doubt();
    this.#refresh();
  }

  #tryNow() {
    this.#socket.wake();
    this.#composer.focus();
  }

  #useKey(key) {
    storeKey(this.#origin, key);
    this.#socket.open(key);
    this.#composer.focus();
  }

  // --- showing ------------------------------------------------------------------------------------------------------

  #drawSoon() {
    if (this.#frame !== null) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = null;
      if (this.#talk === null) return;
      if (!this.#view(this.#talk).draw()) this.#drawSoon();
      this.#following.grown();
    });
  }

  #refresh() {
    const { empty, keyForm, new: anew, state, stateText, turns } = this.#parts;
    const { current } = this.#talk;
    empty.hidden = this.#talk.turns.length > 0 || this.#door.locked;
    turns.hidden = !keyForm.hidden;
    anew.hidden = this.#talk.turns.length === 0;
    turns.toggleAttribute("data-running", current !== null);
    this.#composer.show({ running: current !== null, locked: this.#door.locked });
    if (current !== null && this.#composer.noted) this.#composer.note(kept(current, hasKeyboard()));
    const [name, words] = this.#door.words(current);
    state.dataset.state = name;
    if (stateText.textContent !== words) stateText.textContent = words;
    this.#drawList();
    this.#following.grown();
  }

  #drawList() {
    this.#list.draw(this.#talks, this.#talk);
  }

  #drawAttributes() {
    const { heading, greeting, suggestions, empty } = this.#parts;
    heading.textContent = this.getAttribute("heading") ?? "Ask";
    greeting.textContent = this.getAttribute("greeting") ?? "It’s your turn.";
    const words = (this.getAttribute("suggestions") ?? "").split("|").map((text) => text.trim()).filter(Boolean);
    suggestions.replaceChildren(...words.map((text) => make("li", {}, make("button", { dir: "auto" }, text))));
    suggestions.hidden = words.length === 0;
    empty.toggleAttribute("data-bare", words.length === 0);
  }
}

function freshId() {
  return crypto.getRandomValues(new Uint32Array(2)).join("-");
}

/** What a page is told of the end of an answer. `code`: null unless it failed, was lost or was refused. */
function finishOf(talk, turn) {
  const { reason, message, code, retryAfterMs } = turn.ending;
  const failed = ["failed", "lost", "refused"].includes(reason);
  return {
    conversation: talk.id,
    question: turn.question,
    text: turn.text,
    reason,
    code: failed ? String(code ?? reason) : null,
    message: failed ? (message ?? ending(turn)) : null,
    retryAfterMs,
    responseId: turn.responseId,
    usage: turn.usage,
    timing: turn.timing,
  };
}
