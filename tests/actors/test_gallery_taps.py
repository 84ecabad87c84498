"""What a tap hears at a mailbox, and that it hears nothing while it is shut."""

import asyncio
from typing import Any

import pytest

from actors.actor import Mailbox
from actors.gallery_taps import HEARD, Anew, HeardDone, HeardFailed, HeardStep, HeardTokens, Taps
from actors.tracing import Tracer, mailboxes
from protocol.messages import (
    Chunk,
    Data,
    Released,
    SampledToken,
    Started,
    Step,
    StepDone,
    StepFailed,
    TokenRow,
    Tokens,
    TokensTaken,
    WorkerLost,
)
from tests.actors.recorders import HandClock, enqueue, token_bytes


async def handled(box: Mailbox[Any], *messages: Any) -> list[Any]:
    """What the handler was given, the messages having been sent to it."""
    given: list[Any] = []
    task = asyncio.create_task(box.each(given.append))
    for message in messages:
        if isinstance(message, Data):
            assert box.offer(message)
        else:
            box.tell(message)
    while len(given) < len(messages):  # noqa: ASYNC110  a turn costs nothing
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return given


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    ("name", "message", "heard"),
    [
        ("admission", enqueue("r"), enqueue("r")),
        ("scheduler", StepDone(4, (SampledToken(3),), 0.02), HeardDone(4, 0.02)),
        ("scheduler", StepFailed(4, "no memory"), HeardFailed(4)),
        ("scheduler", WorkerLost("gone", 1.0), WorkerLost("gone", 1.0)),
        (
            "executor",
            Step(4, (Chunk("r", 8, token_bytes([1, 2]), b"blocks"), Chunk("q", 3, token_bytes([5]), b"")), behind=3),
            HeardStep(4, ("r", "q"), (8, 3), (2, 1), behind=3),
        ),
        ("detokeniser", Tokens(4, 7.0, (TokenRow("r", SampledToken(1)),)), HeardTokens(7.0, ("r",))),
        ("connection 12", Started("r", 5.0), Started("r", 5.0)),
        ("reaper", Released("r", 5.0), Released("r", 5.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_is_handled_is_heard_with_the_time(name: str, message: Any, heard: Any, traced: bool) -> None:
    clock = HandClock(10.0)
    taps = Taps(clock)
    tracer = Tracer(clock, clock) if traced else None
    box = mailboxes(clock, tracer, taps.at)(name, 8)
    assert await handled(box, message) == [message]
    assert taps.take() == [], "it was shut"
    taps.open()
    clock.pass_(2.0)
    assert await handled(box, message) == [message]
    assert taps.take() == [(12.0, heard)]
    assert taps.take() == []
    assert tracer is None or len(tracer.records) == 2


async def test_what_is_of_no_interest_is_not_heard() -> None:
    clock = HandClock()
    taps = Taps(clock)
    taps.open()
    make = mailboxes(clock, None, taps.at)
    await handled(make("scheduler", 8), TokensTaken(1), enqueue("r"))
    await handled(make("tokeniser", 8), Released("r", 1.0))
    assert taps.take() == []


async def test_a_mailbox_that_was_made_before_it_opened_is_heard_and_shut_again() -> None:
    clock = HandClock()
    taps = Taps(clock)
    box = mailboxes(clock, None, taps.at)("reaper", 8)
    taps.open()
    await handled(box, Released("r", 1.0))
    taps.shut()
    assert taps.take() == []
    await handled(box, Released("r", 1.0))
    taps.start_anew()
    assert taps.take() == []


async def test_what_finds_no_room_is_counted_and_handled_all_the_same() -> None:
    clock = HandClock()
    taps = Taps(clock, most=2)
    taps.open()
    box = mailboxes(clock, None, taps.at)("reaper", 8)
    assert len(await handled(box, *(Released(str(number), 1.0) for number in range(5)))) == 5
    assert len(taps.take()) == 2
    assert taps.lost == 3
    taps.start_anew()
    assert [heard for _, heard in taps.take()] == [Anew()]
    taps.shut()
    assert taps.lost == 0


def test_every_message_is_heard_at_one_mailbox_only() -> None:
    kinds = [kind for kept in HEARD.values() for kind in kept]
    assert len(kinds) == len(set(kinds))
