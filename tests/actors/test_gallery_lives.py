"""What is known of a request, from what is heard and what is seen of it."""

from typing import Any

import pytest
from msgspec import structs

from actors import gallery_lives
from actors.gallery_lives import Lives
from actors.gallery_taps import HeardTokens
from actors.scheduling.seen import seen_enqueue
from protocol import errors
from protocol.messages import Ended, Refused, Released, SeenRequest, Started, Stats
from protocol.turns import Life
from tests.actors.recorders import enqueue


def row(request: str = "r", **figures: Any) -> SeenRequest:
    return structs.replace(SeenRequest(request, "", "decoding", 100.0, 4, 9), **figures)


def of(lives: Lives, request: str = "r") -> Life:
    return lives.life(request, 1_000.0, with_id=False)


def came(request: str = "r", at: float = 101.0) -> Lives:
    lives = Lives()
    lives.enqueued(enqueue(request, received_at=100.0), at)
    return lives


def test_times_are_unix_and_durations_milliseconds() -> None:
    lives = Lives()
    lives.enqueued(enqueue("r", 5, received_at=100.0, ttft_target_s=0.5, itl_target_s=0.25, max_output_tokens=9), 101.0)
    life = of(lives)
    assert life == Life(
        1, "queued", 1_100.0, input_tokens=5, max_output_tokens=9, ttft_target_ms=500.0, itl_target_ms=250.0
    )


def test_the_worst_gap_is_the_longest_between_two_tokens_that_its_reader_did_not_ask_for() -> None:
    lives = came()
    for at in (102.0, 102.1, 102.4, 102.5):
        lives.tokens(HeardTokens(at, ("r", "unknown")))
    assert of(lives).worst_gap_ms == pytest.approx(300.0)
    lives.see([row(paused=True)], 103.0)
    assert of(lives).paused
    lives.see([row(paused=False)], 109.0)
    lives.tokens(HeardTokens(109.1, ("r",)))
    lives.tokens(HeardTokens(109.2, ("r",)))
    assert of(lives).worst_gap_ms == pytest.approx(300.0)


def test_one_whose_life_was_too_short_to_be_seen_is_known_by_its_end() -> None:
    lives = came()
    lives.started(Started("r", 101.5, 2))
    lives.ended(Ended("r", "stop", Stats(0.5, 0.25, 101.75, 2, 7, 1)), 103.0)
    life = of(lives)
    assert (life.state, life.reason, life.ended_at) == ("finished", "stop", 1_103.0)
    assert (life.started_at, life.first_token_at) == (1_101.5, 1_101.75)
    assert (life.prefilled_tokens, life.cached_tokens, life.output_tokens, life.preemptions) == (4, 2, 7, 1)


def test_an_end_is_final_whatever_was_seen_before_it() -> None:
    lives = came()
    lives.ended(Ended("r", "stop", Stats(output_tokens=7)), 103.0)
    lives.see([row(output_tokens=6)], 103.1)
    assert (of(lives).state, of(lives).output_tokens) == ("finished", 7)


def test_a_refusal_says_its_code() -> None:
    lives = came()
    lives.refused(Refused("r", errors.shutting_down()), 102.0)
    lives.released(Released("r", 102.0), 102.0)
    assert (of(lives).state, of(lives).reason) == ("refused", "shutting_down")


def test_one_that_is_released_and_has_nobody_to_be_told_of_its_end_was_cancelled() -> None:
    lives = came()
    lives.released(Released("r", 102.0, 101.9), 102.0)
    lives.settle(None)
    assert of(lives).ended_at is None, "its end may still be on its way"
    lives.next_frame()
    lives.settle(None)
    assert (of(lives).reason, of(lives).ended_at) == ("cancelled", 1_102.0)


def test_when_all_are_lost_they_have_failed_unless_another_end_was_on_its_way() -> None:
    lives = came()
    lives.enqueued(enqueue("s"), 101.0)
    lives.lost(102.0)
    assert [of(lives, request).reason for request in "rs"] == ["failed", "failed"]
    lives.ended(Ended("s", "cancelled", Stats()), 102.5)
    assert (of(lives, "s").reason, of(lives, "s").ended_at) == ("cancelled", 1_102.0)


def test_one_that_nobody_has_seen_for_long_has_ended() -> None:
    lives = came(at=101.0)
    for looked_at in (101.5, 101.9):
        lives.settle(looked_at)
    assert of(lives).ended_at is None, "it may be on its way from one to the other"
    lives.settle(102.5)
    assert (of(lives).state, of(lives).reason, of(lives).ended_at) == ("finished", None, 1_101.0)


def test_one_that_is_seen_again_in_time_lives_on() -> None:
    lives = came(at=101.0)
    for looked_at in (101.5, 101.9):
        lives.settle(looked_at)
    lives.see([row()], 102.0)
    lives.settle(102.0)
    lives.settle(104.0)
    assert of(lives).state == "decoding"


def test_only_what_has_changed_is_told_again() -> None:
    lives = came("a")
    lives.enqueued(enqueue("b"), 101.0)
    lives.next_frame()
    lives.see([seen_enqueue(enqueue("a", received_at=100.0)), row("b", output_tokens=3)], 102.0)
    assert [name for name, _ in lives.changed_since(1, all_living=False)] == ["b"]
    assert [name for name, _ in lives.changed_since(0, all_living=False)] == ["a", "b"]
    assert [name for name, _ in lives.changed_since(2, all_living=True)] == ["a", "b"]
    assert lives.has_changed
    lives.next_frame()
    assert not lives.has_changed


def test_one_whose_step_is_shown_after_its_end_is_told_once_more() -> None:
    lives = came()
    lives.ended(Ended("r", "cancelled", Stats()), 102.0)
    lives.next_frame()
    assert lives.drawn("r") == (1, 4)
    assert [name for name, _ in lives.changed_since(1, all_living=False)] == ["r"]
    assert lives.drawn("unknown") is None


def test_of_those_that_have_ended_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery_lives, "MOST_ENDED", 3)
    lives = Lives()
    for number in range(10):
        lives.enqueued(enqueue(str(number)), 101.0)
        lives.ended(Ended(str(number), "stop", Stats()), 102.0)
    assert len(lives) == 10, "they have not been shown yet"
    lives.next_frame()
    assert [name for name, _ in lives.changed_since(0, all_living=False)] == ["7", "8", "9"]
    assert lives.forgotten_in == 1


def test_however_many_come_so_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery_lives, "MOST_LIVES", 5)
    lives = Lives()
    for number in range(10):
        lives.enqueued(enqueue(str(number)), 101.0)
    assert len(lives) == 5
    lives.ended(Ended("0", "stop", Stats()), 102.0)
    lives.next_frame()
    lives.see([row("9")], 103.0)
    assert lives.drawn("9") == (6, 4), "a number is not used twice"


def test_blocks_are_told_of_those_that_live_and_hold_some() -> None:
    lives = Lives()
    rows = [row("a", blocks=3), row("b", blocks=0), row("c", blocks=2)]
    lives.see(rows, 101.0)
    lives.ended(Ended("c", "stop", Stats()), 102.0)
    assert lives.held(rows) == ((1, 3),)
