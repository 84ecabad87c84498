// One WebSocket to a server's /v1/responses: opens it, opens it again when it is lost, goes on there with the answers that
// were under way, and puts each event where it belongs.
//
// Knows the wire's envelope: keys, close codes, and that a lane answers in the order it was asked. Knows nothing of what
// an event means to a reader (conversation.js) nor of the page (element.js).

const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed"]);
const CONNECT_TIMEOUT_MS = 10_000;
const STEADY_MS = 10_000;
const SIGN_OF_LIFE_MS = 30_000;
const GONE = { code: 1006, reason: "" };

// What a subprotocol may be made of (RFC 6455 asks for an HTTP token); anything else makes `new WebSocket` throw.
const SENDABLE_KEY = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;

export function keyCanBeSent(key) {
  return SENDABLE_KEY.test(key);
}

/** How long to wait before the next try: doubling from half a second to ten seconds, with half of it left to chance so
 *  that a thousand pages which lost the same server do not come back in the same moment. */
export function backoffMs(attempt, random = Math.random) {
  return Math.min(10_000, 500 * 2 ** attempt) * (0.5 + random() / 2);
}

/** `address` (ws, wss, http or https; of the socket) as the two addresses that are asked. Throws when it is none. */
export function addresses(address, base) {
  const socket = new URL(address, base);
  if (!/^(ws|http)s?:$/.test(socket.protocol)) throw new TypeError(address);
  socket.hash = "";
  const secure = /^(wss|https):$/.test(socket.protocol);
  const models = new URL(socket);
  socket.protocol = secure ? "wss:" : "ws:";
  models.protocol = secure ? "https:" : "http:";
  models.pathname = models.pathname.replace(/[^/]*$/, "models");
  return { socket, models };
}

/** States, as passed to `onState({name, ...})`:
 *
 *  connecting  a try is under way
 *  open        {models}                  requests are sent as they are asked
 *  offline     {retryAt, sentence}       lost or refused; the next try comes by itself at `retryAt` (Date.now() time)
 *  resting     the server closed an idle socket in an orderly way; `wake()` or the next `ask()` opens a new one
 *  locked      {rejected}                the server asks for a key, or did not accept the one given
 *  closed      by `close()`
 */
export class ResponsesSocket {
  #addresses;
  #key;
  #onState;
  #onNotice;
  #models = [];
  #socket = null;
  #attempt = 0;
  #try = 0; // numbers every try, so that what a given-up one still has to say is not heard
  #timer = null;
  #state = "closed";
  #unsent = []; // asked while there was no socket
  #refusal = null; // the error that answers whatever is asked, until the next try
  #received = 0; // events, so far
  #asked = new Map(); // by lane: sent and not ended, oldest first; their order says whose event this is

  /** `address`: as `addresses` gives it. */
  constructor({ address, key = null, onState, onNotice }) {
    this.#addresses = address;
    this.#key = key;
    this.#onState = onState;
    this.#onNotice = onNotice;
  }

  open(key = this.#key) {
    this.#key = key;
    this.#attempt = 0;
    this.#connect();
  }

