// The page: what the reader does becomes a request, what the server says becomes something to read.
//
// One conversation at a time, one running answer at a time. What is said and what it means is conversation.js, how a turn
// looks is turn.js, how it gets there is socket.js.

import { apply, follow, forget, hasBegun, isRunning, lose, newTurn, withdraw } from "./conversation.js";
import { ResponsesSocket, keyCanBeSent } from "./socket.js";
import { TurnView } from "./turn.js";
import { ending, kept, progress, untilThen } from "./words.js";

const KEY_NAME = "rota.key";
const GO_ON = "Continue from where you stopped.";
const NEAR_THE_END_PX = 40;

const $ = (id) => document.getElementById(id);
const page = Object.fromEntries(
  ["announcer", "composer", "empty", "hint", "hint-answering", "hint-yours", "kept", "key", "key-form", "key-problem",
   "latest", "message", "model", "new", "notice", "notice-action", "notice-text", "scroll", "send", "state", "state-text",
   "stop", "suggestions", "turns"].map((id) => [id, $(id)]),
);

let connection = { name: "connecting" };
let model = null;
let turns = [];
let views = new Map(); // turn -> TurnView
let current = null; // the running turn
let ticket = null; // what the socket calls it
let progressSaid = ""; // so that each step is said once, and not over something said since

const socket = new ResponsesSocket({ base: document.baseURI, key: storedKey(), onState: connectionChanged, onNotice: socketNotice });

// --- asking ----------------------------------------------------------------------------------------------------------

function ask(question, { again = false } = {}) {
  if (current !== null) return;
  const turn = newTurn(question, { follows: hasBegun(turns) });
  const request = { ...(model ? { model } : {}), ...follow(turns, question) };
  for (const view of views.values()) view.settle();
  turns.push(turn);
  const number = again ? null : page.turns.querySelectorAll(".turn:not(.again)").length + 1;
  const view = new TurnView(turn, number, ACTIONS);
  views.set(turn, view);
  page.turns.append(view.element);
  current = turn;
  progressSaid = "";
  send(turn, request);
  following = true;
  refresh();
  focusMessage();
}

const ACTIONS = {
  again: askAgain,
  goOn: () => ask(GO_ON),
  edit: takeBack,
  editAnew: takeAlong,
  say: (sentence) => announce(sentence, { anew: true }),
};

function send(turn, request) {
  ticket = socket.ask(request, {
    onSent: () => {
      turn.phase = "received";
      changed(turn);
    },
    onEvent: (event) => {
      if (event.type === "error" && event.error.code === "previous_response_not_found" && request.previous_response_id && current === turn) {
        sendWhole(turn);
        return;
      }
      apply(turn, event);
      changed(turn);
    },
    onLost: (why) => {
      lose(turn, why);
      changed(turn);
    },
  });
}

/** The server has forgotten the conversation (it keeps them for some minutes only); the page has not. */
function sendWhole(turn) {
  const stopping = turn.stopping;
  forget(turns, turn);
  const sentence = "The server had forgotten this conversation, so it was sent again in full.";
  views.get(turn).remark(sentence);
  announce(sentence);
  if (stopping) {
    withdraw(turn);
    changed(turn);
    return;
  }
  send(turn, { ...(model ? { model } : {}), ...follow(turns.slice(0, -1), turn.question) });
  changed(turn);
}

function askAgain(turn) {
  turn.superseded = true;
  ask(turn.question, { again: true });
}

/** Puts a refused question back where it can be changed, in front of what has been written there meanwhile. */
function takeBack(turn) {
  turn.superseded = true;
  views.get(turn).settle();
  page.message.value = [turn.question, page.message.value].filter((text) => text.trim() !== "").join("\n\n");
  fitMessage();
  page.message.focus();
}

/** The same, for a question that there is no more room for behind this conversation. */
function takeAlong(turn) {
  takeBack(turn);
  startAnew();
}

function stop() {
  if (current === null) return;
  if (current.stopping) {
    socket.reconnect(); // asked twice: the server does not answer, so do without it
    return;
  }
  current.stopping = true;
  if (socket.cancel(ticket)) withdraw(current);
  changed(current);
  focusMessage();
}

