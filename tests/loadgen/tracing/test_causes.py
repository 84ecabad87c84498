"""Where the time to a first text went, of traces whose truth is known."""

import random

import pytest
from msgspec import structs

from loadgen.tracing.causes import account, causes, sentence
from loadgen.tracing.lives import Lives
from loadgen.tracing.words import Names
from tests.loadgen.tracing.scenes import Scene, lives_of

A, B, C, D = "resp_aaaa1", "resp_bbbb1", "resp_cccc1", "resp_dddd1"


def said(scene: Scene, request: str) -> str:
    lives = lives_of(scene)
    life = lives.all[request]
    found = account(life, lives)
    assert found.parts.whole_s == pytest.approx(found.whole_s, abs=1e-6), "the parts add up to the whole"
    return sentence(life, lives, Names(lives.all), found)


# --- one cause ---


def test_queueing_behind_one_prefill_names_it_and_its_length() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=2000, connection=1)
    scene.ask(C, 0.1, tokens=100, connection=2)
    end = scene.prefill(B, 0.002, 2000, chunk=500)
    scene.prefill(C, end, 100)
    assert (
        said(scene, C) == "1.91 s of 2.01 s to the first token was queueing behind resp_bbbb's prefill (2,000 tokens)."
    )


def test_what_was_in_the_cache_is_not_counted_as_its_prefill() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=2500, connection=1)
    scene.ask(C, 0.1, tokens=100, connection=2)
    at = 0.002
    for start in range(1500, 2500, 500):
        at = scene.step(at, 0.6, (B, start, 500, start == 2000))
    scene.prefill(C, at, 100)
    assert "queueing behind resp_bbbb's prefill (1,000 tokens)" in said(scene, C)


def test_its_own_prefill_is_told_with_what_was_given_to_answers_beside_it() -> None:
    scene = Scene()
    for number, request in enumerate((A, C), 1):
        scene.ask(request, 0.0, tokens=50, connection=number)
    at = scene.decode(scene.prefill(C, scene.prefill(A, 0.002, 50), 50), 3, A, C)
    scene.ask(B, at, tokens=1200, connection=3)
    scene.prefill(B, at + 0.0011, 1200, chunk=100, beside=(A, C))
    # Each step is 104 ms, of which each of the two rows costs 1 of 102 parts.
    assert said(scene, B) == (
        "1.25 s of 1.25 s to the first token was its own prefill: 1,200 tokens in 12 chunks, 24 ms of it given to 2 "
        "answers that ran beside it."
    )


def test_queueing_behind_the_decoding_of_others_counts_them() -> None:
    scene = Scene()
    running = [f"resp_{number:04d}" for number in range(5)]
    for number, request in enumerate(running):
        scene.ask(request, 0.0, tokens=2, connection=number)
    at = 0.01
    for request in running:
        at = scene.step(at, 0.01, (request, 0, 2, True))
    scene.ask(B, at, tokens=100, connection=9)
    at = scene.decode(at, 100, *running)
    scene.prefill(B, at, 100)
    assert said(scene, B).endswith("s to the first token was queueing behind the decoding of 5 answers.")
    assert said(scene, B).startswith("1.20 s of 1.30 s")


def test_nobody_is_blamed_for_an_idle_device() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=100, let_in_at=0.9)
    scene.prefill(B, 1.0, 100)
    text = said(scene, B)
    assert text == "999 ms of 1.10 s to the first token was waiting for its first step while the device was idle."


def test_who_kept_the_event_loop_while_the_device_was_idle_is_named() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=100)
    scene.say("Tokenised", "thread", "tokeniser", 0.1, handled_s=0.8)
    scene.prefill(B, 1.0, 100)
    assert said(scene, B).endswith(
        "waiting for its first step while the device was idle and the event loop was kept for 800 ms, longest by "
        "tokeniser's Tokenised."
    )


def test_a_worker_that_is_started_again_is_named() -> None:
    scene = Scene()
    scene.ask(B, 1.0, tokens=100)
    scene.lose_worker(1.01)
    scene.ready(6.0)
    scene.prefill(B, 6.001, 100)
    assert "was waiting for the worker, which was being started again" in said(scene, B)
    assert said(scene, B).startswith("4.99 s of 5.10 s")


def test_a_step_that_the_worker_never_answered_is_time_without_a_worker() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10)
    at = scene.prefill(A, 0.01, 10)
    scene.say("Step", "scheduler", "executor", at, step=99, chunks=((A, 10, 1, True),), lane="data")
    scene.ask(B, at, tokens=100, connection=2)
    scene.lose_worker(at + 3.0)
    scene.ready(at + 4.0)
    scene.prefill(B, at + 4.0, 100)
    assert "started again" in said(scene, B)
    assert said(scene, B).startswith("4.00 s")


