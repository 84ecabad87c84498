// What the feed has said, kept for some ten minutes: steps, pool, lives. Plain data, bounded in number.
//
// Knows the frames of /v1/turns. Knows no sockets and no pixels. A request's number counts anew on every socket; here
// each request has a `key` that stays its own for as long as the page is open.

import { giveRow, isOver, updateLife } from "./lives.js";

const KEEP_S = 600;
const MOST_STEPS = 30_000;
const MOST_PARTS = 200_000;
const MOST_SAMPLES = 12_000; // of the pool, and of each kind of mark
const MOST_HELD = 300_000; // numbers of blocks by request, in all samples
const MOST_LIVES = 2_000;
const SLACK_S = 10; // so that lists are cut seldom,
const FEWER = 0.95; // and then to less than they may hold
const HUES = 10;
const MARK_JOINS_S = 3;

export function newHistory() {
  return {
    hello: null,
    at: null, // of the newest frame
    steps: [], // {step, at, end, took_ms, parts: [{key, kind, start, tokens, share_ms}]}, by `at`
    parts: 0,
    leftOut: [], // {from, to, steps, ms}
    pools: [], // {at, free, cached, used, total, held: [[key, blocks]]}
    held: 0,
    missed: [], // {at, frames}
    away: [], // {from, to}: not connected
    downs: [], // {from, to}: no worker; `to` null: still
    lives: new Map(), // by key
    rows: [],
    hues: new Map(), // key -> 0 .. 9
    keysById: new Map(), // response id -> key
    names: new Map(), // response id -> the page's own name for it, "A"
    base: 0, // keys of this socket begin behind it
    highest: 0,
    aliases: new Map(), // number on this socket -> the key it had on an earlier one
    workerUp: true,
    version: 0, // counts changes
    touched: Infinity, // the earliest time of which something has changed; whoever draws sets it back
  };
}

/** Takes in one frame of the feed, hello or not. */
export function receive(history, frame) {
  if (frame.type === "turns.hello") begin(history, frame);
  else take(history, frame);
  history.version += 1;
}

function begin(history, hello) {
  if (history.at !== null) {
    if (hello.at > history.at) history.away.push({ from: history.at, to: hello.at });
    for (const life of history.lives.values()) if (!isOver(life)) life.lostAt ??= history.at;
  }
  history.hello = hello;
  history.base = history.highest;
  history.aliases.clear();
}

function take(history, { at, steps = [], left_out = [0, 0], lives = [], pool = null, worker_up = true, missed = 0 }) {
  const before = history.at ?? at;
  touch(history, before);
  for (const said of lives) takeLife(history, said, at);
  for (const said of steps) takeStep(history, said);
  const [left, leftMs] = left_out;
  if (left > 0) history.leftOut.push({ from: before, to: at, steps: left, ms: leftMs });
  if (missed > 0) history.missed.push({ at, frames: missed });
  if (pool !== null) takePool(history, pool, at);
  takeWorker(history, worker_up, at);
  history.at = at;
  forget(history);
}

/** The page's key of a request that this socket calls `request`. */
function keyOf(history, request) {
  const key = history.aliases.get(request) ?? history.base + request;
  history.highest = Math.max(history.highest, key);
  if (!history.hues.has(key)) history.hues.set(key, freeHue(history, key));
  return key;
}

/** In turn, but none that a running request has while another is free. */
function freeHue(history, key) {
  const busy = new Array(HUES).fill(0);
  for (const life of history.lives.values()) if (!isOver(life) && life.lostAt === null) busy[history.hues.get(life.key)] += 1;
  const least = Math.min(...busy);
  let hue = (key - 1) % HUES;
  while (busy[hue] > least) hue = (hue + 1) % HUES;
  return hue;
}

function takeLife(history, said, at) {
  const id = said.id ?? null;
  const before = id === null ? undefined : history.keysById.get(id);
  if (before !== undefined && before <= history.base) history.aliases.set(said.request, before);
  const key = keyOf(history, said.request);
  const life = updateLife(history.lives.get(key), said, key, at);
  if (life.row === null) giveRow(history.rows, life);
  else if (history.rows[life.row]?.key === key) history.rows[life.row] = life;
  history.lives.set(key, life);
  if (id !== null) history.keysById.set(id, key);
}

function takeStep(history, { step, at, took_ms, parts }) {
  const kept = { step, at, end: at + took_ms / 1000, took_ms, parts: parts.map((part) => partOf(history, part)).sort(byKind) };
  let place = history.steps.length;
  while (place > 0 && history.steps[place - 1].at > at) place -= 1; // only after a clock was set back
  history.steps.splice(place, 0, kept);
  history.parts += parts.length;
  for (const { key } of kept.parts) {
    const life = history.lives.get(key);
    if (life !== undefined) life.turnAt = Math.max(life.turnAt, kept.end);
  }
  touch(history, at);
}

function touch(history, at) {
  history.touched = Math.min(history.touched, at);
}

function partOf(history, [request, kind, start, tokens, share_ms]) {
  return { key: keyOf(history, request), kind, start, tokens, share_ms };
}

/** Decode below, prefill above, each in the order in which the requests came: so a column looks like its neighbours. */
function byKind(one, other) {
  return one.kind === other.kind ? one.key - other.key : one.kind < other.kind ? -1 : 1;
}

