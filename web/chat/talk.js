// One conversation with the server, on a lane of the socket: asks, listens, stops, goes on. Plain data and messages: touches
// no page. What an event means for a turn is conversation.js.

import { LEFT, apply, follow, forget, fromKept, hasBegun, isRunning, lose, newTurn, toKeep, withdraw } from "./conversation.js";

const UNANSWERED_MS = 2000;
const GO_ON = "Continue from where you stopped.";

export class Talk {
  #socket;
  #extras;
  #heard;
  #stoppedAt = 0;
  #ticket = null; // what the socket calls the running request

  /** `extras()`: what goes with every request (model, instructions). `heard(talk, turn, event)`: something about `turn` is
   *  new; `event.type` is the wire's, or `sent`, `lost`, `forgotten`, `withdrawn`, `stopping`. `kept`: turns as `keep` gave them. */
  constructor({ id, socket, extras, heard, kept = [] }) {
    this.id = id;
    this.turns = kept.map(fromKept).filter((turn) => turn !== null);
    this.current = null; // the running turn
    this.unread = false; // something has ended that its reader has not seen
    this.#socket = socket;
    this.#extras = extras;
    this.#heard = heard;
  }

  get lane() {
    return `chat-${this.id}`;
  }

  keep() {
    return { id: this.id, turns: this.turns.map(toKeep) };
  }

  /** The new turn. Not while another runs. */
  ask(question, kind = {}) {
    const turn = newTurn(question, { ...kind, follows: hasBegun(this.turns) });
    const request = follow(this.turns, question);
    this.turns.push(turn);
    this.current = turn;
    this.#send(turn, request);
    return turn;
  }

  /** The same question once more, in place of `turn`'s answer. */
  again(turn) {
    turn.superseded = true;
    return this.ask(turn.question, { again: true });
  }

  /** More of an answer that was cut off. */
  goOn() {
    return this.ask(GO_ON, { goesOn: true });
  }

  /** Forgets `turn` and all that followed it, so that something else can be asked in its place. */
  rewind(turn) {
    const place = this.turns.indexOf(turn);
    if (place >= 0) this.turns.splice(place);
  }

  /** Asked again after a while, it does without a server that does not answer. */
  stop() {
    const turn = this.current;
    if (turn === null) return;
    if (turn.stopping) {
      if (performance.now() - this.#stoppedAt > UNANSWERED_MS) this.#socket.reconnect();
      return;
    }
    turn.stopping = true;
    this.#stoppedAt = performance.now();
    if (this.#socket.cancel(this.#ticket)) this.#withdraw(turn);
    else this.#tell(turn, { type: "stopping" });
  }

  /** Ends whatever runs: heard of as withdrawn, and of nothing more. */
  end() {
    if (this.current !== null) {
      this.#socket.cancel(this.#ticket);
      this.#withdraw(this.current);
    }
    this.#heard = () => {};
  }

  #send(turn, request) {
    const whole = { ...this.#extras(), ...request };
    this.#ticket = this.#socket.ask(whole, this.lane, {
      onSent: () => {
        turn.phase = "received";
        this.#tell(turn, { type: "sent" });
      },
      onEvent: (event) => {
        if (event.type === "error" && event.error.code === "previous_response_not_found" && request.previous_response_id) {
          this.#sendWhole(turn);
          return;
        }
        apply(turn, event);
        this.#tell(turn, event);
      },
      onLost: (why) => {
        lose(turn, { code: why.reason === LEFT ? LEFT : why.code });
        this.#tell(turn, { type: "lost" });
      },
    });
  }

  /** The server has forgotten the conversation (it keeps them for some minutes only); the page has not. */
  #sendWhole(turn) {
    const stopping = turn.stopping;
    forget(this.turns, turn);
    this.#tell(turn, { type: "forgotten" });
    if (stopping) this.#withdraw(turn);
    else this.#send(turn, follow(this.turns.slice(0, -1), turn.question));
  }

  #withdraw(turn) {
    withdraw(turn);
    this.#tell(turn, { type: "withdrawn" });
  }

  #tell(turn, event) {
    if (!isRunning(turn) && turn === this.current) {
      this.current = null;
      this.#ticket = null;
    }
    this.#heard(this, turn, event);
  }
}
