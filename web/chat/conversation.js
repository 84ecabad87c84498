// What has been said, and what an event of the wire means for it. Plain data and plain functions: no page, no socket, no
// clock.

// Errors of these types say that the same request will be refused again, whenever it is sent.
const FOR_GOOD = /^(invalid_request|authentication|permission)_error$/;

const TOO_BIG = 1009;

/** In place of a close code: the page was left while the answer was being written. */
export const LEFT = "left";

/** A turn is a question and its answer. Its phase is one of the design's words for a request's life, and two of our own:
 *
 *  unsent  received  queued  prefilling  decoding  finished  refused
 *
 *  `ending.reason` is the wire's finish reason, or `lost` (the socket went first), or `refused`. `follows` says whether
 *  there was a conversation before it. */
export function newTurn(question, { follows = false, again = false, goesOn = false } = {}) {
  return {
    question,
    follows,
    phase: "unsent",
    text: "",
    responseId: null,
    place: null, // {position, waitMs} while queued
    read: null, // {tokens, of}: how much of the prompt has been read, while prefilling
    stopping: false,
    ending: null, // {reason, message, code, retryAfterMs, mayPass}; mayPass: the same again may fare better later
    usage: null,
    timing: null,
    held: false, // the server keeps this turn: it can be continued from by id
    superseded: false, // asked again, so no part of the conversation any more
    again, // asks the question above it once more
    goesOn, // asks for more of the answer above it
  };
}

export function isRunning(turn) {
  return turn.ending === null;
}

/** Changes `turn` by one event from the server. */
export function apply(turn, event) {
  switch (event.type) {
    case "response.created":
      turn.responseId = event.response.id;
      if (event.response.status === "queued") turn.phase = "queued";
      break;
    case "response.queued":
      turn.phase = "queued";
      turn.place = { position: event.response.rota?.position ?? null, waitMs: event.response.rota?.estimated_wait_ms ?? null };
      break;
    case "response.in_progress":
      if (turn.phase !== "decoding") turn.phase = "prefilling";
      turn.read = progressOf(event.response.rota) ?? turn.read;
      break;
    case "response.output_text.delta":
      turn.phase = "decoding";
      turn.text += event.delta;
      break;
    case "response.completed":
    case "response.incomplete":
    case "response.failed":
      end(turn, event.response);
      break;
    case "error":
      turn.phase = "refused";
      turn.ending = {
        reason: "refused",
        message: event.error.message,
        code: event.error.code,
        retryAfterMs: event.error.retry_after_ms ?? null,
        mayPass: event.error.retry_after_ms != null || !FOR_GOOD.test(event.error.type),
      };
      break;
  }
}

function progressOf(rota) {
  return rota?.input_tokens > 0 ? { tokens: rota.prefilled_tokens ?? 0, of: rota.input_tokens } : null;
}

function end(turn, response) {
  turn.phase = "finished";
  turn.usage = response.usage ?? null;
  turn.timing = response.rota ?? null;
  turn.ending = {
    reason: response.rota?.finish_reason ?? response.status,
    message: response.error?.message ?? null,
    code: response.rota?.error_code ?? response.error?.code ?? null,
    retryAfterMs: null,
    mayPass: true,
  };
  // A turn cancelled before its first word left nothing worth continuing from; its parent serves better.
  turn.held = response.status === "completed" || (response.status !== "failed" && turn.text !== "");
}

/** The socket was lost before the terminal event came. `code`: its close code, or `LEFT`. */
export function lose(turn, { code }) {
  turn.phase = "finished";
  turn.ending = { reason: turn.stopping ? "cancelled" : "lost", message: null, code, retryAfterMs: null, mayPass: code !== TOO_BIG };
}

/** Stopped before it was ever sent. */
export function withdraw(turn) {
  turn.phase = "finished";
  turn.ending = { reason: "cancelled", message: null, code: null, retryAfterMs: null, mayPass: true };
}

/** Starts the same turn afresh, after the server said that it does not know the conversation. */
export function forget(turns, current) {
  for (const turn of turns) turn.held = false;
  Object.assign(current, newTurn(current.question, current));
}

/** Whether there is anything for a next question to follow. */
export function hasBegun(turns) {
  return turns.some((turn) => turn.held || (turn.text !== "" && !turn.superseded));
}

/** Whether it failed because it was too long, or the conversation before it was. */
export function wasTooLong({ code }) {
  return code === "context_length_exceeded" || code === TOO_BIG;
}

/** `input` and `previous_response_id` with which `question` follows `turns`.
 *
 *  The server is asked to continue from the last turn it holds. What the reader has seen since and the server does not
 *  hold (half an answer, cut off by a failure) goes with the question as messages, so both remember the same. */
export function follow(turns, question) {
  const last = turns.findLastIndex((turn) => turn.held);
  const seen = turns.slice(last + 1).filter((turn) => turn.text !== "" && !turn.superseded);
  const messages = seen.flatMap((turn) => [message("user", turn.question), message("assistant", turn.text)]);
  return {
    previous_response_id: turns[last]?.responseId, // undefined is not sent
    input: messages.length > 0 ? [...messages, message("user", question)] : question,
  };
}

function message(role, content) {
  return { type: "message", role, content };
}

const KEPT = ["question", "follows", "phase", "text", "responseId", "ending", "usage", "timing", "held", "superseded", "again", "goesOn"];

/** What of `turn` outlives the page: plain data. One that still runs is kept as what it will be once the page has gone. */
export function toKeep(turn) {
  const ended = { ...turn };
  if (isRunning(turn)) lose(ended, { code: LEFT });
  return Object.fromEntries(KEPT.map((name) => [name, ended[name]]));
}

/** The turn that `toKeep` kept, or null when `kept` is none. */
export function fromKept(kept) {
  if (typeof kept?.question !== "string" || typeof kept.text !== "string" || typeof kept.ending?.reason !== "string") return null;
  const known = Object.fromEntries(KEPT.filter((name) => kept[name] !== undefined).map((name) => [name, kept[name]]));
  return { ...newTurn(kept.question), ...known };
}
