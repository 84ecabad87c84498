// What happened when A, B and C had all run, from the figures of the history: one or two sentences. Plain data in, text out.

import { placeOf } from "./history.js";
import { count, duration } from "./words.js";

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
  const { chunks, seen } = chunksOf(history, lives.B.key, from, to);
  const partly = history.leftOut.some((mark) => mark.to > from && mark.from < to);
  const many = `${partly ? "more than " : ""}${count(chunks, "chunk")}`;
  const read = `B’s ${count(lives.B.input_tokens ?? 0, "token")} were read in ${many}, ${duration((to - from) * 1000)} in all.`;
  const others = ["A", "C"].map((letter) => meanwhile(letter, lives[letter], seen, { from, to, partly }));
  return `${read} ${others.join(" ")}`;
}

/** The steps in which B was read, and beside them all steps of that time. */
function chunksOf(history, key, from, to) {
  const { steps } = history;
  const seen = [];
  for (let place = Math.max(placeOf(steps, from - 120), 0); place < steps.length && steps[place].at <= to; place += 1) {
    if (steps[place].end > from - 120) seen.push(steps[place]);
  }
  return { chunks: seen.filter(({ parts }) => parts.some((part) => part.key === key && part.kind === "prefill")).length, seen };
}

function meanwhile(letter, life, seen, { from, to, partly }) {
  const first = life.first_token_at;
  if (first === null || life.ended_at <= from) return `${letter} had ended before: press them one right after the other.`;
  if (first >= to) return `${letter} began to write only after that, ${duration((first - life.received_at) * 1000)} after it was asked.`;
  const gap = partly ? life.worst_gap_ms : worstGap(life, seen, from, to);
  if (gap === null) return `${letter} wrote hardly anything meanwhile.`;
  const target = life.itl_target_ms;
  const said = `${letter}’s worst gap ${partly ? "in all" : "while B was read"}: ${duration(gap)}`;
  if (target === null) return `${said}.`;
  return gap <= target ? `${said}, within its target of ${duration(target)}.` : `${said}: its target of ${duration(target)} was missed.`;
}

/** The longest time between two of its tokens that touches the time from `from` to `to`, in milliseconds; null: no two. */
function worstGap(life, seen, from, to) {
  let before = life.first_token_at;
  let worst = null;
  for (const { end, parts } of seen) {
    if (end <= before || !parts.some((part) => part.key === life.key && part.kind === "decode")) continue;
    if (end > from) worst = Math.max(worst ?? 0, (end - before) * 1000);
    before = end;
  }
  const still = Math.min(to, life.ended_at) - before; // it waited on when B's reading ended
  return still > 0 && worst !== null ? Math.max(worst, still * 1000) : worst;
}
