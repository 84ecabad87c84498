"""An engine that is watched, in virtual time: nothing depends on it, whatever fails, and nobody waits for a watcher."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from structlog.testing import capture_logs

from actors import gallery_lives
from actors.gallery import TICK_S, Gallery
from actors.vocabulary import Vocabulary
from protocol.messages import Tick, WatcherCame
from tests.actors.engine_house import ONE_AT_A_TIME, POISON
from tests.actors.gallery_house import GalleryHouse, all_ended, keep, play
from tests.simulation.sockets import Response

# --- nothing depends on it ---


def test_watching_changes_no_answer(vocabulary: Vocabulary) -> None:
    texts: list[list[str]] = []

    async def scene(house: GalleryHouse) -> None:
        if texts:
            house.watch()
        sockets = [house.open() for _ in range(12)]
        for number, socket in enumerate(sockets):
            house.ask(socket, input="d" * (number + 1))
        answers = [await house.answer(socket) for socket in sockets]
        assert all(isinstance(one, Response) for one in answers)
        texts.append([one.text for one in answers if isinstance(one, Response)])

    for _ in range(2):
        play(scene, vocabulary)
    assert texts[0] == texts[1]


def test_the_taps_are_shut_and_no_timer_runs_while_nobody_watches(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        gallery, taps = house.engine.gallery, house.engine._taps
        socket = house.open()

        def taken() -> int:
            return sum(lane.taken for lane in gallery.statistics().values())

        for _ in range(2):
            before = taken()
            house.ask(socket)
            await house.running_on(socket)
            await asyncio.sleep(5.0)
            assert taken() == before
            assert not taps.is_open
            assert not taps.take()
            watchers = [house.watch(), house.watch()]
            await house.until(lambda: all(one.books.frames for one in watchers))  # noqa: B023
            watchers[0].leave(1006)
            await asyncio.sleep(1.0)
            assert taps.is_open
            watchers[1].leave(1000)
            await asyncio.sleep(1.0)
        assert not taps.is_open

    play(scene, vocabulary)


def test_one_who_does_not_read_delays_nobody_and_is_told_later_what_he_missed(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        slow, other = house.watch(), house.watch()
        await house.until(lambda: slow.books.frames and other.books.frames)
        slow.read(False)
        sockets = [house.open() for _ in range(3)]
        for socket in sockets:
            house.ask(socket)
            await house.whole_answer(socket)
        await house.shown(other, lambda lives: len(lives) == 3 and all_ended(lives))
        assert not other.books.missed
        assert len(slow.books.lives) < 3
        slow.read(True)
        lives = await house.shown(slow, lambda lives: len(lives) == 3 and all_ended(lives))
        assert slow.books.missed > 5
        assert [life.output_tokens for life in lives] == [126] * 3

    play(scene, vocabulary)


def test_one_for_whom_too_much_has_been_forgotten_is_told_to_come_anew(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_lives, "MOST_ENDED", 2)

    async def scene(house: GalleryHouse) -> None:
        slow, other = house.watch(), house.watch()
        await house.until(lambda: slow.books.frames and other.books.frames)
        slow.read(False)
        socket = house.open()
        for number in range(6):
            house.ask(socket, max_output_tokens=2)
            await house.answer(socket, number)
            await asyncio.sleep(0.5)
        slow.read(True)
        await house.until(lambda: slow.closed)
        assert slow.closed == 1008
        assert other.closed is None

    play(scene, vocabulary)


# --- when something fails ---


@pytest.mark.parametrize("traced", [False, True])
def test_when_the_worker_is_started_anew_every_life_ends_and_others_begin(vocabulary: Vocabulary, traced: bool) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = keep(house)
        socket = house.open()
        house.ask(socket)
        await house.running_on(socket)
        house.engine.scheduler.tell(POISON)
        await house.answer(socket)
        [life] = await house.shown(watcher, all_ended)
        assert (life.state, life.reason) == ("finished", "failed")
        await house.until(lambda: not watcher.frames[-1].worker_up)
        await house.ready()
        await house.until(lambda: watcher.frames[-1].worker_up)
        house.ask(socket)
        await house.whole_answer(socket, 1)
        lives = await house.shown(watcher, lambda lives: len(lives) == 2 and all_ended(lives))
        assert lives[1].reason == "stop"

    with capture_logs():
        play(scene, vocabulary, traced=traced)


def test_a_worker_that_dies_is_shown_and_whoever_had_not_started_waits_for_the_next(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = keep(house)
        sockets = [house.open(), house.open()]
        house.ask(sockets[0])
        await house.running_on(sockets[0])
        house.ask(sockets[1])
        await house.shown(watcher, lambda lives: len(lives) == 2)
        house.workers[0].kill()
        await house.answer(sockets[0])
        await house.until(lambda: not watcher.frames[-1].worker_up)
        await house.whole_answer(sockets[1])
        lives = await house.shown(watcher, all_ended)
        assert [life.reason for life in lives] == ["failed", "stop"]

    with capture_logs():
        play(scene, vocabulary, ONE_AT_A_TIME)


def test_when_the_gallery_fails_its_watchers_are_closed_and_the_engine_goes_on(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Gallery.handle
    fails = [True]

    def failing(self: Gallery, message: Any) -> None:
        if fails[0] and isinstance(message, Tick):
            raise ZeroDivisionError
        handle(self, message)

    monkeypatch.setattr(Gallery, "handle", failing)

    async def scene(house: GalleryHouse) -> None:
        socket = house.open()
        house.ask(socket)
        await house.running_on(socket)
        watchers = [house.watch(), house.watch()]
        await house.until(lambda: all(one.closed for one in watchers))
        assert [one.closed for one in watchers] == [1011, 1011]
        assert not house.engine._taps.is_open
        await house.whole_answer(socket)
        fails[0] = False
        again = house.watch()
        house.ask(socket)
        await house.whole_answer(socket, 1)
        await house.shown(again, all_ended)
        assert again.closed is None
        assert len(house.workers) == 1

    with capture_logs() as logs:
        play(scene, vocabulary)
    assert {(entry["event"], entry.get("actor")) for entry in logs if entry["log_level"] == "error"} == {
        ("actor.failed", "gallery")
    }


def test_whoever_comes_as_the_gallery_fails_is_closed_too(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = Gallery.handle

    def failing(self: Gallery, message: Any) -> None:
        if isinstance(message, WatcherCame):
            raise ZeroDivisionError
        handle(self, message)

    monkeypatch.setattr(Gallery, "handle", failing)

    async def scene(house: GalleryHouse) -> None:
        watcher = house.watch()
        await house.until(lambda: watcher.closed)
        assert watcher.closed == 1011

    with capture_logs():
        play(scene, vocabulary)


# --- the socket's life ---


def test_one_who_speaks_is_closed(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = house.watch()
        await house.until(lambda: watcher.books.frames)
        watcher.feed('{"type": "response.create"}')
        await house.until(lambda: watcher.closed)
        assert watcher.closed == 1008

    play(scene, vocabulary)


def test_watchers_see_the_last_answers_end_and_are_then_told_to_go(vocabulary: Vocabulary) -> None:
    watchers = []

    async def scene(house: GalleryHouse) -> None:
        socket = house.open()
        house.ask(socket)
        await house.running_on(socket)
        watchers.append(house.watch())
        await house.until(lambda: watchers[0].books.frames)
        house.engine.drain()
        await house.whole_answer(socket)
        assert watchers[0].closed is None
        assert house.engine.metrics.registry.get_sample_value("rota_watchers") == 1

    house = play(scene, vocabulary)
    assert watchers[0].closed == 1001
    assert house.engine.metrics.registry.get_sample_value("rota_watchers") == 0


def test_one_who_has_not_read_for_a_minute_is_let_go(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = house.watch()
        await house.until(lambda: watcher.books.frames)
        watcher.read(False)
        await house.until(lambda: watcher.closed)
        assert 60.0 < house.loop.time() < 65.0
        assert watcher.closed == 1008
        assert not house.engine._taps.is_open

    play(scene, vocabulary)


# --- when watching costs too much ---


def test_frames_come_less_often_when_they_take_long_to_make(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Gallery._look
    looked: list[float] = []

    def keep_time(self: Gallery, now: float) -> None:
        looked.append(now)
        look(self, now)

    async def scene(house: GalleryHouse) -> None:
        house.watch()
        socket = house.open()
        for number in range(5):
            house.ask(socket)
            await house.whole_answer(socket, number)

    monkeypatch.setattr(Gallery, "_look", keep_time)
    play(scene, vocabulary)
    usual = len(looked)
    looked.clear()
    listen = Gallery._listen

    def slow(self: Gallery) -> None:
        listen(self)
        self._spent_s += 0.005  # as if a handler had taken so long: here time stands still while one runs

    monkeypatch.setattr(Gallery, "_listen", slow)
    play(scene, vocabulary)
    assert len(looked) < 0.6 * usual
    assert min(later - one for one, later in pairwise(looked)) > 1.9 * TICK_S
