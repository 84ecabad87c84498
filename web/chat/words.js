// The sentences a reader sees about a turn. Takes the data of conversation.js, gives strings; touches no page.

import { LEFT } from "./conversation.js";

const NUMBER = new Intl.NumberFormat("en-GB");
const RATE = new Intl.NumberFormat("en-GB", { maximumSignificantDigits: 2 });

export function count(number, noun) {
  return `${NUMBER.format(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function ordinal(number) {
  const ending = { one: "st", two: "nd", few: "rd" }[new Intl.PluralRules("en", { type: "ordinal" }).select(number)];
  return `${NUMBER.format(number)}${ending ?? "th"}`;
}

function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
}

function estimate(ms) {
  if (ms < 1000) return "under a second";
  if (ms < 90_000) return `about ${Math.round(ms / 1000)} s`;
  return `about ${Math.round(ms / 60_000)} min`;
}

export function untilThen(ms) {
  return `${Math.max(1, Math.ceil(ms / 1000))} s`;
}

/** What a running turn is doing. */
export function progress(turn) {
  if (turn.stopping) return "Stopping…";
  switch (turn.phase) {
    case "unsent":
      return "Waiting for the connection…";
    case "received":
      return "Sent…";
    case "queued":
      return queued(turn.place);
    case "prefilling":
      return reading(turn.read);
    default:
      return "Writing…";
  }
}

/** The numbers only where there is a while to wait for: the server says how far it is when that is so. */
function reading(read) {
  if (read === null || read.tokens <= 0 || read.tokens >= read.of) return "Reading your question…";
  return `Reading your question: ${NUMBER.format(read.tokens)} of ${count(read.of, "token")}`;
}

function queued(place) {
  if (!place || place.position === null) return "In line…";
  const where = place.position <= 1 ? "Next in line" : `${ordinal(place.position)} in line`;
  return place.waitMs === null ? where : `${where}, ${estimate(place.waitMs)}`;
}

/** Why a message that was to be sent while `turn` runs is still in its box. */
export function kept({ phase, stopping }, hasEscape) {
  const why = phase === "unsent" ? "your last message waits for the connection" : "the model is still answering";
  return `Not sent yet: ${why}. It can be sent when the answer has ended${hasEscape && !stopping ? "; Esc stops it" : ""}.`;
}

/** Why a turn ended, or null where the answer itself says enough. */
export function ending(turn) {
  const { text } = turn;
  const { reason, message, code } = turn.ending;
  const soFar = `after ${count([...text].length, "character")}`;
  const interrupted = (what) => `Interrupted: ${what} ${text ? soFar : "before the answer began"}.`;
  switch (reason) {
    case "length":
      return "Cut off by the output limit.";
    case "cancelled":
      return "Stopped by you.";
    case "deadline":
      return "Out of time: the deadline passed before the answer was complete.";
    case "failed":
      if (code === "worker_failed" || code === "server_error" || !message) return interrupted("the server failed");
      return text ? `Interrupted ${soFar}. ${message}` : message;
    case "lost":
      if (code === 1009) return "The message is larger than this server accepts.";
      return interrupted(code === LEFT ? "the page was left" : "the connection was lost");
    case "refused":
      return message;
    default:
      return text ? null : "The model had nothing to say.";
  }
}

/** One small line of numbers: how soon, how fast, how much. Null when the server sent none. */
export function facts(turn) {
  const { timing, usage } = turn;
  const parts = [];
  if (timing?.ttft_ms != null && turn.text) parts.push(`First token ${duration(timing.ttft_ms)}`);
  if (timing?.queue_ms >= 100) parts.push(`${duration(timing.queue_ms)} in line`);
  if (timing?.itl_ms?.p50 > 0) parts.push(`${RATE.format(1000 / timing.itl_ms.p50)} tokens/s`);
  if (usage) parts.push(`${count(usage.input_tokens, "token")} in${cached(usage)}, ${NUMBER.format(usage.output_tokens)} out`);
  return parts.length > 0 ? parts.join(" · ") : null;
}

function cached(usage) {
  const tokens = usage.input_tokens_details?.cached_tokens ?? 0;
  return tokens > 0 ? ` (${NUMBER.format(tokens)} from cache)` : "";
}


const TITLE_CHARACTERS = 80; // the list shows as many of them as it has room for

/** What a conversation is called in a list. */
export function title(turns) {
  if (turns.length === 0) return "New conversation";
  return turns[0].question.slice(0, TITLE_CHARACTERS).replace(/\s+/g, " ");
}

/** What a conversation that is not in sight is doing, for the list of them. */
export function doing({ current, unread }) {
  return current ? progress(current) : unread ? "Ended" : "";
}
