"""A scenario on a real server: every request is sent when it is due, whatever became of the others.

Knows the order of arrivals, sockets and the clock, and makes a `Timeline` of what the client saw: a time for each
chunk of text, which may hold several tokens. Knows neither how the server came to be there nor what is printed.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from loadgen.client import NotOpened
from loadgen.figures import Exchange
from loadgen.lanes import SPARE, Pool
from loadgen.progress import Board, Display
from loadgen.warm_up import Lengths, request, text
from protocol.scenario import Arrival, Scenario
from protocol.timeline import Life, Timeline

TICK_S = 0.1
"""How often the progress is drawn and the event loop's lag sampled."""


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
        return sum(2 * (exchange.cached_tokens or 0) > (exchange.input_tokens or 0) for exchange in self.exchanges)


def lane_of(index: int) -> str:
    return f"r{index}"


def requests_of(scenario: Scenario, lengths: Lengths, model: str, seed: int) -> list[bytes]:
    """A frame for each arrival. No two prompts begin alike, so none is found in a prefix cache."""
    return [
        request(
            model,
            lane_of(index),
            text(seed, index, lengths.pieces(arrival.prompt_tokens)),
            arrival.output_tokens,
            **_wishes(scenario, arrival),
        )
        for index, arrival in enumerate(scenario.arrivals)
    ]


def _wishes(scenario: Scenario, arrival: Arrival) -> dict[str, object]:
    ttft_s, itl_s = scenario.targets(arrival)
    targets = {name: wanted * 1e3 for name, wanted in (("ttft_ms", ttft_s), ("itl_ms", itl_s)) if wanted < math.inf}
    wishes: dict[str, object] = {"targets": targets} if targets else {}
    if arrival.service_tier != "default":
        wishes["service_tier"] = arrival.service_tier
    return wishes


@dataclass(slots=True)
class _Stage:
    """A run under way."""

    scenario: Scenario
    requests: Sequence[bytes]
    pool: Pool
    board: Board
    start_s: float
    exchanges: list[Exchange]
    due_s: list[float | None]
    """When each was to be sent; None: it never came to that."""
    firsts: list[asyncio.Future[float | None]]
    """When each had its first text; None: it ended without."""
    late_worst_s: float = 0.0
    numbers: dict[str, int] = field(default_factory=dict)


