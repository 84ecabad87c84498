// The page /turns: wires the feed to the history, the history to the picture and the lists, and the buttons to the story.

import { keyCanBeSent } from "../chat/socket.js";
import { storeKey, storedKey } from "../chat/storage.js";
import { TurnsFeed } from "./feed.js";
import { missedLately, newHistory, receive } from "./history.js";
import { isOver, isSetAside } from "./lives.js";
import { Lists, setText } from "./list.js";
import { showReadout } from "./panel.js";
import { Picture } from "./picture.js";
import { poolWords } from "./pool.js";
import { describe, stepSentence } from "./readout.js";
import { Story, isRunning, sizeOf } from "./story.js";
import { whatHappened } from "./told.js";
import { momentsOf } from "./moments.js";
import { SET_ASIDE, clock, count, sizeWords } from "./words.js";

const LISTS_MS = 500;
const LETTERS = ["A", "B", "C"];
const SPAN_WORDS = { 10: "ten seconds", 60: "minute" };

const page = Object.fromEntries([...document.querySelectorAll("[id]")].map((element) => [element.id, element]));
const history = newHistory();
const runs = new Map(); // letter -> its newest run in this story
const runsById = new Map(); // response id -> run
let key = storedKey(location.origin); // the chat page has it too
let connection = { name: "connecting" };
let firstFrame = true;
let shown = { selected: null, pinned: false };
let missedSaid = false;

const picture = new Picture({ canvas: page.picture, history, onSelect: selectionChanged, onView: viewChanged, onDrawn: showPool });
const feed = new TurnsFeed({ base: document.baseURI, key, onState: connectionChanged, onFrame: take });
const story = new Story({ base: document.baseURI, onChange: runChanged });
const lists = new Lists(page, {
  choose: (chosen) => {
    picture.pin(shown.pinned && shown.selected?.life?.key === chosen ? null : chosen);
    showLists();
  },
  cancel: (own) => cancelRun(runOf(own)),
});

// --- the feed --------------------------------------------------------------------------------------------------------

function take(frame) {
  receive(history, frame);
  if (frame.type === "turns.hello") {
    firstFrame = true;
    showHello(frame);
    showStoryButtons();
  } else {
    picture.heard(frame.at, { first: firstFrame });
    page.picture.dataset.heard = String(frame.at); // up to when the picture knows
    firstFrame = false;
  }
  listsWanted();
}

function showHello({ model, policy, device, kernels, max_running }) {
  page.model.textContent = model;
  page.facts.textContent = `policy ${policy}, on ${device} with ${kernels}, up to ${count(max_running, "request")} at a time`;
  page.made.hidden = false;
}

let retryCountdown = null;
let absence = ""; // what was said of the server's being away: each try would say it again

function connectionChanged(state) {
  connection = state;
  if (state.name !== "live") firstFrame = true; // until then nothing new is known
  clearInterval(retryCountdown);
  page["key-form"].hidden = state.name !== "locked";
  if (state.name === "offline" || state.name === "refused") {
    picture.freeze();
    showRetry(state);
    retryCountdown = setInterval(() => showRetry(state), 1000);
    if (absence !== state.sentence) announce(`${state.sentence} Trying again by itself.`);
    absence = state.sentence;
  } else if (state.name === "locked") {
    picture.freeze();
    hide(page.notice);
    page["key-problem"].textContent = state.rejected ? "The server did not accept that key." : "";
    if (state.rejected) useKey(null);
    page.key.focus();
  } else if (state.name === "live") {
    hide(page.notice);
    absence = "";
    announce("Live.");
  }
  showMoments();
  showState();
}

/** What had the focus in it gives it to the picture, rather than to nothing. */
function hide(element) {
  if (element.contains(document.activeElement)) page.picture.focus({ preventScroll: true });
  element.hidden = true;
}

function showRetry({ sentence, retryAt }) {
  page["notice-text"].textContent = `${sentence} Trying again in ${Math.max(1, Math.ceil((retryAt - Date.now()) / 1000))} s.`;
  page.notice.hidden = false;
}

function showState() {
  const [state, text] = stateWords();
  page.state.dataset.state = state;
  setText(page["state-text"], text);
  const live = connection.name === "live";
  page.empty.hidden = history.steps.length > 0 || history.lives.size > 0 || !live;
  page["worker-down"].hidden = !live || history.workerUp;
  const missed = live ? missedLately(history, picture.now) : 0;
  page.slow.hidden = missed === 0;
  const frames = count(missed, "frame");
  if (missed > 0) setText(page.slow, `This page was too slow for ${frames} of the feed just now: what they told is missing.`);
  if (missed > 0 && !missedSaid) announce("The page is too slow for the feed; some figures are missing.");
  missedSaid = missed > 0;
  for (const letter of LETTERS) page[`start-${letter}`].setAttribute("aria-disabled", String(!canStart(letter)));
}

