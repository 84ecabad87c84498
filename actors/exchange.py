"""What one client asks and what it is answered: the requests of a socket, from their frames to their turn.

Knows the lanes, and whose turn it is to be handed to the engine; what becomes of it then is `actors.answers`' business.
Responses that are at home on another socket are in `actors.relays`' care. Plain code: frames go out by `put`. Knows no
socket, no mailbox and no task.
"""

from collections.abc import Callable
from typing import assert_never

from actors.actor import Address, Clock
from actors.answers import Answers, OfARequest, ToTokeniser
from actors.connection_limits import ConnectionLimits
from actors.home import OfAReader, Resuming
from actors.lanes import Lane, Lanes, Refuse, Rejoin, Run, Withdraw
from actors.ledger import Ledger
from actors.metrics import Metrics
from actors.relays import Relays
from actors.targets import Tiers
from protocol import errors
from protocol.errors import WireError
from protocol.events import error_event, steer_failed
from protocol.messages import (
    Ask,
    ConnectionId,
    FinishReason,
    Relayed,
    RelayEnded,
    RequestId,
    Resume,
    SetPaused,
    Text,
)
from protocol.responses import (
    ClientEvent,
    Rejected,
    ResponseCancel,
    ResponseCreate,
    ResponseResume,
    ResponseSteer,
)

__all__ = ["RETRY_MS", "ConnectionLimits", "Exchange", "ToTokeniser"]

RETRY_MS = 1000.0