function startAnew() {
  const left = ticket;
  turns = [];
  views.forEach((view) => view.settle());
  views = new Map();
  if (current !== null) {
    current = null;
    ticket = null;
    socket.cancel(left);
  }
  page.turns.replaceChildren();
  refresh();
  announce("New conversation.");
  page.message.focus();
}

// --- showing ---------------------------------------------------------------------------------------------------------

/** Something about `turn` is new: draw it, and say aloud what a listener would want to know. */
function changed(turn) {
  const view = views.get(turn);
  if (view === undefined) return; // of a conversation that the reader has left
  view.draw();
  if (turn === current) {
    if (isRunning(turn)) {
      const step = progress(turn);
      if (step !== progressSaid) announce(step);
      progressSaid = step;
    } else {
      current = null;
      ticket = null;
      const waiting = !page.kept.hidden && "Your message can be sent now.";
      const spoken = turn.text.length <= 1500 ? turn.text : "It is long; find it under the last heading.";
      announce([`Answer ${turn.phase}.`, ending(turn), turn.text && spoken, waiting].filter(Boolean).join(" "));
      if (document.activeElement === page.stop) focusMessage();
    }
    refresh();
  }
  scrollIfFollowing();
}

function refresh() {
  const locked = connection.name === "locked";
  page.empty.hidden = turns.length > 0 || locked;
  page["key-form"].hidden = !locked;
  page.new.hidden = turns.length === 0;
  page.composer.hidden = locked;
  page.hint.hidden = locked;
  const running = current !== null;
  page["hint-yours"].hidden = running;
  page["hint-answering"].hidden = !running;
  if (running && !page.kept.hidden) page.kept.textContent = kept(current, hasKeyboard());
  else page.kept.hidden = true;
  page.stop.hidden = !running;
  page.send.hidden = running;
  page.send.disabled = page.message.value.trim() === "";
  const [state, text] = stateWords();
  page.state.dataset.state = state;
  page["state-text"].textContent = text;
  scrollIfFollowing();
}

function stateWords() {
  if (current !== null && connection.name === "open") {
    if (current.phase === "queued") return ["queued", "In line"];
    return ["answering", "The model’s turn"];
  }
  switch (connection.name) {
    case "open":
      return ["ready", "Your turn"];
    case "resting":
      return ["resting", "Your turn"];
    case "offline":
      return ["offline", "Offline"];
    case "locked":
      return ["locked", "Key needed"];
    default:
      return ["connecting", "Connecting"];
  }
}

let lastAnnounced = "";

/** `anew`: even if it is what was said last. Only a change is read aloud, hence the space nobody hears. */
function announce(sentence, { anew = false } = {}) {
  if (sentence === lastAnnounced && !anew) return;
  lastAnnounced = sentence;
  page.announcer.textContent = page.announcer.textContent === sentence ? `${sentence}\u00a0` : sentence;
}

// --- the connection --------------------------------------------------------------------------------------------------

let retryCountdown = null;

function connectionChanged(state) {
  const before = connection.name;
  connection = state;
  clearInterval(retryCountdown);
  if (state.name === "open") {
    model = state.models[0]?.id ?? null;
    page.model.textContent = model ?? "";
    page.model.hidden = model === null;
    page.notice.hidden = true;
    if (before !== "open" && current === null) announce("Connected. Your turn.");
  } else if (state.name === "offline") {
    showRetry(state);
    retryCountdown = setInterval(() => showRetry(state), 1000);
    announce(`${state.sentence} Trying again by itself.`);
  } else if (state.name === "locked") {
    page.notice.hidden = true;
    page["key-problem"].textContent = state.rejected ? "The server did not accept that key." : "";
    if (state.rejected) storeKey(null);
  } else if (state.name === "connecting" && !page.notice.hidden) {
    showNotice("Trying to connect…", false);
  }
  refresh();
  if (state.name === "locked") page.key.focus();
}

function showRetry({ sentence, retryAt }) {
  showNotice(`${sentence} Trying again in ${untilThen(retryAt - Date.now())}.`, true);
}

function showNotice(sentence, canTryNow) {
  page["notice-text"].textContent = sentence;
  page["notice-action"].hidden = !canTryNow;
  page.notice.hidden = false;
}

