// What happened when A, B and C had all run, from the figures of the history: one or two sentences. Plain data in, text out.

import { placeOf } from "./history.js";
import { count, duration } from "./words.js";

const LONGEST_STEP_S = 120;
const SAME = 0.9; // of the life's own figure: then it is the same gap

/** `runs` maps A, B and C to their newest runs (story.js). Null until all three have ended. */
export function whatHappened(history, runs) {
  const lives = {};
  for (const letter of ["A", "B", "C"]) {
    const run = runs.get(letter);
    const life = run?.id == null ? undefined : history.lives.get(history.keysById.get(run.id));
    if (life === undefined || life.ended_at === null) return null;
    lives[letter] = life;
  }
  const { started_at: from, first_token_at: to } = lives.B;
  if (from === null || to === null) return "B ended before it was read; press A, then B, then C again, and let B go on.";
  const chunks = chunksOf(history, lives.B.key, from, to);
  const partly = history.leftOut.some((mark) => mark.to > from && mark.from < to);
  const many = `${partly ? "more than " : ""}${count(chunks, "chunk")}`;
  const read = `B’s ${count(lives.B.input_tokens ?? 0, "token")} were read in ${many}, ${duration((to - from) * 1000)} in all.`;
  const others = ["A", "C"].map((letter) => meanwhile(history, letter, lives[letter], { from, to, partly }));
  return `${read} ${others.join(" ")}`;
}

/** In how many of the steps of that time it was read. */
function chunksOf(history, key, from, to) {
  return stepsBetween(history, from, to).filter(({ parts }) => parts.some((part) => part.key === key && part.kind === "prefill")).length;
}

function stepsBetween({ steps }, from, to) {
  const found = [];
  for (let place = Math.max(placeOf(steps, from - LONGEST_STEP_S), 0); place < steps.length && steps[place].at <= to; place += 1) {
    if (steps[place].end > from) found.push(steps[place]);
  }
  return found;
}

function meanwhile(history, letter, life, { from, to, partly }) {
  const first = life.first_token_at;
  if (first === null || life.ended_at <= from) return `${letter} had ended before: press them one right after the other.`;
  if (first >= to) return `${letter} began to write only after that, ${duration((first - life.received_at) * 1000)} after it was asked.`;
  const gap = partly ? life.worst_gap_ms : worstGap(history, life, from, to);
  if (gap === null) return `${letter} wrote hardly anything meanwhile.`;
  const target = life.itl_target_ms;
  const said = `${letter}’s worst gap ${partly ? "in all" : "while B was read"}: ${duration(gap)}`;
  if (target === null) return `${said}.`;
  return gap <= target ? `${said}, within its target of ${duration(target)}.` : `${said}: its target of ${duration(target)} was missed.`;
}

/** The longest time between two of its tokens that touches the time from `from` to `to`, in milliseconds; null: no two. The life's
 *  own figure is the server's, and steps end a little before their tokens are heard of: so where both mean the same gap, its
 *  figure is told, and never a longer one. */
function worstGap(history, life, from, to) {
  const { key, first_token_at: first, ended_at: ended, worst_gap_ms: whole } = life;
  if (whole === null) return null;
  let before = first;
  let [worst, worstOfAll] = [null, 0];
  for (const { end, parts } of stepsBetween(history, first, ended)) {
    if (end <= before || !parts.some((part) => part.key === key && part.kind === "decode")) continue;
    const gap = (end - before) * 1000;
    if (end > from && before < to) worst = Math.max(worst ?? 0, gap);
    worstOfAll = Math.max(worstOfAll, gap);
    before = end;
  }
  if (worst === null) return null;
  return worst === worstOfAll && worst > SAME * whole ? whole : Math.min(worst, whole);
}