  /** Opens the socket now if it is resting, closed or waiting for its next try; somebody wants it, so the tries after this
   *  one come soon again, too. */
  wake() {
    if (!["offline", "resting", "closed"].includes(this.#state)) return;
    this.#attempt = 0;
    this.#connect();
  }

  /** `reason`: passed on to whoever is asking. */
  close(reason = "") {
    this.#abandon();
    this.#lose({ code: 1000, reason }, this.#unsent.splice(0));
    this.#enter("closed");
  }

  /** Sends `request` (the body of a response.create) on `lane` now, or as soon as there is a socket.
   *
   *  `onSent()` is called once, then `onEvent(event)` for each event up to the terminal one or the refusal, on this socket or
   *  the one after it. If the answer is lost with its socket, `onLost({code, reason})` is called instead, and nothing after
   *  it. Returns a ticket for `cancel`. */
  ask(request, lane, callbacks) {
    const ticket = { request, lane, ...callbacks, responseId: null, last: 0 };
    if (this.#refusal !== null) {
      const error = this.#refusal;
      queueMicrotask(() => ticket.onEvent({ type: "error", error }));
    } else if (this.#state === "open") this.#send(ticket);
    else {
      this.#unsent.push(ticket);
      this.wake();
    }
    return ticket;
  }

  /** True if it had not been sent, and now never will be; else the server is told, and its terminal event will follow. */
  cancel(ticket) {
    const place = this.#unsent.indexOf(ticket);
    if (place >= 0) {
      this.#unsent.splice(place, 1);
      return true;
    }
    if (this.#asked.get(ticket.lane)?.includes(ticket)) {
      this.#say({ type: "response.cancel", stream_id: ticket.lane, response_id: ticket.responseId });
    }
    return false;
  }

  /** Answers what waits to be sent, and what will be asked until the next try, by `error`. */
  refuse(error) {
    this.#refusal = error;
    for (const ticket of this.#unsent.splice(0)) hear(ticket, { type: "error", error });
  }

  /** Gives the socket up and opens another: for a server that no longer answers. `code` 4006 says that this page will be back
   *  for its answers. */
  reconnect(code = 1000) {
    this.#abandon(code);
    this.#lose({ code, reason: "" });
    this.#connect();
  }

  /** The network was away. Nobody tells a page that its socket did not survive that: an idle one is opened anew, one that is
   *  answering has some time to show that it still is: who stands in line may hear nothing for a while. */
  doubt() {
    if (this.#state !== "open") return this.wake();
    if (this.#asked.size === 0) return this.reconnect();
    const [thisTry, received] = [this.#try, this.#received];
    setTimeout(() => thisTry === this.#try && received === this.#received && this.reconnect(4006), SIGN_OF_LIFE_MS);
  }

  async #connect() {
    this.#abandon();
    const thisTry = this.#try;
    this.#refusal = null;
    this.#enter("connecting");
    let reply;
    try {
      // A browser does not tell a page why an upgrade was refused. A plain GET does.
      reply = await fetch(this.#addresses.models, {
        headers: this.#key ? { Authorization: `Bearer ${this.#key}` } : {},
        cache: "no-store",
        signal: AbortSignal.timeout(CONNECT_TIMEOUT_MS),
      });
      const body = await reply.json().catch(() => null);
      if (thisTry !== this.#try) return;
      if (reply.status === 401) return this.#enter("locked", { rejected: Boolean(this.#key) });
      if (!reply.ok) return this.#retryLater(body?.error?.message.replace(/ Try again .*/, "") ?? "The server is there but not ready.", body);
      this.#models = body?.data ?? [];
    } catch {
      const there = await this.#isThere();
      if (thisTry === this.#try) this.#retryLater(there ? "The server is there, but does not let this page in." : "The server cannot be reached.");
      return;
    }
    this.#openSocket(thisTry);
  }

  /** Whether a server of another origin answers, though not to this page. Says in the console what would help. */
  async #isThere() {
    const { models } = this.#addresses;
    if (models.origin === location.origin) return false;
    try {
      await fetch(models, { mode: "no-cors" });
    } catch {
      return false;
    }
    if (this.#attempt === 0) console.warn(`rota: ${models.origin} lets this page in if started with --origins ${location.origin}`);
    return true;
  }

  #openSocket(thisTry) {
    const protocols = this.#key ? ["responses", `openai-insecure-api-key.${this.#key}`] : ["responses"];
    const socket = new WebSocket(this.#addresses.socket, protocols);
    this.#socket = socket;
    const tooSlow = setTimeout(() => socket.close(), CONNECT_TIMEOUT_MS);
    let openedAt = null;

    socket.onopen = () => {
      clearTimeout(tooSlow);
      if (thisTry !== this.#try) return;
      openedAt = performance.now();
      this.#enter("open", { models: this.#models });
      for (const ticket of this.#unsent.splice(0)) this.#send(ticket);
    };
    socket.onmessage = ({ data }) => {
      if (thisTry !== this.#try) return;
      this.#attempt = 0;
      this.#received += 1;
      const event = eventIn(data);
      if (event !== null) this.#receive(event);
    };
    socket.onclose = ({ code, reason }) => {
      clearTimeout(tooSlow);
      if (thisTry !== this.#try) return;
      this.#socket = null;
      if (openedAt === null) return this.#retryLater("The server refused the connection.");
      // A server that accepts and at once closes must not be asked twice a second for ever.
      if (performance.now() - openedAt > STEADY_MS) this.#attempt = 0;
      const idle = this.#asked.size === 0;
      this.#lose({ code, reason });
      if (idle && (code === 1000 || code === 1008)) this.#enter("resting");
      else this.#retryLater(code === 1001 ? "The server is shutting down." : "The connection was lost.");
    };
  }

  #send(ticket) {
    const queue = this.#asked.get(ticket.lane);
    if (queue) queue.push(ticket);
    else this.#asked.set(ticket.lane, [ticket]);
    const { lane: stream_id, responseId: response_id, last: starting_after } = ticket;
    if (response_id !== null) return this.#say({ type: "response.resume", stream_id, response_id, starting_after });
    this.#say({ type: "response.create", stream_id, resumable: true, ...ticket.request });
    ticket.onSent();
  }

  #say(event) {
    this.#socket.send(JSON.stringify(event));
  }

  #receive(event) {
    const ticket = this.#ticketOf(event);
    if (!ticket) {
      if (event.type === "error") this.#onNotice(event.error); // about the socket, not about an answer: it ends nothing
      return;
    }
    if (event.type === "error" || TERMINAL.has(event.type)) this.#shift(ticket.lane);
    hear(ticket, event);
  }

  /** Whose event this is. An error that names no lane is about the one request there is that has no response yet. */
  #ticketOf(event) {
    if (event.stream_id !== undefined || event.type !== "error") return this.#asked.get(event.stream_id)?.[0];
    const unanswered = [...this.#asked.values()].map((queue) => queue[0]).filter(({ responseId }) => responseId === null);
    return unanswered.length === 1 ? unanswered[0] : undefined;
  }

  #shift(lane) {
    const queue = this.#asked.get(lane);
    queue.shift();
    if (queue.length === 0) this.#asked.delete(lane);
  }

  /** Tells whoever was answered, and `unsent`. They may ask anew at once, and shall not find this socket open. What the server
   *  has begun may go on upon the next one, if nobody has said goodbye (1000, 1001): the server will know, if it is there
   *  again soon enough. */
  #lose(why, unsent = []) {
    if (this.#state === "open") this.#state = "connecting";
    const lost = [...this.#asked.values()].flat().concat(unsent);
    this.#asked.clear();
    for (const ticket of lost) {
      if (ticket.responseId === null || why.code <= 1001) ticket.onLost(why);
      else {
        this.#unsent.push(ticket);
        setTimeout(() => this.#unsent.includes(ticket) && this.cancel(ticket) && ticket.onLost(GONE), SIGN_OF_LIFE_MS);
      }
    }
  }

  #retryLater(sentence, body = null) {
    const wait = Math.max(backoffMs(this.#attempt), body?.error?.retry_after_ms ?? 0);
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.#connect(), wait);
    this.#enter("offline", { retryAt: Date.now() + wait, sentence });
  }

  #abandon(code = 1000) {
    this.#try += 1;
    clearTimeout(this.#timer);
    this.#socket?.close(code);
    this.#socket = null;
  }

  #enter(name, more = {}) {
    this.#state = name;
    this.#onState({ name, ...more });
  }
}

/** Passes on what is said about a request. An error after its answer has begun says that there will be no more of it. */
function hear(ticket, event) {
  if (event.type === "error" && ticket.responseId !== null) return ticket.onLost(GONE);
  if (event.type === "response.created") ticket.responseId = event.response.id;
  ticket.last = event.sequence_number;
  ticket.onEvent(event);
}

/** What a frame says, or null when it is nothing of the wire. */
function eventIn(data) {
  try {
    const event = JSON.parse(data);
    return event.type === "error" && !event.error ? null : event;
  } catch {
    return null;
  }
}