async def play(
    scenario: Scenario,
    requests: Sequence[bytes],
    policy: str,
    pool: Pool,
    timeout_s: float,
    shown: Display,
    *,
    phase: str = "",
) -> Played:
    """Send the requests as the scenario says, wait for their ends, `timeout_s` at most, and tell what came of each.

    `phase`: what it is called while it runs, if not as the policy.

    Raises `NotOpened` when the sockets that are needed from the start do not open. A cancel is passed on.
    """
    arrivals = scenario.arrivals
    mean = max(1, sum(arrival.output_tokens for arrival in arrivals) // len(arrivals))
    board = Board(len(arrivals), mean, phase=f"{phase or policy}: opening sockets")
    nameless = sum(not arrival.client for arrival in arrivals)
    names = dict.fromkeys(arrival.client for arrival in arrivals if arrival.client)
    await pool.open_ahead(names, min(nameless, SPARE))
    loop = asyncio.get_running_loop()
    stage = _Stage(
        scenario,
        requests,
        pool,
        board,
        time.perf_counter(),
        [Exchange(0, index) for index in range(len(arrivals))],
        [None] * len(arrivals),
        [loop.create_future() for _ in arrivals],
        numbers=dict(zip((arrival.name for arrival in arrivals), count())),
    )
    board.phase, board.began_s = phase or policy, stage.start_s
    watcher = asyncio.create_task(_watch(stage, shown))
    timed_out = False
    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            for index, arrival in enumerate(arrivals):
                if arrival.after:
                    group.create_task(_send_after(stage, index))
            for index in sorted(range(len(arrivals)), key=lambda index: arrivals[index].at_s):
                if not arrivals[index].after:
                    due_s = stage.start_s + arrivals[index].at_s
                    await _until(due_s)
                    group.create_task(_send(stage, index, due_s))
    except TimeoutError:
        timed_out = True
    finally:
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
    end_s = time.perf_counter()
    lives = tuple(_life(stage, index, end_s) for index in range(len(arrivals)))
    return Played(Timeline(policy, lives), stage.exchanges, stage.late_worst_s, timed_out)


async def _until(due_s: float) -> None:
    if (left_s := due_s - time.perf_counter()) > 0:
        await asyncio.sleep(left_s)


async def _send_after(stage: _Stage, index: int) -> None:
    """One request that waits for the first tokens of others. When one of those ends without, it is never sent."""
    arrival = stage.scenario.arrivals[index]
    firsts = [await stage.firsts[stage.numbers[name]] for name in arrival.after]
    there = [at_s for at_s in firsts if at_s is not None]
    if len(there) < len(firsts):
        _over(stage, index)
        return
    due_s = max(there) + arrival.at_s
    await _until(due_s)
    await _send(stage, index, due_s)


async def _send(stage: _Stage, index: int, due_s: float) -> None:
    """One request, to its end."""
    exchange, first, client = stage.exchanges[index], stage.firsts[index], stage.scenario.arrivals[index].client
    stage.due_s[index] = due_s

    def on_text() -> None:
        stage.board.text()
        if not first.done():
            first.set_result(exchange.texts_s[0])

    try:
        socket = await stage.pool.of(client)
        try:
            stage.late_worst_s = max(stage.late_worst_s, time.perf_counter() - due_s)
            await socket.ask(lane_of(index), stage.requests[index], exchange, on_text)
        finally:
            stage.pool.back(client, socket)
    except NotOpened as declined:
        exchange.outcome, exchange.code, exchange.message = "refused", declined.code, str(declined)
        exchange.ended_s = time.perf_counter()
    _over(stage, index)


def _over(stage: _Stage, index: int) -> None:
    """It has ended, or will never begin."""
    stage.board.ended += 1
    stage.board.bar += max(0, stage.scenario.arrivals[index].output_tokens - len(stage.exchanges[index].texts_s))
    if not stage.firsts[index].done():
        stage.firsts[index].set_result(None)


async def _watch(stage: _Stage, shown: Display) -> None:
    """Draw the progress and note how late the event loop is, until cancelled."""
    while True:
        began_s = time.perf_counter()
        stage.board.open_sockets = len(stage.pool)
        shown.show(stage.board, began_s)
        await asyncio.sleep(TICK_S)
        stage.late_worst_s = max(stage.late_worst_s, time.perf_counter() - began_s - TICK_S)


def _life(stage: _Stage, index: int, end_s: float) -> Life:
    """What was never due arrives when all is over, so that it counts and waits for nothing."""
    arrival, exchange = stage.scenario.arrivals[index], stage.exchanges[index]
    ttft_target_s, itl_target_s = stage.scenario.targets(arrival)
    due_s = stage.due_s[index] if exchange.outcome != "not_sent" else end_s
    arrived_s = (end_s if due_s is None else due_s) - stage.start_s
    started_s = None
    if exchange.queue_ms is not None and exchange.texts_s and exchange.sent_s is not None:
        # The server's own wait, on this clock: what the request took to get there is not in it.
        started_s = exchange.sent_s - stage.start_s + exchange.queue_ms / 1e3
    finished = exchange.outcome == "finished"
    return Life(
        name=arrival.name,
        prompt_tokens=exchange.input_tokens or arrival.prompt_tokens,
        arrived_s=arrived_s,
        ttft_target_s=ttft_target_s,
        itl_target_s=itl_target_s,
        started_s=started_s,
        token_times=tuple(at_s - stage.start_s for at_s in exchange.texts_s),
        ended_s=exchange.ended_s - stage.start_s if exchange.ended_s is not None else None,
        finished=finished,
        outcome=(exchange.finish_reason or exchange.status or "") if finished else exchange.code or exchange.outcome,
        preemptions=exchange.preemptions,
    )
