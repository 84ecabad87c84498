"""Runs of `rota load` made of numbers: what a client would have recorded of a server of a known speed.

Knows a server with so many places, each of which answers one request at a time. Opens no socket and takes no time.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadgen.figures import Exchange, Load, Report, report

Made = tuple[Report, list[Exchange]]
TTFT_TARGET_S, ITL_TARGET_S = 1.0, 0.1


def load(**changes: Any) -> Load:
    asked: dict[str, Any] = {
        "url": "ws://127.0.0.1:8000/v1/responses",
        "model": "SmolLM2-135M",
        "sockets": 2,
        "requests_per_socket": 0,
        "max_output_tokens": 200,
        "ignore_eos": True,
        "temperature": 0.0,
        "prompt_tokens": None,
        "warmup": 0,
        "seed": 7,
        "timeout_s": 300.0,
    }
    return Load(**asked | changes)


@dataclass(frozen=True)
class Server:
    """`places` answers at once, each at `gap_s` a chunk; a queue longer than `most_waiting` is refused."""

    places: int = 8
    gap_s: float = 0.03
    prefill_s: float = 0.15
    most_waiting: int = 30


def open_run(
    per_s: float,
    *,
    requests: int = 60,
    chunks: int = 80,
    seed: int = 1,
    server: Server | None = None,
    groups: Sequence[str] = ("",),
    scenario: str = "chat",
    load_changes: dict[str, Any] | None = None,
) -> Made:
    """Poisson arrivals at `per_s`, of people who now and then leave."""
    server = server or Server()
    chance = random.Random(seed)
    free = [0.0] * server.places
    exchanges = []
    began: list[float] = []
    due_s = 1000.0
    for number in range(requests):
        due_s += chance.expovariate(per_s)
        group = groups[number % len(groups)]
        made = Exchange(
            socket=number,
            number=0,
            due_s=due_s,
            sent_s=due_s + chance.expovariate(1 / 0.0004),
            connect_ms=chance.uniform(0.5, 3.0),
            person=f"{group or 'person'} {number}",
            group=group,
            ttft_target_s=TTFT_TARGET_S,
            itl_target_s=ITL_TARGET_S,
            input_tokens=None,
        )
        exchanges.append(made)
        made.first_byte_s = made.sent_s + 0.002 if made.sent_s is not None else None
        if sum(at_s > due_s for at_s in began) > server.most_waiting:
            made.outcome, made.code, made.message = "refused", "server_overloaded", "Too many wait."
            made.ended_s = made.first_byte_s
            continue
        start_s = max(due_s + 0.001, heapq.heappop(free))
        began.append(start_s)
        _answer(made, start_s, round(chunks * chance.uniform(0.5, 1.5)), server, chance)
        assert made.ended_s is not None
        heapq.heappush(free, made.ended_s)
    figures = report(
        load(sockets=requests, **(load_changes or {})),
        exchanges,
        stopped_by="finished",
        opened=requests,
        not_opened=[],
        client_lag_worst_s=0.004,
        scenario=scenario,
        arrivals=f"poisson, {per_s:g}/s",
        offered_per_s=per_s,
    )
    return figures, exchanges


def _answer(made: Exchange, start_s: float, chunks: int, server: Server, chance: random.Random) -> None:
    at_s = start_s + server.prefill_s * chance.lognormvariate(0.0, 0.3)
    assert made.due_s is not None
    made.queue_ms = (start_s - made.due_s) * 1e3
    made.prefill_ms = (at_s - start_s) * 1e3
    made.server_ttft_ms = made.queue_ms + made.prefill_ms
    leaves = chance.random() < 0.04
    for _ in range(max(1, chunks // 2 if leaves else chunks)):
        made.texts_s.append(at_s + 0.001)
        at_s += server.gap_s * chance.lognormvariate(0.0, 0.25) + (0.25 if chance.random() < 0.002 else 0.0)
    made.ended_s = made.texts_s[-1] + 0.002
    made.input_tokens = 140
    made.server_itl_p99_ms = server.gap_s * 1e3 * 1.7
    if leaves:
        made.outcome, made.left = "left", True
    elif chance.random() < 0.01:
        made.outcome, made.code, made.status = "failed", "worker_failed", "failed"
        made.message = "The worker failed; ask again."
    else:
        made.outcome, made.status, made.finish_reason = "finished", "incomplete", "length"
        made.output_tokens = len(made.texts_s)


def together(sockets: int = 16, chunks: int = 40, seed: int = 1) -> Made:
    """All at once, without a scenario and without targets."""
    _, exchanges = open_run(1e6, requests=sockets, chunks=chunks, seed=seed)
    for each in exchanges:
        each.ttft_target_s = each.itl_target_s = float("inf")
        each.person = ""
    asked = load(sockets=sockets, requests_per_socket=1, max_output_tokens=chunks, prompt_tokens=140)
    rest: dict[str, Any] = {"stopped_by": "finished", "opened": sockets, "not_opened": [], "client_lag_worst_s": 0.001}
    return report(asked, exchanges, **rest), exchanges


def all_refused(requests: int = 20, message: str = "Too many wait.", code: str = "server_overloaded") -> Made:
    """No request got any text."""
    exchanges = [
        Exchange(
            socket=number,
            number=0,
            outcome="refused",
            code=code,
            message=message,
            due_s=5.0 + number * 0.5,
            sent_s=5.0 + number * 0.5,
            ended_s=5.002 + number * 0.5,
            ttft_target_s=TTFT_TARGET_S,
        )
        for number in range(requests)
    ]
    rest: dict[str, Any] = {"stopped_by": "finished", "opened": 20, "not_opened": [], "client_lag_worst_s": 0.0}
    return report(load(), exchanges, **rest, scenario="chat", arrivals="fixed, 2/s", offered_per_s=2.0), exchanges


def nothing() -> Made:
    """A run that was stopped before its first request."""
    rest: dict[str, Any] = {"stopped_by": "interrupt", "opened": 0, "not_opened": [], "client_lag_worst_s": 0.0}
    exchanges = [Exchange(socket=number, number=0) for number in range(3)]
    return report(load(), exchanges, **rest, scenario="chat", arrivals="together"), exchanges
