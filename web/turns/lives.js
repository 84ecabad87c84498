// The life of a request: what a frame says of it, put together over time, and what follows from that.
//
// Plain data in, plain data out. Times are Unix seconds, durations milliseconds. Knows no sockets and no pixels.

const TEXT_ROOM_S = 8; // behind a finished bar, so that its figures fit
const WIDE_ROWS = 12; // while there are no more, each bar has room for its figures
const NAME_ROOM_S = 1.8; // before a bar
const ASIDE_S = 0.5;

const ABSENT = {
  id: null, input_tokens: null, max_output_tokens: null, prefilled_tokens: 0, cached_tokens: 0, output_tokens: 0, started_at: null,
  first_token_at: null, ended_at: null, ttft_target_ms: null, itl_target_ms: null, worst_gap_ms: null, position: null,
  estimated_wait_ms: null, paused: false, preemptions: 0, reason: null, first_seen_running: false,
};

/** A life as the page keeps it: the wire's fields, absent ones filled in, and beside them
 *
 *  key          its number on this page, across reconnects
 *  interludes   [{what: "preempted" | "prefilling" | "paused" | "unseen", from, to}] that interrupt decode; `to` null: still
 *  turnAt       when it was last known to have a part of a step, or came
 *  lostAt       when the feed was lost while it ran; null: not
 */
export function updateLife(known, said, key, at) {
  const life = { ...ABSENT, ...said, key, interludes: known?.interludes ?? [], turnAt: turnOf(known, said, at), lostAt: null, row: known?.row ?? null };
  if (known === undefined && life.first_seen_running) beginInTheMiddle(life);
  if (known !== undefined) {
    life.started_at ??= known.started_at;
    life.first_token_at ??= known.first_token_at;
    if (known.lostAt !== null) life.interludes.push({ what: "unseen", from: known.lostAt, to: at });
  }
  noteInterlude(life, at);
  return life;
}

/** Of a step that was not sent one by one, what was read tells. */
function turnOf(known, said, at) {
  const same = known !== undefined && known.state === said.state && known.prefilled_tokens === (said.prefilled_tokens ?? 0);
  return same ? known.turnAt : at;
}

/** Nothing before is known, so its bar begins with what it does now. */
function beginInTheMiddle(life) {
  if (life.state === "prefilling") life.started_at ??= life.received_at;
  if (life.state === "decoding" || life.state === "preempted") {
    life.started_at ??= life.received_at;
    life.first_token_at ??= life.received_at;
  }
}

function noteInterlude(life, at) {
  const open = life.interludes.at(-1);
  const running = open !== undefined && open.to === null ? open : null;
  const now = interludeOf(life);
  if (running !== null && running.what !== now) running.to = life.ended_at ?? at;
  if (now !== null && running?.what !== now) life.interludes.push({ what: now, from: at, to: null });
}

function interludeOf(life) {
  if (isOver(life)) return null;
  if (life.state === "preempted") return "preempted";
  if (life.state === "prefilling" && life.first_token_at !== null) return "prefilling";
  return life.paused ? "paused" : null;
}

export function isOver(life) {
  return life.state === "finished" || life.state === "refused";
}

/** Whether it is being read, and for a while only others had steps. `lastStep`: the newest of all, or undefined. */
export function isSetAside(life, lastStep) {
  return life.state === "prefilling" && life.lostAt === null && !life.paused && lastStep !== undefined && lastStep.end - life.turnAt > ASIDE_S;
}

/** Where its bar ends: its end, or where it was lost sight of, or `now`. */
export function endOf(life, now) {
  return life.ended_at ?? life.lostAt ?? Math.max(now, life.received_at);
}

/** The stretches of its bar, in order of drawing: [{what, from, to}], `what` as in interludes or "waiting", "prefill",
 *  "decode". Later ones lie over earlier ones. */
export function spansOf(life, now) {
  const end = endOf(life, now);
  const started = life.started_at ?? life.first_token_at ?? end;
  const first = life.first_token_at ?? end;
  const spans = [
    { what: "waiting", from: life.received_at, to: Math.min(started, end) },
    { what: "prefill", from: started, to: Math.min(first, end) },
    { what: "decode", from: first, to: end },
  ];
  for (const { what, from, to } of life.interludes) spans.push({ what, from, to: Math.min(to ?? end, end) });
  return spans.filter(({ from, to }) => to > from);
}

/** Of a figure and its target: {ms, targetMs, verdict: "met" | "missed" | "open" | "none"}; `ms` null while unknown. */
export function ttftOf(life, now) {
  if (life.first_seen_running) return { ms: null, targetMs: life.ttft_target_ms, verdict: "none" };
  const ms = life.first_token_at === null ? null : (life.first_token_at - life.received_at) * 1000;
  const waitedMs = ms ?? (endOf(life, now) - life.received_at) * 1000;
  return { ms, targetMs: life.ttft_target_ms, verdict: verdict(ms, waitedMs, life.ttft_target_ms, isOver(life)) };
}

export function gapOf(life) {
  const ms = life.worst_gap_ms;
  return { ms, targetMs: life.itl_target_ms, verdict: verdict(ms, ms ?? 0, life.itl_target_ms, isOver(life)) };
}

function verdict(ms, atLeastMs, targetMs, over) {
  if (targetMs === null) return "none";
  if (atLeastMs > targetMs) return "missed";
  if (ms === null) return over ? "none" : "open";
  return "met";
}

/** Gives a new life its row for good: the first that has been free long enough. `rows` holds the last life of each. */
export function giveRow(rows, life) {
  const free = (room) => rows.findIndex((last) => life.received_at - endOf(last, Infinity) >= room);
  let row = free(TEXT_ROOM_S);
  if (row < 0 && rows.length >= WIDE_ROWS) row = free(NAME_ROOM_S);
  life.row = row < 0 ? rows.length : row;
  rows[life.row] = life;
}