class Exchange:
    """The requests of one socket: each is refused, or becomes an answer."""

    def __init__(
        self,
        *,
        connection: ConnectionId,
        tenant: str,
        model: str,
        put: Callable[[list[bytes]], None],
        tokeniser: Address[ToTokeniser],
        scheduler: Address[SetPaused],
        clock: Clock,
        unix_clock: Callable[[], float],
        new_id: Callable[[], str],
        metrics: Metrics,
        limits: ConnectionLimits,
        tiers: Tiers,
        resuming: Resuming | None = None,
    ) -> None:
        """`resuming` None: nothing can be resumed."""
        resuming = resuming if resuming is not None else Resuming()
        self._connection = connection
        self._tenant = tenant
        self._put = put
        self._tokeniser = tokeniser
        self._unix_clock = unix_clock
        self._limits = limits
        self._draining = False
        self._lanes = Lanes(
            lanes=limits.lanes,
            running=limits.running,
            waiting_per_lane=limits.waiting_per_lane,
            waiting_bytes=limits.waiting_bytes,
        )
        self._ledger = Ledger(
            connection=connection,
            tenant=tenant,
            model=model,
            clock=clock,
            unix_clock=unix_clock,
            new_id=new_id,
            metrics=metrics,
            tiers=tiers,
        )
        self._answers = Answers(
            connection=connection,
            tenant=tenant,
            put=put,
            refuse=self._refuse,
            free_lane=self._lanes.ended,
            tokeniser=tokeniser,
            scheduler=scheduler,
            clock=clock,
            unix_clock=unix_clock,
            ledger=self._ledger,
            limits=limits,
            resuming=resuming,
        )
        self._resumables = resuming.resumables
        self._relays = Relays(
            connection=connection,
            tenant=tenant,
            put=put,
            end=self._end_relay,
            resumables=resuming.resumables,
            tell=resuming.tell,
            turn_bytes=limits.turn_bytes,
            most_held=limits.unsent_bytes,
        )

    @property
    def busy(self) -> bool:
        """Its client waits for something of ours, or we for the engine."""
        return len(self._answers) > 0 or not self._lanes.idle

    @property
    def under_way(self) -> bool:
        """The engine has not let go of every request, or something is kept for a reader who may come back."""
        return len(self._answers) > 0 or self._answers.home.keeps

    @property
    def outlives_socket(self) -> bool:
        """Something is read elsewhere, or may be."""
        return self._answers.home.keeps or self._answers.elsewhere

    @property
    def may_be_asked_for(self) -> bool:
        """By other connections: something here could be resumed."""
        return self._answers.home.used

    @property
    def relaying(self) -> bool:
        """The ends of responses that are at home elsewhere are still to come."""
        return len(self._relays) > 0

    @property
    def ready(self) -> bool:
        """There is something to take."""
        return self._answers.ready or self._relays.ready

    @property
    def flooded(self) -> bool:
        """More refusals wait to be told than may."""
        return self._lanes.refusals > self._limits.refusals

    # --- what the client says -----------------------------------------------------------------------------------------

    def asked(self, event: ClientEvent | Rejected, at: float, size: int) -> bool:
        """`size`: of its frame, in bytes. False: it was a cancel of nothing that runs."""
        match event:
            case ResponseCreate():
                self._lanes.ask(event, at, size)
            case ResponseCancel():
                return self._cancel(event)
            case ResponseResume():
                self._resume(event, size)
            case ResponseSteer():
                self._put([steer_failed(event)])
            case Rejected():
                self._lanes.refuse(event.stream_id, event.error)
            case _:
                assert_never(event)
        return True

    def _cancel(self, asked: ResponseCancel) -> bool:
        if asked.response_id is not None:
            answer = self._answers.answer(asked.response_id)
            found = self._relays.cancel(request=asked.response_id)
        else:
            answer = self._answers.running(asked.stream_id)
            found = self._relays.cancel(lane=asked.stream_id)
            self._lanes.withdraw(asked.stream_id)
        if answer is None or answer.closed:
            return found
        self._answers.cancel(answer)
        return True

    def _resume(self, asked: ResponseResume, size: int) -> None:
        berth = self._resumables.find(self._tenant, asked.response_id)
        if berth is None:
            self._lanes.refuse(asked.stream_id, errors.response_not_found(asked.response_id))
        else:
            after = -1 if asked.starting_after is None else asked.starting_after
            self._lanes.rejoin(Rejoin(berth.lane, asked.response_id, after, size))

    # --- whose turn it is ---------------------------------------------------------------------------------------------

    def give_turns(self) -> None:
        """Hand on every request whose turn has come, and say every refusal that nothing stands before any more."""
        while (turn := self._lanes.next_turn()) is not None:
            match turn:
                case Run():
                    self._ask(turn)
                case Rejoin():
                    self._relays.begin(turn)
                case Withdraw():
                    self._end_unheard(turn, "cancelled", None)
                case Refuse():
                    self._refuse(turn.lane, turn.error)
                case _:
                    assert_never(turn)

    def _ask(self, turn: Run) -> None:
        lane = turn.create.stream_id
        if self._draining:
            self._lanes.ended(lane)
            self._refuse(lane, errors.shutting_down())
            return
        answer = self._ledger.open(turn)
        ask = Ask(answer.request, self._connection, self._tenant, turn.create, turn.received_at)
        if not self._tokeniser.offer(ask):
            self._lanes.ended(lane)
            self._refuse(lane, errors.server_overloaded("Too many requests wait to be read", RETRY_MS))
            return
        self._answers.add(answer)

    def _end_unheard(self, turn: Withdraw, reason: FinishReason, error: WireError | None) -> None:
        """The whole life of a response that the engine never hears of."""
        answer = self._ledger.open(turn)
        self._put(answer.finish(reason, error, int(self._unix_clock())))
        self._ledger.close(answer)

    # --- what the engine says, and what the client is told ------------------------------------------------------------

    def said(self, message: OfARequest) -> None:
        self._answers.said(message)

    def pass_on(self, text: Text) -> bool:
        """There is room: make frames of this text. False, and nothing done, when more follows from it than that: then
        it must be `said`, and taken in its turn."""
        return self._answers.pass_on(text)

    def take(self) -> None:
        """There is room: make frames of what waits, a bounded amount."""
        self._relays.take()
        self._answers.take()

    def heard(self, message: OfAReader | Relayed | RelayEnded) -> None:
        """Another connection, or the reaper, has something to say of a response that was resumed or may be."""
        if isinstance(message, Relayed | RelayEnded):
            self._relays.hear(message)
        else:
            self._answers.home.hear(message)

    def _end_relay(self, lane: Lane, error: WireError | None) -> None:
        self._lanes.ended(lane)
        if error is not None:
            self._refuse(lane, error)

    # --- the end ------------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Nothing new is accepted; what runs goes on."""
        self._draining = True
        self._answers.drain()

    def fail_elsewhere(self, error: WireError) -> None:
        """What this connection knew cannot be trusted: whatever of it is read elsewhere, or nowhere, ends."""
        self._answers.end_elsewhere(error)

    def end_all(self, error: WireError | None, *, keep: bool = False) -> bool:
        """Tell the end of everything that runs or waits: `failed` with `error`, else cancelled. What is already here of
        an answer is told first. The engine is told to let go, and may take its time. `keep`: what can be resumed is
        kept instead, for a client who comes back. Returns whether anything was."""
        reason: FinishReason = "cancelled" if error is None else "failed"
        kept = keep and self.relaying
        if keep:
            self._relays.leave(lost=True)
        else:
            self._relays.end_all(error)
        kept |= self._answers.end_all(error, keep=keep)
        self._lanes.withdraw_all()
        while (turn := self._lanes.next_turn()) is not None:
            match turn:
                case Withdraw():
                    self._end_unheard(turn, reason, error)
                case Refuse():
                    self._refuse(turn.lane, turn.error)
                case Rejoin():
                    self._lanes.ended(turn.lane)  # It stays where it is, for whoever comes back on another socket.
                case Run():
                    raise AssertionError("all that waited were withdrawn")
        return kept

    def turn_away(self, resume: Resume, error: WireError) -> None:
        """Whoever wanted to go on with a response here is told that he cannot."""
        self._answers.home.turn_away(resume, error)

    def lose_worker(self) -> None:
        self._answers.lose_worker()

    def abandon(self, *, lost: bool = False) -> None:
        """Nobody is there to be told any more: forget what waits, and let go of what runs. `lost`: there was no
        goodbye, so what was asked for as resumable is kept."""
        self._lanes.clear()
        self._answers.abandon(lost=lost)
        self._relays.leave(lost=lost)

    def write_off(self) -> None:
        """The engine will not be heard any more: close the books on what it still holds."""
        self._answers.write_off()

    def _refuse(self, lane: Lane, error: WireError, request: RequestId | None = None) -> None:
        self._put([error_event(error, lane)])
        self._ledger.refused(lane, error, request)
