// The story's three requests, A, B and C, on a WebSocket of their own to /v1/responses, each on its own lane.
//
// Knows the wire and how large each request is. Knows neither what the feed shows nor the page: it reports runs, which are
// {letter, name, phase, id, text, cut, ending}. Phases: sending, queued, reading, writing, ended, refused, lost.

import { messagesOf } from "./story_texts.js";

const TEXT_KEPT = 120;
const MARGIN = 0.93; // of the context: the texts' length in tokens is known only about
const TERMINAL = new Set(["response.completed", "response.incomplete", "response.failed"]);

/** As in the scenario `laptops`, so that both tell the same story. */
const SIZES = {
  A: { tokens: 200, output: 128, targets: { ttft_ms: 5_000, itl_ms: 150 } },
  B: { tokens: 12_000, output: 256, targets: { ttft_ms: 60_000, itl_ms: 150 } },
  C: { tokens: 300, output: 128, targets: { ttft_ms: 5_000, itl_ms: 150 } },
};

/** {tokens, output, whole}: how large a request may be here. `whole`: as large as in the story. */
export function sizeOf(letter, hello) {
  const { tokens, output } = SIZES[letter];
  const context = Math.min(hello.max_context, hello.blocks * hello.block_tokens);
  const answer = Math.min(output, Math.floor(context / 4));
  const room = Math.floor((context - answer) * MARGIN);
  return { tokens: Math.min(tokens, room), output: answer, whole: tokens <= room };
}

export function isRunning(run) {
  return ["sending", "queued", "reading", "writing"].includes(run.phase);
}

export class Story {
  #base;
  #onChange;
  #socket = null;
  #unsent = [];
  #running = new Map(); // lane -> run
  #times = { A: 0, B: 0, C: 0 };

  constructor({ base, onChange }) {
    this.#base = base;
    this.#onChange = onChange;
  }

  /** Sends a request; its run is reported at once and whenever it changes. Null if the last of that letter still runs. */
  start(letter, hello, key) {
    const lane = laneOf(letter);
    if (this.#running.has(lane)) return null;
    this.#times[letter] += 1;
    const again = this.#times[letter];
    const size = sizeOf(letter, hello);
    const run = {
      letter, name: again === 1 ? letter : `${letter}${again}`, phase: "sending", id: null, text: "", cut: false, ending: null,
    };
    this.#running.set(lane, run);
    this.#send({
      type: "response.create", stream_id: lane, input: messagesOf(letter, size.tokens), max_output_tokens: size.output, ignore_eos: true,
      store: false, targets: SIZES[letter].targets,
    }, key);
    this.#onChange(run);
    return run;
  }

  cancel(run) {
    const lane = laneOf(run.letter);
    if (this.#running.get(lane) !== run) return;
    const place = this.#unsent.findIndex((frame) => frame.stream_id === lane);
    if (place >= 0) {
      this.#unsent.splice(place, 1);
      this.#end(lane, "ended", "cancelled");
      return;
    }
    this.#socket.send(JSON.stringify({ type: "response.cancel", ...(run.id === null ? { stream_id: lane } : { response_id: run.id }) }));
  }

  close() {
    this.#socket?.close(1000);
    this.#socket = null;
    this.#loseAll("The page was left.");
  }

  #send(frame, key) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
    else {
      this.#unsent.push(frame);
      if (this.#socket === null) this.#open(key);
    }
  }

  #open(key) {
    const url = new URL("v1/responses", this.#base);
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(url, key ? ["responses", `openai-insecure-api-key.${key}`] : ["responses"]);
    this.#socket = socket;
    socket.onopen = () => {
      for (const frame of this.#unsent.splice(0)) socket.send(JSON.stringify(frame));
    };
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    socket.onclose = ({ reason }) => {
      if (this.#socket !== socket) return;
      this.#socket = null;
      this.#loseAll(reason || "The connection was lost.");
    };
  }

  #receive(event) {
    const lane = event.stream_id;
    const run = this.#running.get(lane);
    if (run === undefined) return;
    switch (event.type) {
      case "response.created":
        run.id = event.response.id;
        if (event.response.status === "queued") run.phase = "queued";
        break;
      case "response.queued":
        run.phase = "queued";
        break;
      case "response.in_progress":
        run.phase = "reading";
        break;
      case "response.output_text.delta":
        if (run.phase === "writing" && run.cut) return;
        run.phase = "writing";
        addText(run, event.delta);
        break;
      case "error":
        this.#end(lane, "refused", event.error.message);
        return;
      default:
        if (TERMINAL.has(event.type)) this.#end(lane, "ended", event.response.rota?.finish_reason ?? event.response.status);
        return;
    }
    this.#onChange(run);
  }

  #loseAll(why) {
    this.#unsent.length = 0;
    for (const lane of [...this.#running.keys()]) this.#end(lane, "lost", why);
  }

  #end(lane, phase, ending) {
    const run = this.#running.get(lane);
    this.#running.delete(lane);
    run.phase = phase;
    run.ending = ending;
    this.#onChange(run);
  }
}

/** The first words are enough to see that it is an answer. */
function addText(run, delta) {
  const text = run.text + delta;
  run.cut = text.length > TEXT_KEPT;
  run.text = text.slice(0, TEXT_KEPT).toWellFormed();
}

function laneOf(letter) {
  return `turns-${letter.toLowerCase()}`;
}