def test_a_worker_that_still_loads_is_named() -> None:
    scene = Scene(ready_at=3.0)
    scene.ask(B, 0.5, tokens=100)
    scene.prefill(B, 3.0, 100)
    assert "was waiting for the worker, which was still loading" in said(scene, B)


def test_waiting_in_its_lane_names_the_answer_before_it() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=100, connection=7)
    at = scene.decode(scene.prefill(A, 0.01, 100), 80, A)
    scene.end(A, at)
    scene.ask(B, 0.2, tokens=50, connection=7, turn_at=at + 0.001)
    scene.prefill(B, at + 0.002, 50)
    assert "was waiting in its lane on the socket behind resp_aaaa's answer" in said(scene, B)
    assert account(lives_of(scene).all[B], lives_of(scene)).parts.lane_s == pytest.approx(at + 0.001 - 0.2, abs=1e-4)


def test_the_tokeniser_is_named_when_it_took_the_time() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=300, tokenise_s=2.0)
    scene.prefill(B, 2.001, 300)
    assert said(scene, B) == "2.00 s of 2.31 s to the first token was the tokeniser's, for its prompt (300 tokens)."


def test_delivery_is_named_when_the_socket_took_the_time() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=100)
    scene.step(0.002, 0.1, (B, 0, 100, True), deliver_s=0.9)
    assert "was between its first token and its text at the socket" in said(scene, B)


# --- mixed causes ---


def test_two_causes_that_are_close_are_both_named() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=1000, connection=1)
    scene.ask(C, 0.0, tokens=900, connection=2)
    scene.prefill(C, scene.prefill(B, 0.002, 1000, chunk=500), 900, chunk=450)
    assert said(scene, C) == (
        "1.00 s of 1.91 s to the first token was queueing behind resp_bbbb's prefill (1,000 tokens), and 904 ms was "
        "its own prefill: 900 tokens in 2 chunks."
    )


def test_a_second_cause_that_is_far_from_the_first_is_not_named() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=1000, connection=1)
    scene.ask(C, 0.0, tokens=500, connection=2)
    scene.prefill(C, scene.prefill(B, 0.002, 1000, chunk=500), 500)
    assert "own prefill" not in said(scene, C)


def test_two_prefills_of_like_length_before_it_are_both_named() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=1000, connection=1)
    scene.ask(B, 0.0, tokens=900, connection=2)
    scene.ask(C, 0.0, tokens=50, connection=3)
    scene.prefill(C, scene.prefill(B, scene.prefill(A, 0.002, 1000), 900), 50)
    expected = "queueing behind resp_aaaa's prefill (1,000 tokens) and resp_bbbb's prefill (900 tokens)"
    assert expected in said(scene, C)


def test_many_short_prefills_before_it_are_counted() -> None:
    scene = Scene()
    others = [f"resp_{number:04d}" for number in range(8)]
    at = 0.002
    for number, request in enumerate(others):
        scene.ask(request, 0.0, tokens=100 + number, connection=number)
    scene.ask(C, 0.0, tokens=50, connection=20)
    for number, request in enumerate(others):
        at = scene.prefill(request, at, 100 + number, chunk=200)
    scene.prefill(C, at, 50)
    assert "queueing behind the prefills of 8 others (resp_0007's the longest, " in said(scene, C)


def test_a_long_chunk_in_the_same_steps_is_blamed_and_not_its_own_short_one() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=4000, connection=1)
    scene.ask(C, 0.0, tokens=100, connection=2)
    at = 0.002
    for part in range(4):
        at = scene.step(at, 1.0, (B, part * 900, 900, False), (C, part * 25, 25, part == 3))
    text = said(scene, C)
    assert "resp_bbbb's prefill (4,000 tokens), between and beside the chunks of its own prefill" in text
    assert text.startswith("3.89 s of 4.00 s")


def test_steps_between_its_chunks_are_told_apart_from_those_it_shared() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10, connection=1)
    at = scene.prefill(A, 0.001, 10)
    scene.ask(B, at, tokens=200, connection=2)
    at = scene.step(at + 0.0011, 0.1, (B, 0, 100, False))
    at = scene.decode(at, 5, A, took_s=0.02)
    scene.step(at, 0.1, (B, 100, 100, True))
    parts = account(lives_of(scene).all[B], lives_of(scene)).parts
    assert parts.without_s == pytest.approx(0.1, abs=1e-4)
    assert parts.own_prefill_s == pytest.approx(0.2, abs=1e-4)
    assert parts.shared_s == 0


