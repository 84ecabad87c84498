"""The life of a request as it is shown: in order, to scale, and short however long it was."""

import io
from math import inf

import pytest
from rich.console import Console

from loadgen.tracing.timeline import MOST_CHUNKS, MOST_GAPS, Row, bar, print_life, rows
from loadgen.tracing.words import Names
from tests.loadgen.tracing.scenes import Scene, lives_of

A, B = "resp_aaaa1", "resp_bbbb1"


def told(scene: Scene, request: str) -> list[Row]:
    lives = lives_of(scene)
    return rows(lives.all[request], lives, Names(lives.all))


def texts(found: list[Row], part: str) -> list[str]:
    return [row.what for row in found if part in row.what]


def test_a_whole_life_is_told_in_its_order() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=100)
    scene.end(B, scene.prefill(B, 1.0, 100))
    scene.ask(A, 1.0, tokens=250, turn_at=1.2, tokenise_s=0.1, let_in_at=1.5, position=3)
    at = scene.decode(scene.prefill(A, 2.0, 250), 4, A)
    scene.end(A, at)
    found = told(scene, A)
    assert [row.what.split(":")[0].split(" from ")[0] for row in found] == [
        f"received on connection 1 at {found[0].what.split(' at ')[1].split(':')[0]}",
        "waited in its lane on the socket behind resp_bbbb",
        "tokenised",
        "queued in the waiting room, place 3",
        "queued at the scheduler for its first step",
        "prefill chunk 1 of 3",
        "prefill chunk 2 of 3",
        "prefill chunk 3 of 3",
        "first token",
        "first text delivered",
        "4 tokens, gap p50 12 ms, worst 12 ms",
        "finished",
    ]
    assert [round(row.at_s, 3) for row in found[:6]] == [0, 0, 0.2, 0.3, 0.5, 1.0]
    assert found[-1].what == "finished: length; 250 tokens in, 5 out"


def test_who_shared_a_chunk_is_named() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10, connection=1)
    scene.ask(B, 0.0, tokens=100, connection=2)
    at = scene.prefill(A, 0.01, 10)
    scene.prefill(B, at, 100, beside=(A,))
    [chunk] = texts(told(scene, B), "prefill chunk")
    assert chunk == "prefill chunk 1 of 1: 100 tokens from 0, step 2, 99 % its own, beside 1 answer"


def test_many_chunks_are_folded_and_a_slow_one_is_not() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=4000)
    at = 0.01
    for index in range(40):
        at = scene.step(at, 0.9 if index == 20 else 0.1, (A, index * 100, 100, index == 39))
    found = told(scene, A)
    shown = texts(found, "prefill chunk")
    assert [int(text.split()[2]) for text in shown] == [1, 2, 21, 39, 40]
    assert texts(found, "chunks, ")[1].startswith("17 chunks, 1,700 tokens: steps p50 100 ms, worst 100 ms")
    assert len(shown) <= MOST_CHUNKS


def test_of_many_slow_chunks_the_slowest_are_shown() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10_000)
    at = 0.01
    for index in range(100):
        at = scene.step(at, 1.0 + index / 100 if index > 60 else 0.1, (A, index * 100, 100, index == 99))
    shown = texts(told(scene, A), "prefill chunk")
    assert [int(text.split()[2]) for text in shown] == [1, 2, *range(95, 101)]


def test_ordinary_gaps_are_one_line_and_remarkable_ones_are_their_own() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10, connection=1)
    scene.ask(B, 0.0, tokens=400, connection=2)
    at = scene.decode(scene.prefill(A, 0.01, 10), 30, A)
    at = scene.prefill(B, at, 400, chunk=400, beside=(A,))
    scene.decode(at, 20, A)
    found = told(scene, A)
    assert texts(found, "gap") == [
        "30 tokens, gap p50 12 ms, worst 12 ms",
        "gap was a step of 403 ms, 99 % of it resp_bbbb's prefill of 400 tokens",
        "20 tokens, gap p50 12 ms, worst 12 ms",
    ]


def test_a_gap_over_its_target_is_shown_as_such() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10, itl_target_s=0.015)
    at = scene.decode(scene.prefill(A, 0.01, 10), 3, A)
    scene.decode(at, 1, A, took_s=0.02)
    assert texts(told(scene, A), "over its target") == [
        "gap, over its target of 15 ms, was a step of 20 ms, 100 % of it the decoding of this answer alone"
    ]


def test_so_many_remarkable_gaps_are_shown_and_no_more() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10)
    at = scene.prefill(A, 0.01, 10)
    for _ in range(30):
        at = scene.decode(scene.decode(at, 5, A), 1, A, took_s=0.2)
    found = told(scene, A)
    assert len(texts(found, "gap was")) == MOST_GAPS
    assert texts(found, "not shown") == [f"{30 - MOST_GAPS} more remarkable gaps are not shown"]


def test_pauses_preemptions_cancels_and_refusals_are_told() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=100)
    at = scene.step(0.01, 0.1, (A, 0, 100, True))
    scene.pause(A, at, at + 0.5)
    at = scene.step(at + 0.5, 0.1, (A, 0, 101, True))
    scene.cancel(A, at + 0.1)
    found = told(scene, A)
    assert texts(found, "paused") == ["paused: its reader had fallen behind"]
    assert texts(found, "preempted for memory") == ["read again: it had been preempted for memory"]
    assert texts(found, "finished") == ["finished: cancelled; 100 tokens in, 2 out"]
    assert texts(found, "its reader wanted no more")
    scene = Scene()
    scene.ask(B, 0.0, admitted=False)
    scene.refuse(B, 0.01, "server_overloaded")
    assert texts(told(scene, B), "refused") == ["refused: server_overloaded"]


def test_a_life_that_goes_on_says_so() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=100)
    scene.prefill(A, 0.01, 100)
    assert told(scene, A)[-1].what == "the trace ends; it is decoding"


@pytest.mark.parametrize(
    ("at_s", "took_s", "drawn"),
    [
        (0.0, 10.0, "██████████"),
        (5.0, 5.0, "     █████"),
        (5.0, 0.0, "     │    "),
        (10.0, 0.0, "         │"),
        (9.9, 3.0, "         █"),
    ],
)
def test_a_bar_is_to_scale(at_s: float, took_s: float, drawn: str) -> None:
    assert bar(at_s, took_s, 10.0, 10) == drawn
    assert len(bar(at_s, took_s, inf, 10)) == 10


@pytest.mark.parametrize("width", [60, 80, 200])
def test_it_fits_the_terminal(width: int) -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=3000)
    scene.decode(scene.prefill(A, 0.01, 3000), 30, A)
    lives = lives_of(scene)
    out = io.StringIO()
    print_life(lives.all[A], lives, Names(lives.all), Console(file=out, width=width, no_color=True))
    table = [line for line in out.getvalue().splitlines() if line.startswith(" ")]
    assert table
    assert all(len(line) <= width for line in table)
    assert "own prefill: 3,000 tokens in 30 chunks" in out.getvalue()