function stateWords() {
  switch (connection.name) {
    case "live":
      if (!picture.live) return ["paused", "Paused"];
      return history.at === null ? ["connecting", "Connecting"] : ["live", "Live"];
    case "offline":
      return ["offline", "Server away"];
    case "refused":
      return ["offline", "Refused"];
    case "locked":
      return ["locked", "Key needed"];
    default:
      return ["connecting", "Connecting"];
  }
}

// --- lists, at most twice a second -----------------------------------------------------------------------------------

let listsTimer = null;
let listsAt = -Infinity;

function listsWanted() {
  listsTimer ??= setTimeout(() => {
    listsTimer = null;
    listsAt = performance.now();
    showLists();
  }, Math.max(listsAt + LISTS_MS - performance.now(), 0));
}

function showLists() {
  const now = picture.now;
  const seen = new Set(picture.lives.map((life) => life.key));
  const lives = [...history.lives.values()].filter((life) => seen.has(life.key) || (!isOver(life) && life.lostAt === null));
  const chosen = shown.pinned ? (shown.selected?.life?.key ?? null) : null;
  lists.show(history, lives, { now, chosen, own: isOwn });
  for (const run of runs.values()) if (isRunning(run)) showRunState(run);
  if (shown.selected?.life !== undefined) showSelected();
  showView();
  showState();
  showTold();
}

/** As drawn: so that it never tells of another moment than the picture beside it. */
function showPool(pool) {
  setText(page["pool-words"], pool === null ? "Nothing is known of the pool yet." : capital(`${poolWords(pool, history.hello)}.`));
}

