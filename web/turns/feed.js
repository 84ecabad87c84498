// The watcher's WebSocket to /v1/turns: opens it, opens it again when it is lost, and hands on each frame.
//
// Knows the envelope (keys, close codes, silence) and that frames are JSON with a type. Knows nothing of what a frame
// means (history.js) nor of the page.

import { backoffMs } from "../chat/socket.js";

const TIMEOUT_MS = 10_000;
const SILENCE_MS = 15_000; // the server says something every second
const REFUSED_WAIT_MS = 5_000;
const STEADY_MS = 10_000;

/** States, as passed to `onState({name, ...})`:
 *
 *  connecting  a try is under way
 *  live        frames come
 *  offline     {retryAt, sentence}  lost or not there; the next try comes by itself at `retryAt` (Date.now() time)
 *  refused     {retryAt, sentence}  the server is there and does not want to be watched now, and says why
 *  locked      {rejected}           the server asks for a key, or did not accept the one given
 *  closed      by `close()`
 */
export class TurnsFeed {
  #base;
  #key;
  #onState;
  #onFrame;
  #socket = null;
  #attempt = 0;
  #try = 0; // numbers every try, so that what a given-up one still has to say is not heard
  #timer = null;
  #silence = null;
  #state = "closed";

  constructor({ base, key = null, onState, onFrame }) {
    this.#base = base;
    this.#key = key;
    this.#onState = onState;
    this.#onFrame = onFrame;
  }

  open(key = this.#key) {
    this.#key = key;
    this.#attempt = 0;
    this.#connect();
  }

  /** Tries now what would be tried later. */
  wake() {
    if (["offline", "refused", "closed"].includes(this.#state)) this.open();
  }

  close() {
    this.#abandon();
    this.#enter("closed");
  }

  async #connect() {
    this.#abandon();
    const thisTry = this.#try;
    this.#enter("connecting");
    try {
      // A browser does not tell a page why an upgrade was refused. A plain GET does.
      const { status, ok, sentence } = await this.#ask("v1/models");
      if (thisTry !== this.#try) return;
      if (status === 401) return this.#enter("locked", { rejected: Boolean(this.#key) });
      if (!ok) return this.#retryLater("offline", sentence ?? "The server is there but not ready.");
    } catch {
      if (thisTry === this.#try) this.#retryLater("offline", "The server cannot be reached.");
      return;
    }
    this.#openSocket(thisTry);
  }

  async #ask(path) {
    const reply = await fetch(new URL(path, this.#base), {
      headers: this.#key ? { Authorization: `Bearer ${this.#key}` } : {},
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    const body = await reply.json().catch(() => null);
    const said = body?.error?.message;
    return { status: reply.status, ok: reply.ok, sentence: typeof said === "string" ? said : null };
  }

  #openSocket(thisTry) {
    const url = new URL("v1/turns", this.#base);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url, this.#key ? ["responses", `openai-insecure-api-key.${this.#key}`] : ["responses"]);
    this.#socket = socket;
    this.#expectSound(TIMEOUT_MS);
    let openedAt = null;

    socket.onopen = () => {
      if (thisTry !== this.#try) return;
      openedAt = performance.now();
      this.#enter("live");
    };
    socket.onmessage = ({ data }) => {
      if (thisTry !== this.#try) return;
      this.#expectSound(SILENCE_MS);
      const frame = read(data);
      if (frame !== null) this.#onFrame(frame);
    };
    socket.onclose = ({ code, reason }) => {
      if (thisTry !== this.#try) return;
      clearTimeout(this.#silence);
      this.#socket = null;
      if (openedAt === null) {
        this.#sayWhyRefused(thisTry);
        return;
      }
      // A server that accepts and at once closes must not be asked twice a second for ever.
      if (performance.now() - openedAt > STEADY_MS) this.#attempt = 0;
      if (code === 1008 || code === 1013) this.#retryLater("refused", reason || "The server does not want to be watched now.");
      else this.#retryLater("offline", code === 1001 ? "The server is shutting down." : "The connection was lost.");
    };
  }

  async #sayWhyRefused(thisTry) {
    let said = { status: 0, sentence: null };
    try {
      said = await this.#ask("v1/turns");
    } catch {
      // then there is nobody to say why
    }
    if (thisTry !== this.#try) return;
    if (said.status === 401) this.#enter("locked", { rejected: Boolean(this.#key) });
    else if (said.status === 0) this.#retryLater("offline", "The server cannot be reached.");
    else if (said.sentence !== null && said.status !== 426) this.#retryLater("refused", said.sentence);
    else this.#retryLater("refused", "The server is there and let no watcher in: perhaps as many watch already as it allows.");
  }

  /** A socket that says nothing for so long is taken for lost. */
  #expectSound(ms) {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      this.#abandon();
      this.#retryLater("offline", "The server has gone silent.");
    }, ms);
  }

  #retryLater(name, sentence) {
    const wait = Math.max(backoffMs(this.#attempt), name === "refused" ? REFUSED_WAIT_MS : 0);
    this.#attempt += 1;
    this.#timer = setTimeout(() => this.#connect(), wait);
    this.#enter(name, { retryAt: Date.now() + wait, sentence });
  }

  #abandon() {
    this.#try += 1;
    clearTimeout(this.#timer);
    clearTimeout(this.#silence);
    this.#socket?.close(1000);
    this.#socket = null;
  }

  #enter(name, more = {}) {
    this.#state = name;
    this.#onState({ name, ...more });
  }
}

/** The frame in a text, or null for what this page does not know. */
function read(text) {
  try {
    const frame = JSON.parse(text);
    return frame?.type === "turns.hello" || frame?.type === "turns.frame" ? frame : null;
  } catch {
    return null;
  }
}
