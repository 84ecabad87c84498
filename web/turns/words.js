// Numbers, times and names as a reader sees them on /turns. Takes plain data, gives strings; touches no page.

const NUMBER = new Intl.NumberFormat("en-GB");
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

const STATES = {
  queued: "waiting",
  prefilling: "reading its prompt (prefill)",
  decoding: "writing (decode)",
  preempted: "taken off for want of memory (preempted)",
  finished: "finished",
  refused: "refused",
};

const REASONS = {
  stop: "ended by itself",
  stop_text: "ended at a stop text",
  length: "reached its output limit",
  prefilled: "was only to be read",
  cancelled: "cancelled",
  deadline: "ran out of time",
  failed: "failed",
};

export function number(value) {
  return NUMBER.format(value);
}

export function count(value, noun) {
  return `${NUMBER.format(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** Milliseconds, in the unit that a person would use. */
export function duration(ms) {
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 99_950) return `${(ms / 1000).toFixed(ms < 9_995 ? 2 : 1)} s`;
  return `${Math.round(ms / 60_000)} min`;
}

/** A time of day, of Unix seconds. */
export function clock(at) {
  return CLOCK.format(at * 1000);
}

function reasonOf(life) {
  return life.reason === null ? null : (REASONS[life.reason] ?? life.reason);
}

export const SET_ASIDE = "set aside: others are due sooner";

/** What a life is doing now, or how it ended: a few words. `aside`: lives.isSetAside. */
export function stateOf(life, aside = false) {
  if (life.state === "finished" || life.state === "refused") {
    const why = reasonOf(life);
    if (life.state === "refused") return why === null ? "refused" : `refused: ${why}`;
    return why === null ? "finished" : why;
  }
  if (life.lostAt !== null) return "out of sight since the connection was lost";
  if (aside) return SET_ASIDE;
  return life.paused ? `${STATES[life.state]}, held back: its reader is behind` : (STATES[life.state] ?? life.state);
}

/** How much a request will be, for its button. */
export function sizeWords({ tokens, output, whole }) {
  return `About ${number(tokens)} tokens in${whole ? "" : " (all that fits)"}, ${number(output)} out.`;
}