function showMoments() {
  const current = connection.name === "live" && !firstFrame;
  const said = momentsOf({ heardAt: history.at, current, end: picture.view.end });
  for (const about of ["pool", "waiting", "lives"]) {
    setText(page[`${about}-moment`], said[about]);
    page[`${about}-moment`].hidden = said[about] === "";
  }
  setText(page["pool-title"], said.pool === "" ? "KV pool now" : "KV pool");
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

// --- what is pointed at ----------------------------------------------------------------------------------------------

function selectionChanged(selected, { pinned }) {
  shown = { selected, pinned };
  showSelected();
  const step = selected?.step;
  const sentence = step === undefined ? "No step chosen" : `${stepSentence(history, step)}${pinned ? "; pinned" : ""}`;
  page.picture.setAttribute("aria-valuetext", sentence);
  page.picture.setAttribute("aria-valuenow", String(step?.step ?? 0));
  page.picture.setAttribute("aria-valuemax", String(Math.max(history.steps.at(-1)?.step ?? 0, step?.step ?? 0)));
}

function showSelected() {
  let { selected } = shown;
  if (selected?.life !== undefined) {
    const life = history.lives.get(selected.life.key);
    selected = shown.selected = life === undefined ? null : { life };
  }
  const run = selected?.life === undefined ? null : (runOf(selected.life.key) ?? null);
  const readout = selected === null ? null : describe(history, selected, picture.now, run);
  const hueOf = (its) => `var(--hue-${(history.hues.get(its) ?? 0) + 1})`;
  showReadout(page, readout, { pinned: shown.pinned, hueOf });
  page.readout.classList.toggle("pinned", shown.pinned);
  page.readout.classList.toggle("shown", readout !== null);
  if (selected?.life === undefined || !isOwn(selected.life.key)) hide(page["readout-cancel"]);
  else page["readout-cancel"].hidden = false;
}

page.unpin.addEventListener("click", () => {
  picture.pin(null);
  page.picture.focus();
});
page["readout-cancel"].addEventListener("click", () => cancelRun(runOf(shown.selected?.life?.key)));

// --- the view --------------------------------------------------------------------------------------------------------

function viewChanged() {
  showView();
  showState();
}

function showView() {
  const { live, view } = picture;
  showMoments();
  page.pause.setAttribute("aria-pressed", String(!live));
  page.live.hidden = live;
  setText(page["picture-title"], live ? `The last ${SPAN_WORDS[view.span]}` : `${capital(SPAN_WORDS[view.span])} up to ${clock(view.end)}`);
  setText(page["paused-words"], live ? "" : sinceWords(view));
  page["span-10"].setAttribute("aria-pressed", String(view.span === 10));
  page["span-60"].setAttribute("aria-pressed", String(view.span === 60));
}

/** What has gone on since the picture stands still. */
function sinceWords({ end }) {
  const since = history.steps.length - history.steps.findLastIndex(({ at }) => at <= end) - 1;
  return since === 0 ? "" : `${count(since, "step")} since`;
}

function togglePause() {
  if (picture.live) picture.pause();
  else picture.resume();
  announce(picture.live ? "Live." : "Paused.");
}

page.pause.addEventListener("click", togglePause);
page.live.addEventListener("click", () => {
  picture.resume();
  announce("Live.");
  page.picture.focus();
});
page["span-10"].addEventListener("click", () => picture.span(10));
page["span-60"].addEventListener("click", () => picture.span(60));
document.addEventListener("keydown", (event) => {
  if (event.key !== " " || event.ctrlKey || event.metaKey || event.altKey) return;
  // There, Space has a meaning of its own.
  if (event.target.closest("button, input, summary, a")) return;
  event.preventDefault();
  if (!event.repeat) togglePause();
});
page.save.addEventListener("click", () => {
  const { name, text } = picture.svg();
  const link = document.createElement("a");
  link.download = name;
  link.href = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  announce(`The picture is saved as ${name}.`);
});

// --- A, B and C ------------------------------------------------------------------------------------------------------

function canStart(letter) {
  return connection.name === "live" && history.hello !== null && !isRunningRun(runs.get(letter));
}

function isRunningRun(run) {
  return run !== undefined && run !== null && isRunning(run);
}

function runOf(its) {
  const id = history.lives.get(its)?.id;
  return id === null || id === undefined ? undefined : runsById.get(id);
}

/** Whether this page asked for it and may still take it back. */
function isOwn(its) {
  return isRunningRun(runOf(its)) && !isOver(history.lives.get(its));
}

function cancelRun(run) {
  if (isRunningRun(run)) story.cancel(run);
}

/** Whoever is asked again when nobody of a story runs any more begins a new one. */
function beginStoryWith(run) {
  const before = [...runs.values()];
  if (before.some(isRunning) || !(before.length === LETTERS.length || runs.has(run.letter))) return;
  runs.clear();
  isTold = false;
  page.told.textContent = TO_BE_TOLD;
  page.told.classList.remove("said");
  for (const letter of LETTERS) setText(page[`state-${letter}`], "");
}

function runChanged(run) {
  if (run.phase === "sending" && runs.get(run.letter) !== run) beginStoryWith(run);
  runs.set(run.letter, run);
  if (run.id !== null && !runsById.has(run.id)) {
    runsById.set(run.id, run);
    history.names.set(run.id, run.name);
    picture.changed();
  }
  showRun(run);
  listsWanted();
}

const PHASES = { sending: "sent…", queued: "waiting…", reading: "being read…", writing: "writing…" };

function showRun(run) {
  const running = isRunning(run);
  showRunState(run);
  page[`cancel-${run.letter}`].hidden = !running;
  if (!running && document.activeElement === page[`cancel-${run.letter}`]) page[`start-${run.letter}`].focus();
  showState();
}

function showRunState(run) {
  const life = history.lives.get(history.keysById.get(run.id));
  const aside = run.phase === "reading" && life !== undefined && isSetAside(life, history.steps.at(-1));
  setText(page[`state-${run.letter}`], aside ? SET_ASIDE : (PHASES[run.phase] ?? endingWords(run)));
}

function endingWords({ phase, ending }) {
  if (phase === "refused") return `Refused: ${ending}`;
  if (phase === "lost") return `Lost: ${ending}`;
  return { length: "has ended", cancelled: "cancelled", failed: "failed", deadline: "ran out of time" }[ending] ?? "has ended";
}

function showStoryButtons() {
  for (const letter of LETTERS) setText(page[`size-${letter}`], sizeWords(sizeOf(letter, history.hello)));
}

let isTold = false;
const TO_BE_TOLD = page.told.textContent;

function showTold() {
  if (isTold) return; // what is forgotten later does not change it
  const told = whatHappened(history, runs);
  if (told === null) return;
  isTold = true;
  page.told.textContent = told;
  page.told.classList.add("said");
  announce(told);
}

for (const letter of LETTERS) {
  page[`start-${letter}`].addEventListener("click", () => {
    if (!canStart(letter)) return;
    story.start(letter, history.hello, key);
    if (!picture.live) picture.resume();
    announce(`${letter} was sent.`);
  });
  page[`cancel-${letter}`].addEventListener("click", () => cancelRun(runs.get(letter)));
}

// --- the key, the end ------------------------------------------------------------------------------------------------

function useKey(given) {
  key = given;
  storeKey(location.origin, given);
}

page["key-form"].addEventListener("submit", (event) => {
  event.preventDefault();
  const given = page.key.value.trim();
  if (!keyCanBeSent(given)) {
    page["key-problem"].textContent = "A key is made of letters, digits and a few signs such as - _ . and has no spaces.";
    return;
  }
  page.key.value = "";
  useKey(given);
  feed.open(given);
  page.picture.focus();
});

page["notice-action"].addEventListener("click", () => feed.wake());
window.addEventListener("online", () => feed.wake());
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && feed.wake());
window.addEventListener("pagehide", () => {
  feed.close();
  story.close();
});
window.addEventListener("pageshow", (event) => event.persisted && feed.open());

let said = "";

function announce(sentence) {
  page.announcer.textContent = said === sentence ? `${sentence}\u00a0` : sentence; // only a change is read aloud
  said = page.announcer.textContent;
}

showView();
showState();
feed.open();
