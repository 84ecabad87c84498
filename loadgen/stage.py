"""A scenario on a real server, as a `Timeline` to be put beside others.

Knows how what the client saw becomes lives: a time for each chunk of text, which may hold several tokens. Who comes
when is the `driver`'s. Knows neither how the server came to be there nor what is printed.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.bodies import Asking, Prepared
from loadgen.client import Socket
from loadgen.driver import drive, watching
from loadgen.exchange import Exchange
from loadgen.lanes import Pool
from loadgen.progress import Board, Display
from loadgen.run import Run
from loadgen.scene import requests_of as prepared_requests
from loadgen.sockets import Sockets, has_habits
from loadgen.warm_up import Lengths
from loadgen.wording import Pieces
from protocol.people import Person
from protocol.timeline import Life, Timeline


@dataclass(slots=True)
class Played:
    """What came of a scenario, and what is to be said of the client itself."""

    timeline: Timeline
    exchanges: list[Exchange]
    late_worst_s: float
    """The longest that a request was sent after it was due, or that the client's event loop was late."""
    timed_out: bool

    @property
    def output_tokens(self) -> int:
        """As the server counts them, of the answers that ended."""
        return sum(exchange.output_tokens or 0 for exchange in self.exchanges)

    @property
    def mostly_cached(self) -> int:
        """How many prompts; a little of each, what a chat template begins with, is always found again."""
        return sum(
            2 * (exchange.cached_tokens or 0) > (exchange.input_tokens or 0)
            for exchange in self.exchanges
            if exchange.question == 0
        )


def requests_of(people: Sequence[Person], lengths: Lengths, model: str, seed: int) -> list[list[Prepared]]:
    """Of each person, a frame for each question. No two prompts begin alike, so none is found in a prefix cache."""
    asking = Asking(api="responses", model=model, temperature=0.0, ignore_eos=True)
    return prepared_requests(people, asking, Pieces(seed, lengths), on_lanes=True)


async def play(
    people: Sequence[Person],
    requests: Sequence[Sequence[Prepared]],
    policy: str,
    pool: Pool,
    timeout_s: float,
    shown: Display,
    *,
    phase: str = "",
) -> Played:
    """Let the people come, wait for their ends, `timeout_s` at most, and tell what became of each request.

    `phase`: what it is called while it runs, if not as the policy.

    Raises `NotOpened` when the sockets that are needed from the start do not open. A cancel is passed on.
    """
    answers = [question.output_tokens for person in people for question in person.questions]
    board = Board(len(answers), max(1, sum(answers) // len(answers)), phase=f"{phase or policy}: opening sockets")
    sockets = Sockets(people, pool, Socket.open, on_lanes=lambda person: not has_habits(person))
    run = Run(people, sockets, board, requests, phase=phase or policy)
    timed_out = False
    try:
        async with watching(run, shown), asyncio.timeout(timeout_s):
            await drive(run)
    except TimeoutError:
        timed_out = True
    finally:
        await sockets.close()
    end_s = time.perf_counter()
    lives = tuple(
        _life(person, exchange, run.start_s, end_s)
        for person, mine in zip(people, run.by_person, strict=True)
        for exchange in mine
    )
    exchanges = run.exchanges
    late_worst_s = max((exchange.late_ms or 0.0 for exchange in exchanges), default=0.0) / 1e3
    return Played(Timeline(policy, lives), exchanges, max(run.lag_worst_s, late_worst_s), timed_out)


def _life(person: Person, exchange: Exchange, start_s: float, end_s: float) -> Life:
    """What was never due arrives when all is over, so that it counts and waits for nothing."""
    due_s = exchange.due_s
    started_s = None
    if exchange.queue_ms is not None and exchange.texts_s and exchange.sent_s is not None:
        # The server's own wait, on this clock: what the request took to get there is not in it.
        started_s = exchange.sent_s - start_s + exchange.queue_ms / 1e3
    finished = exchange.outcome == "finished"
    number = exchange.question
    return Life(
        name=person.name if number == 0 else f"{person.name}, question {number + 1}",
        prompt_tokens=exchange.input_tokens or person.questions[number].prompt_tokens,
        arrived_s=(end_s if due_s is None else due_s) - start_s,
        ttft_target_s=person.ttft_target_s,
        itl_target_s=person.itl_target_s,
        started_s=started_s,
        token_times=tuple(at_s - start_s for at_s in exchange.texts_s),
        ended_s=exchange.ended_s - start_s if exchange.ended_s is not None else None,
        finished=finished,
        outcome=(exchange.finish_reason or exchange.status or "") if finished else exchange.code or exchange.outcome,
        preemptions=exchange.preemptions,
    )