def test_a_wait_before_and_beside_the_same_prefill_is_told_as_both() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=4000, connection=1)
    scene.ask(C, 0.0, tokens=100, connection=2)
    at = scene.step(0.002, 1.0, (B, 0, 1000, False))
    for part in range(2):
        at = scene.step(at, 1.0, (B, 1000 + part * 950, 950, False), (C, part * 50, 50, part == 1))
    text = said(scene, C)
    assert "was resp_bbbb's prefill (4,000 tokens): 1.00 s before its first step and 1.90 s between and beside" in text


def test_a_long_context_costs_what_the_server_has_learned() -> None:
    pairs_alone = (0.0, 0.0, 1e-6, 0.0, 0.0, 0.0)
    scene = Scene(coefficients=pairs_alone)
    scene.ask(A, 0.0, tokens=10_000, connection=1)
    scene.ask(B, 0.0, tokens=100, connection=2)
    scene.step(0.002, 1.0, (A, 9900, 100, True), (B, 0, 100, True))
    # 100 * 9,900 + 5,050 pairs against 5,050.
    parts = account(lives_of(scene).all[B], lives_of(scene)).parts
    assert parts.own_prefill_s == pytest.approx(5_050 / (995_050 + 5_050), rel=1e-6)


def test_without_learned_costs_a_step_is_shared_by_tokens() -> None:
    scene = Scene(coefficients=None)
    scene.ask(A, 0.0, tokens=300, connection=1)
    scene.ask(B, 0.0, tokens=100, connection=2)
    scene.step(0.002, 1.0, (A, 0, 300, True), (B, 0, 100, True))
    assert account(lives_of(scene).all[B], lives_of(scene)).parts.own_prefill_s == pytest.approx(0.25)


# --- lives that are not whole ---


def test_one_that_was_cancelled_while_it_waited_is_told_until_then() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=3000, connection=1)
    scene.ask(C, 0.1, tokens=100, connection=2)
    scene.cancel(C, 1.1)
    scene.prefill(B, 0.002, 3000, chunk=500)
    assert said(scene, C) == (
        "999 ms of 1.00 s until it was cancelled was queueing behind resp_bbbb's prefill (3,000 tokens)."
    )


def test_one_that_was_refused_is_told_so() -> None:
    scene = Scene()
    scene.ask(C, 0.1, admitted=False)
    scene.refuse(C, 0.104, "server_overloaded")
    assert said(scene, C) == "It was refused after 4.0 ms: server_overloaded."


def test_one_that_still_waits_is_told_until_the_trace_ends() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=3000, connection=1)
    scene.ask(C, 0.1, tokens=100, connection=2)
    scene.step(0.002, 2.0, (B, 0, 2000, False))
    assert "s until the trace ends was queueing behind resp_bbbb's prefill" in said(scene, C)


def test_a_request_whose_beginning_is_gone_is_not_judged_as_if_it_were_there() -> None:
    scene = Scene()
    scene.ask(B, 0.0, tokens=100)
    at = scene.prefill(B, 0.01, 100)
    scene.decode(at, 10, B)
    lives = Lives()
    for line in scene.lines:
        if line.time > scene.lines[0].time + at:
            lives.feed(line)
    lives.finish()
    life = lives.all[B]
    assert not life.whole
    assert life.ttft_s is None
    assert sentence(life, lives, Names(lives.all)).startswith("The trace does not hold its beginning, so ")


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_add_up_whatever_happened(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene()
    requests = [f"resp_{number:04d}" for number in range(12)]
    for number, request in enumerate(requests):
        at = chance.uniform(0, 2)
        scene.ask(request, at, tokens=300, connection=number % 4, turn_at=at + chance.choice([0, 0.3]) + 1e-5)
    at, read = 2.5, dict.fromkeys(requests, 0)
    while any(count < 300 for count in read.values()):
        chunks = []
        for request in chance.sample(requests, 3):
            left = 300 - read[request]
            count = min(left, chance.choice([1, 40, 100])) if left else 1
            chunks.append((request, read[request], count, left <= count))
            read[request] += count
        at = scene.step(at + chance.choice([0, 0.001, 0.2]), chance.uniform(0.001, 0.3), *chunks)
    lives = lives_of(scene)
    names = Names(lives.all)
    for life in lives.all.values():
        found = account(life, lives)
        assert found.parts.whole_s == pytest.approx(found.whole_s, abs=1e-6)
        assert all(seconds >= -1e-9 for seconds in structs.astuple(found.parts))
        assert found.whole_s == pytest.approx(life.ttft_s or 0.0)
        assert causes(life, lives, names, found)[0].seconds <= found.whole_s + 1e-6
