"""The answers under way on one connection: what the engine says of each goes in, and what its client is told comes out.

Knows each from the moment the engine has been asked until it has let go: its text and its end, whether its reader keeps
up, and where that reader is. Plain code: frames go out by `put`, and when there is room for more text is for the caller
to say. Knows no frame that came in, and of lanes only that a response's end frees its own.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import assert_never

from actors.actor import Address, Clock
from actors.answer import Answer, Reader
from actors.connection_limits import ConnectionLimits
from actors.home import Home, Resuming
from actors.lanes import Lane
from actors.ledger import Ledger
from protocol import errors
from protocol.errors import WireError
from protocol.events import error_event
from protocol.messages import (
    Accepted,
    Ask,
    Cancel,
    ConnectionClosed,
    ConnectionId,
    Ended,
    FinishReason,
    Moved,
    PromptRead,
    Refused,
    RequestId,
    SetPaused,
    Started,
    Stats,
    Text,
)

ToTokeniser = Ask | Cancel | ConnectionClosed
OfARequest = Text | Accepted | Moved | Started | PromptRead | Ended | Refused
"""What the engine says of a request."""


class Answers:
    """Every one of them ends here exactly once: refused, or told its terminal event, or given up with its reader."""

    def __init__(
        self,
        *,
        connection: ConnectionId,
        tenant: str,
        put: Callable[[list[bytes]], None],
        refuse: Callable[[Lane, WireError, RequestId], None],
        free_lane: Callable[[Lane], None],
        tokeniser: Address[ToTokeniser],
        scheduler: Address[SetPaused],
        clock: Clock,
        unix_clock: Callable[[], float],
        ledger: Ledger,
        limits: ConnectionLimits,
        resuming: Resuming,
    ) -> None:
        self._put = put
        self._refuse = refuse
        self._free = free_lane
        self._tokeniser = tokeniser
        self._scheduler = scheduler
        self._clock = clock
        self._unix_clock = unix_clock
        self._ledger = ledger
        self._limits = limits
        self._answers: dict[RequestId, Answer] = {}
        """Every request the engine may still say something of, its `Ended` or `Refused` above all."""
        self._running: dict[Lane, Answer] = {}
        """Those whose clients wait here for a terminal event."""
        self._ready: OrderedDict[RequestId, Answer] = OrderedDict()
        """Those with something to take here, next first."""
        self.home = Home(
            connection=connection,
            tenant=tenant,
            answers=self,
            resuming=resuming,
            clock=clock,
            unix_clock=unix_clock,
            ledger=ledger,
            turn_bytes=limits.turn_bytes,
        )

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def ready(self) -> bool:
        """There is something to take here."""
        return bool(self._ready)

    @property
    def elsewhere(self) -> bool:
        """Some are read elsewhere, or may be."""
        return any(answer.reader in (Reader.AFAR, Reader.NOWHERE) for answer in self._answers.values())

    def add(self, answer: Answer) -> None:
        """The engine has been asked; its lane is taken."""
        self._answers[answer.request] = answer
        self._running[answer.lane] = answer
        self.home.add(answer)

    def answer(self, request: RequestId) -> Answer | None:
        return self._answers.get(request)

    def running(self, lane: Lane) -> Answer | None:
        return self._running.get(lane)

    # --- what the engine says -----------------------------------------------------------------------------------------

    def said(self, message: OfARequest) -> None:
        answer = self._answers.get(message.request)
        if answer is None or answer.complete:
            return  # Its end stands: of a request whose worker was lost, others may still be under way.
        match message:
            case Text():
                answer.add(message)
                if answer.unsent_chars > self._limits.pause_chars and not answer.paused:
                    self.set_paused(answer, True)
            case Accepted():
                self._ledger.accepted(message)
                self._say(answer, answer.accepted(message))
            case Moved():
                self._say(answer, answer.moved(message))
            case Started():
                self._say(answer, answer.started(message))
            case PromptRead():
                self._say(answer, answer.read(message.prefilled_tokens))
            case Ended():
                answer.end(message)
                if answer.told or answer.reader is Reader.NEVER:
                    self._let_go(answer)
            case Refused():
                self._refused(answer, message.error)
            case _:
                assert_never(message)
        self._wake(answer)

    def _say(self, answer: Answer, frames: list[bytes]) -> None:
        """Events that need not wait for room at this socket. Elsewhere they do; nowhere, they are kept as missed."""
        if answer.reader is Reader.HERE:
            self._put(frames)
        elif answer.reader is Reader.AFAR and frames:
            answer.miss(len(frames))

    def _wake(self, answer: Answer) -> None:
        """There may be something to take."""
        if answer.reader is Reader.AFAR:
            self.home.send(answer)
        elif answer.reader is Reader.HERE and answer.ready:
            self._ready.setdefault(answer.request, answer)

    def _refused(self, answer: Answer, error: WireError) -> None:
        if answer.reader is Reader.HERE and not answer.told and not answer.exists:
            del self._answers[answer.request]
            self.home.forget(answer)
            self._free_lane(answer)
            self._refuse(answer.lane, error, answer.request)
            return
        # Its client already holds a response, or has gone: it ends like one.
        if not answer.told and answer.reader is not Reader.NEVER:
            self._say(answer, answer.finish("failed", error, int(self._unix_clock())))
            if answer.reader is Reader.HERE:
                self._free_lane(answer)
        self._let_go(answer)

    def set_paused(self, answer: Answer, paused: bool, *, unread: bool = False) -> None:
        answer.paused = paused
        self._scheduler.tell(SetPaused(answer.request, paused, self._clock(), unread))

    # --- what the client is told --------------------------------------------------------------------------------------

    def pass_on(self, text: Text) -> bool:
        """There is room: make frames of this text. False, and nothing done, when it is not next, or more follows from
        it than that: then it must be `said`, and taken in its turn."""
        answer = self._answers.get(text.request)
        if self._ready or answer is None or answer.closed or answer.paused or text.end is not None:
            return False
        if answer.reader is not Reader.HERE:
            return False
        self._put(answer.take_text(text, self._clock()))
        self._ledger.count_told(answer)
        return True

    def take(self) -> None:
        """There is room: make frames of what waits, one answer after the other, a bounded amount."""
        left = self._limits.turn_bytes
        while left > 0 and self._ready:
            left -= self._take(self._ready.popitem(last=False)[1])

    def _take(self, answer: Answer) -> int:
        """Returns how much was taken, in bytes on the wire."""
        frames = answer.take(self._clock(), int(self._unix_clock()))
        self._put(frames)
        self._ledger.count_told(answer)
        if answer.told:
            self._free_lane(answer)
            self._let_go(answer)
        elif answer.paused:
            self.set_paused(answer, False)
        return sum(map(len, frames))

    def _free_lane(self, answer: Answer) -> None:
        del self._running[answer.lane]
        self._free(answer.lane)

    # --- the end ------------------------------------------------------------------------------------------------------

    def cancel(self, answer: Answer) -> None:
        """Its reader does not want it any more. Its end follows."""
        if answer.cancel():
            self._tokeniser.tell(Cancel(answer.request, self._clock(), answer.delivered_text))
            self._ready.pop(answer.request, None)
            self._wake(answer)

    def leave_lane(self, answer: Answer, error: WireError) -> None:
        """Its client is told here that it will hear no more of it, and its lane is free."""
        self._ready.pop(answer.request, None)
        self._put([error_event(error, answer.lane)])
        self._free_lane(answer)

    def finish(self, answer: Answer, error: WireError | None) -> None:
        """It ends now, whatever the engine may still say."""
        if not answer.cancelled and answer.ended is None:
            keep = answer.delivered_text if error is None else None
            self._tokeniser.tell(Cancel(answer.request, self._clock(), keep))
        reason: FinishReason = "cancelled" if error is None else "failed"
        self._say(answer, answer.finish(reason, error, int(self._unix_clock())))

    def given(self, answer: Answer) -> None:
        """Its reader has had its end, elsewhere."""
        if answer.ended is not None:
            self._let_go(answer)

    def give_up(self, answer: Answer) -> None:
        """Nobody will be told any more of it."""
        self.home.forget(answer)
        answer.reader = Reader.NEVER
        if answer.ended is not None:
            self._let_go(answer)
        elif not answer.told and not answer.cancelled:
            self._tokeniser.tell(Cancel(answer.request, self._clock(), None))

    def end_all(self, error: WireError | None, *, keep: bool = False) -> bool:
        """Tell the end of everything that runs here: `failed` with `error`, else cancelled. What is already here of an
        answer is told first. The engine is told to let go, and may take its time. `keep`: what can be resumed is kept
        instead, for a client who comes back. Returns whether anything was."""
        kept = False
        for answer in list(self._running.values()):
            if answer.ready:
                self._take(answer)
            if answer.told:
                continue
            if keep and self.home.detach(answer):
                kept = True  # Its lane stays taken: nothing there may be told before its end.
                continue
            self.finish(answer, error)
            self._free_lane(answer)
            if answer.ended is not None:
                self._let_go(answer)
        self._ready.clear()
        return kept

    def end_elsewhere(self, error: WireError) -> None:
        """What is known here of them cannot be trusted: who reads them elsewhere is told, nobody is waited for."""
        for answer in list(self._answers.values()):
            self.home.end_afar(answer, error)

    def lose_worker(self) -> None:
        """Whoever held the requests of this socket has started anew and knows none of them: they have failed. So has
        one whose end was told but whose last text has not come: it may have been lost with them."""
        for answer in list(self._answers.values()):
            if not answer.complete:
                # Some may still be on their way there, and be taken up by the new ones.
                self._tokeniser.tell(Cancel(answer.request, self._clock(), None))
                reason: FinishReason = "cancelled" if answer.cancelled else "failed"
                stats = Stats() if answer.ended is None else answer.ended.stats
                self.said(Ended(answer.request, reason, stats, errors.worker_failed(answer.delivered_chars)))

    def drain(self) -> None:
        """Nobody will come back for what nobody reads."""
        self.home.close()
        for answer in list(self._answers.values()):
            if answer.reader is Reader.NOWHERE:
                self.give_up(answer)

    def abandon(self, *, lost: bool) -> None:
        """Nobody is here to be told any more: the engine is told to let go of what runs. `lost`: there was no goodbye,
        so what was asked for as resumable is kept."""
        self._ready.clear()
        for answer in list(self._answers.values()):
            if answer.reader is Reader.HERE and not (lost and self.home.detach(answer)):
                self.give_up(answer)
        self.home.lose_socket(lost=lost)

    def write_off(self) -> None:
        """The engine will not be heard any more: close the books on what it still holds."""
        for answer in list(self._answers.values()):
            answer.reader = Reader.NEVER
            self._let_go(answer)
        self.home.write_off()

    def _let_go(self, answer: Answer) -> None:
        """The engine has let go of it, and its client has been told or has gone: nothing more will be said of it."""
        del self._answers[answer.request]
        self._ledger.close(answer)
        self.home.outlive(answer)
