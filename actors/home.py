"""The responses of one connection that outlive its socket: who reads them from afar, and what is kept for whom.

Knows, of those that were asked for as resumable, where their readers are and until when they are kept. Plain code: what
becomes of an answer otherwise (its lane, its request) is `actors.answers`' business, and frames go out as
messages. Knows no socket, no mailbox and no task.

A response is read HERE until its socket is lost without a goodbye. Then it is NOWHERE: paused, with its blocks, for the
grace time. A `Resume` makes it read AFAR: what was missed is made again and relayed, a bounded amount at a time, each
when the one before has been taken; once nothing is missed it is let run again. A newer `Resume` takes it from whoever
reads it. Its end is kept too, for as long again: the last frames may have gone into a socket that nobody read any more.
That time is not renewed by reading it: only when the socket it ended on is lost, which happens once.
"""

from collections.abc import Callable
from math import inf
from typing import Protocol, assert_never

from msgspec import Struct, field

from actors.actor import Clock
from actors.answer import Answer, Reader, Visit
from actors.ledger import Ledger
from actors.resumables import Resumables
from protocol import errors
from protocol.errors import WireError
from protocol.messages import (
    ConnectionId,
    Detached,
    GraceOver,
    ReaderLeft,
    RelayCancel,
    Relayed,
    RelayEnded,
    RelayTaken,
    RequestId,
    Resume,
)

OfAReader = Resume | RelayTaken | RelayCancel | ReaderLeft | GraceOver
"""What is said to a response's home of who reads it."""
ToElsewhere = OfAReader | Relayed | RelayEnded
"""What one connection says to another."""
Tell = Callable[[ConnectionId, ToElsewhere], None]


class Resuming(Struct, frozen=True):
    """What connections share to find each other's responses. Left as it is, nothing can be resumed."""

    resumables: Resumables = field(default_factory=Resumables)
    tell: Tell = lambda _, __: None
    watch: Callable[[Detached], None] = lambda _: None
    """The reaper's."""
    grace_s: float = 0.0


class Host(Protocol):
    """What is done with an answer, wherever it is read (`actors.answers`)."""

    def answer(self, request: RequestId) -> Answer | None: ...

    def leave_lane(self, answer: Answer, error: WireError) -> None: ...

    def cancel(self, answer: Answer) -> None: ...

    def finish(self, answer: Answer, error: WireError | None) -> None: ...

    def give_up(self, answer: Answer) -> None: ...

    def given(self, answer: Answer) -> None: ...

    def set_paused(self, answer: Answer, paused: bool, *, unread: bool = False) -> None: ...