/** An error about the socket as a whole, such as its age; the answer that runs, if one does, goes on. */
function socketNotice(error) {
  showNotice(error.message, false);
  announce(error.message);
}

function storedKey() {
  try {
    return sessionStorage.getItem(KEY_NAME);
  } catch {
    return null; // storage is switched off; the key lasts as long as the page
  }
}

function storeKey(key) {
  try {
    if (key === null) sessionStorage.removeItem(KEY_NAME);
    else sessionStorage.setItem(KEY_NAME, key);
  } catch {
    // as above
  }
}

page["key-form"].addEventListener("submit", (event) => {
  event.preventDefault();
  const key = page.key.value.trim();
  if (!keyCanBeSent(key)) {
    page["key-problem"].textContent = "A key is made of letters, digits and a few signs such as - _ . and has no spaces.";
    return;
  }
  page.key.value = "";
  storeKey(key);
  socket.open(key);
  page.message.focus();
});

page["notice-action"].addEventListener("click", () => {
  socket.wake();
  focusMessage();
});
window.addEventListener("online", () => socket.wake());
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && socket.wake());
// The server frees the answer's memory the moment it hears this, rather than when it notices the silence.
window.addEventListener("pagehide", () => socket.close());
window.addEventListener("pageshow", (event) => event.persisted && socket.open());

// --- the message box -------------------------------------------------------------------------------------------------

function submit() {
  const question = page.message.value.trim();
  if (question === "") return;
  if (current !== null) {
    keepMessage();
    return;
  }
  page.message.value = "";
  fitMessage();
  ask(question);
}

/** One answer at a time: the text stays in the box, and its writer is told why. Never sent by itself, because the answer it
 *  would then follow has not been read yet. */
function keepMessage() {
  if (current.phase === "unsent") socket.wake();
  page.kept.hidden = false;
  refresh();
  announce(page.kept.textContent, { anew: true });
}

function hasKeyboard() {
  return window.matchMedia("(hover: hover)").matches;
}

/** On a touch screen focus would bring the keyboard up, over the answer. */
function focusMessage() {
  if (hasKeyboard()) page.message.focus();
}

function fitMessage() {
  page.message.style.height = "auto";
  page.message.style.height = `${page.message.scrollHeight}px`;
  page.send.disabled = page.message.value.trim() === "";
  if (page.send.disabled) page.kept.hidden = true;
}

page.composer.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
page.message.addEventListener("input", () => {
  fitMessage();
  if (connection.name === "resting") socket.wake();
});
page.message.addEventListener("keydown", (event) => {
  // While an input method composes a word, Enter belongs to it (229 is how Safari says so).
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.isComposing || current === null || event.repeat) return;
  event.preventDefault();
  stop();
});
page.stop.addEventListener("click", stop);
page.new.addEventListener("click", startAnew);
page.suggestions.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button === null) return;
  ask(button.textContent);
});

// --- scrolling -------------------------------------------------------------------------------------------------------

let following = true; // the text's end stays in sight until the reader scrolls away from it
let lastTop = 0;
let scrollWanted = false;

function distanceToEnd() {
  return page.scroll.scrollHeight - page.scroll.clientHeight - page.scroll.scrollTop;
}

function scrollIfFollowing() {
  if (scrollWanted) return;
  scrollWanted = true;
  requestAnimationFrame(() => {
    scrollWanted = false;
    if (following) page.scroll.scrollTop = page.scroll.scrollHeight;
    page.latest.hidden = following || distanceToEnd() < NEAR_THE_END_PX;
  });
}

page.scroll.addEventListener("scroll", () => {
  const top = page.scroll.scrollTop;
  if (distanceToEnd() < NEAR_THE_END_PX) following = true;
  else if (top < lastTop) following = false;
  lastTop = top;
  page.latest.hidden = following || distanceToEnd() < NEAR_THE_END_PX;
}, { passive: true });
page.latest.addEventListener("click", () => {
  following = true;
  scrollIfFollowing();
  focusMessage();
});
new ResizeObserver(scrollIfFollowing).observe(page.scroll);

// ---------------------------------------------------------------------------------------------------------------------

refresh();
socket.open();