function takePool(history, { free, cached, used, total, held = [] }, at) {
  const kept = held.map(([request, blocks]) => [keyOf(history, request), blocks]).sort((one, other) => one[0] - other[0]);
  history.pools.push({ at, free, cached, used, total, held: kept });
  history.held += kept.length;
}

function takeWorker(history, up, at) {
  if (up === history.workerUp) return;
  history.workerUp = up;
  if (up) history.downs.at(-1).to = at;
  else history.downs.push({ from: at, to: null });
}

// --- forgetting ------------------------------------------------------------------------------------------------------

function forget(history) {
  const horizon = history.at - KEEP_S;
  forgetSteps(history, horizon);
  forgetPools(history, horizon);
  for (const marks of [history.leftOut, history.missed, history.away, history.downs]) forgetMarks(marks, horizon);
  forgetLives(history, horizon);
}

function forgetSteps(history, horizon) {
  const { steps } = history;
  if (steps.length === 0) return;
  if (steps[0].at >= horizon - SLACK_S && steps.length <= MOST_STEPS && history.parts <= MOST_PARTS) return;
  const tooMany = (gone) => steps.length - gone > FEWER * MOST_STEPS || history.parts > FEWER * MOST_PARTS;
  let gone = 0;
  while (gone < steps.length && (steps[gone].at < horizon || tooMany(gone))) {
    history.parts -= steps[gone].parts.length;
    gone += 1;
  }
  steps.splice(0, gone);
  touch(history, -Infinity);
}

function forgetPools(history, horizon) {
  const { pools } = history;
  if (pools.length < 2) return;
  if (pools[1].at >= horizon - SLACK_S && pools.length <= MOST_SAMPLES && history.held <= MOST_HELD) return;
  const tooMany = (gone) => pools.length - gone > FEWER * MOST_SAMPLES || history.held > FEWER * MOST_HELD;
  let gone = 0;
  // The newest one before the horizon still says how it was at the horizon.
  while (gone < pools.length - 1 && (pools[gone + 1].at < horizon || tooMany(gone))) {
    history.held -= pools[gone].held.length;
    gone += 1;
  }
  pools.splice(0, gone);
  touch(history, -Infinity);
}

function forgetMarks(marks, horizon) {
  if (marks.length === 0 || (endOfMark(marks[0]) >= horizon - SLACK_S && marks.length <= MOST_SAMPLES)) return;
  const first = marks.findIndex((mark) => endOfMark(mark) >= horizon);
  marks.splice(0, Math.max(first < 0 ? marks.length : first, marks.length - MOST_SAMPLES));
}

function endOfMark(mark) {
  return mark.to === null ? Infinity : (mark.to ?? mark.at);
}

function forgetLives(history, horizon) {
  const { lives } = history;
  const most = lives.size > MOST_LIVES ? lives.size - MOST_LIVES : 0;
  let dropped = 0;
  for (const life of lives.values()) { // in the order in which they were first seen
    const left = life.ended_at ?? life.lostAt;
    const old = left !== null && left < horizon;
    if (!old && dropped >= most) break; // whoever still runs keeps those behind it for a while, within MOST_LIVES
    if (!old && left === null) continue;
    lives.delete(life.key);
    history.hues.delete(life.key);
    if (life.id !== null) {
      history.keysById.delete(life.id);
      history.names.delete(life.id);
    }
    dropped += 1;
  }
  if (lives.size === 0) history.rows.length = 0;
}

// --- asking ----------------------------------------------------------------------------------------------------------

/** The place of the first of `list` with `at` not before `time`. */
export function placeOf(list, time) {
  let low = 0;
  let high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle].at < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** How the pool was at that time; null where nothing is known. */
export function poolAt(history, time) {
  const place = placeOf(history.pools, time);
  const pool = history.pools[place]?.at === time ? history.pools[place] : history.pools[place - 1];
  return pool ?? null;
}

/** What the page calls a request: A, B or C for its own, else its number. */
export function nameOf(history, key) {
  const id = history.lives.get(key)?.id;
  return (id !== null && id !== undefined && history.names.get(id)) || String(key);
}

/** The same in a sentence. */
export function titleOf(history, key) {
  const name = nameOf(history, key);
  return name === String(key) ? `request ${name}` : name;
}

/** Lives that were there at some time between two, in the order of their rows. */
export function livesBetween(history, from, to) {
  const found = [];
  for (const life of history.lives.values()) {
    if (life.received_at <= to && (life.ended_at ?? life.lostAt ?? Infinity) >= from) found.push(life);
  }
  return found.sort((one, other) => one.row - other.row || one.received_at - other.received_at);
}

/** Who waits, in order: those with a place, then those let in whose first step has not come. */
export function waiting(history) {
  const place = (life) => life.position ?? Infinity;
  return [...history.lives.values()]
    .filter((life) => life.state === "queued" && life.lostAt === null)
    .sort((one, other) => place(one) - place(other) || one.received_at - other.received_at);
}

/** The earliest time that can be looked back to; null before anything has come. */
export function oldest(history) {
  const [life] = history.lives.values();
  const times = [history.steps[0]?.at, history.pools[0]?.at, life?.received_at].filter((at) => at !== undefined);
  return times.length === 0 ? null : Math.max(Math.min(...times), history.at - KEEP_S);
}

/** Frames lost lately, to be told. */
export function missedLately(history, now) {
  return history.missed.filter(({ at }) => now - at < MARK_JOINS_S).reduce((sum, { frames }) => sum + frames, 0);
}