class Home:
    """`kept` are those whose end has been told and of which the engine says nothing more."""

    def __init__(
        self,
        *,
        connection: ConnectionId,
        tenant: str,
        answers: Host,
        resuming: Resuming,
        clock: Clock,
        unix_clock: Callable[[], float],
        ledger: Ledger,
        turn_bytes: int,
    ) -> None:
        self._connection = connection
        self._tenant = tenant
        self._answers = answers
        self._resumables = resuming.resumables
        self._tell = resuming.tell
        self._watch = resuming.watch
        self._clock = clock
        self._unix_clock = unix_clock
        self._ledger = ledger
        self._grace_s = resuming.grace_s
        self._turn_bytes = turn_bytes
        self._kept: dict[RequestId, Answer] = {}
        self._closed = False
        """Nobody new will come back: the server is shutting down."""
        self.used = False
        """Whether anything here could ever be resumed."""

    @property
    def keeps(self) -> bool:
        return bool(self._kept)

    def add(self, answer: Answer) -> None:
        """It has been asked for. What cannot be resumed is no different from what was not to be."""
        if not self._grace_s or self._closed:
            answer.resumable = False
        if answer.resumable:
            self.used = True
            self._resumables.add(self._tenant, answer.request, self._connection, answer.lane)

    # --- who reads it -------------------------------------------------------------------------------------------------

    def hear(self, message: OfAReader) -> None:
        answer = self._answers.answer(message.request) or self._kept.get(message.request)
        if isinstance(message, Resume):
            self._resume(message, answer)
        elif answer is None:
            pass  # Its end has met this on its way.
        elif isinstance(message, GraceOver):
            if answer.kept_until <= message.at:
                self._out_of_time(answer)
        elif answer.reader is Reader.AFAR and answer.visit == Visit(message.connection, message.visit):
            self._said_by_reader(answer, message)

    def _resume(self, resume: Resume, answer: Answer | None) -> None:
        refusal = None
        if answer is None or not answer.resumable or answer.reader is Reader.NEVER:
            refusal = errors.response_not_found(resume.request)
        elif resume.starting_after >= answer.made:
            what = f"starting_after is {resume.starting_after:,}, and this response has had {answer.made:,} events"
            refusal = errors.invalid_request(f"{what}. Name the last one you were told.", "starting_after")
        if answer is None or refusal is not None:
            assert refusal is not None
            self.turn_away(resume, refusal)
            return
        elsewhere = errors.response_resumed_elsewhere(resume.request)
        if answer.visit is not None:
            self._tell(answer.visit.connection, RelayEnded(resume.request, answer.visit.number, elsewhere))
        elif answer.reader is Reader.HERE and not answer.told:
            self._answers.leave_lane(answer, elsewhere)
        if resume.request not in self._kept:
            self._be_read(answer)
        answer.attach(Visit(resume.connection, resume.visit), resume.starting_after)
        self._ledger.resumed(answer)
        self.send(answer)
        if answer.paused and answer.visit is not None and answer.ended is None:
            # Whether it is let run or not: somebody reads it again.
            self._answers.set_paused(answer, answer.behind)

    def turn_away(self, resume: Resume, error: WireError) -> None:
        self._tell(resume.connection, RelayEnded(resume.request, resume.visit, error))

    def _said_by_reader(self, answer: Answer, message: RelayTaken | RelayCancel | ReaderLeft) -> None:
        match message:
            case RelayTaken():
                answer.has_room = True
                self.send(answer)
            case RelayCancel(closing=False):
                self._answers.cancel(answer)
            case RelayCancel():
                self._end_now(answer, message.error)
            case ReaderLeft():
                if not (message.lost and self.detach(answer)):
                    self.lose(answer)
            case _:
                assert_never(message)

    def send(self, answer: Answer, most: float | None = None) -> None:
        """To its reader from afar, what there is to tell, if there is room for it."""
        if not answer.has_room or not (answer.ready or answer.given):
            return
        assert answer.visit is not None, "it is read from afar"
        most = self._turn_bytes if most is None else most
        frames = tuple(answer.take(self._clock(), int(self._unix_clock()), most))
        self._ledger.count_told(answer)
        answer.has_room = False
        self._tell(answer.visit.connection, Relayed(answer.request, answer.visit.number, frames, answer.given))
        if answer.given:
            answer.reader, answer.visit = Reader.NOWHERE, None
            if answer.request in self._kept:
                self._go_on_keeping(answer)
            else:
                self._answers.given(answer)
        elif answer.paused and not answer.behind:
            self._answers.set_paused(answer, False)

    def _end_now(self, answer: Answer, error: WireError | None) -> None:
        """Its reader's socket is about to be closed: what there is of it is told, and then its end."""
        answer.has_room = True
        if answer.ready:
            self.send(answer, inf)
        if answer.reader is Reader.AFAR and not answer.told:
            answer.has_room = True
            self._answers.finish(answer, error)
            self.send(answer, inf)

    # --- nobody reads it ----------------------------------------------------------------------------------------------

    def detach(self, answer: Answer) -> bool:
        """Its reader was lost without a goodbye. False: it is not kept."""
        over = answer.request in self._kept
        if self._closed or not answer.resumable:
            return False
        if over and answer.reader is Reader.AFAR and answer.kept_until < inf:
            if answer.kept_until <= self._clock():
                return False
        elif not self._leave_unread(answer, over=over):
            return False
        answer.reader, answer.visit = Reader.NOWHERE, None
        if not over:
            self._ledger.detached(answer)
            if answer.ended is None:
                self._answers.set_paused(answer, True, unread=True)
        return True

    def lose(self, answer: Answer) -> None:
        """Nobody will read it any more."""
        if answer.request in self._kept:
            self._drop(answer)
        else:
            self._answers.give_up(answer)

    def outlive(self, answer: Answer) -> None:
        """The engine has let go of it. If it was told to its end, that can be told again for a while."""
        if not answer.resumable:
            return
        if self._closed or not answer.told or answer.reader is Reader.NEVER:
            self.forget(answer)
            return
        answer.gaps = []
        self._kept[answer.request] = answer
        if answer.reader is not Reader.AFAR and answer.kept_until == inf:
            self._keep(answer)

    def lose_socket(self, *, lost: bool) -> None:
        """Those whose end was told at this connection's own socket: `lost`, it may not have got to its reader."""
        for answer in list(self._kept.values()):
            if answer.reader is Reader.HERE and not (lost and self.detach(answer)):
                self._drop(answer)

    def close(self) -> None:
        """Nobody new is let in any more, so nobody comes back."""
        self._closed = True
        for answer in list(self._kept.values()):
            if answer.reader is not Reader.AFAR:
                self._drop(answer)

    def end_afar(self, answer: Answer, error: WireError) -> None:
        """This connection has failed: wherever it is read, it ends."""
        if answer.reader is Reader.AFAR:
            self._end_now(answer, error)
        elif answer.reader is Reader.NOWHERE:
            self.lose(answer)

    def write_off(self) -> None:
        self.close()
        for answer in list(self._kept.values()):
            self._drop(answer)

    def forget(self, answer: Answer) -> None:
        """It cannot be resumed any more."""
        if answer.resumable:
            self._be_read(answer)
            self._resumables.remove(self._tenant, answer.request)
            answer.resumable = False

    def _keep(self, answer: Answer) -> None:
        if self._closed or not self._leave_unread(answer, over=True):
            self._drop(answer)

    def _go_on_keeping(self, answer: Answer) -> None:
        """It has been told again: for as long as it would have been kept without that."""
        if answer.kept_until == inf:
            self._keep(answer)
        elif self._closed or answer.kept_until <= self._clock():
            self._drop(answer)

    def _out_of_time(self, answer: Answer) -> None:
        if answer.reader is Reader.AFAR:
            # Whoever reads it may do so to its end.
            answer.kept_until = min(answer.kept_until, self._clock())
        else:
            self.lose(answer)

    def _drop(self, answer: Answer) -> None:
        del self._kept[answer.request]
        self.forget(answer)

    def _leave_unread(self, answer: Answer, *, over: bool) -> bool:
        size = answer.kept_bytes
        kept, give_way = self._resumables.leave_unread(self._tenant, answer.request, size, over=over)
        for other in give_way:
            berth = self._resumables.find(self._tenant, other)
            assert berth is not None, "it is still in the book"
            self._tell(berth.home, GraceOver(other, inf))
        if kept:
            answer.kept_until = self._clock() + self._grace_s
            self._watch(Detached(answer.request, self._connection, answer.kept_until))
        return kept

    def _be_read(self, answer: Answer) -> None:
        if answer.kept_until < inf:
            answer.kept_until = inf
            self._resumables.read(self._tenant, answer.request)
            self._watch(Detached(answer.request, self._connection, None))
