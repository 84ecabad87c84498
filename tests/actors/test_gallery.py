"""Who watches the whole engine, in virtual time: what is shown, to whom, and that nothing depends on it."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs

from actors import gallery_lives, gallery_taps
from actors.gallery import TICK_S, Gallery
from actors.vocabulary import Vocabulary
from protocol.messages import Tick, WatcherCame
from protocol.turns import Frame, Hello
from tests.actors.gallery_house import GalleryHouse, all_ended, play
from tests.actors.test_engine import CONFIG, ONE_AT_A_TIME, POISON
from tests.simulation.seeds import small_vocabulary
from tests.simulation.sockets import Response
from tests.simulation.watchers import WatchingSocket, decode

SECRET = "zebra"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


class Keeping(WatchingSocket):
    """Keeps every frame as it came."""

    def __init__(self) -> None:
        super().__init__()
        self.raw: list[bytes] = []
        take = self.books.take

        def keep(frame: bytes) -> None:
            self.raw.append(frame)
            take(frame)

        self.books.take = keep  # type: ignore[method-assign]

    @property
    def frames(self) -> list[Frame]:
        return [frame for frame in map(decode, self.raw) if isinstance(frame, Frame)]


def keep(house: GalleryHouse, tenant: str = "") -> Keeping:
    socket = Keeping()
    house.serving.append(asyncio.create_task(house.engine.open_watcher(socket, tenant), name="watcher"))
    return socket


# --- what is shown ---


@pytest.mark.parametrize("traced", [False, True])
def test_a_request_is_shown_from_its_coming_to_its_end(vocabulary: Vocabulary, traced: bool) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = keep(house)
        await house.until(lambda: watcher.frames)
        assert watcher.frames[0].lives == ()
        socket = house.open()
        house.ask(socket, max_output_tokens=40, targets={"ttft_ms": 500, "itl_ms": 50})
        response = await house.answer(socket)
        assert isinstance(response, Response)
        [life] = await house.shown(watcher, all_ended)
        assert (life.request, life.state, life.reason, life.id) == (1, "finished", "length", response.id)
        assert life.input_tokens == life.prefilled_tokens == response.usage["input_tokens"]
        assert life.output_tokens == life.max_output_tokens == 40
        assert (life.ttft_target_ms, life.itl_target_ms) == (500.0, 50.0)
        times = [life.received_at, life.started_at, life.first_token_at, life.ended_at]
        assert None not in times
        assert times == sorted(times)  # type: ignore[type-var]
        assert not life.first_seen_running
        steps = [step for frame in watcher.frames for step in frame.steps]
        assert [step.step for step in steps] == [*range(1, len(steps) + 1)], "few enough to show them all"
        assert {part.request for step in steps for part in step.parts} == {1}
        prefill = [part for step in steps for part in step.parts if part.kind == "prefill"]
        decode_ = [part for step in steps for part in step.parts if part.kind == "decode"]
        assert sum(part.tokens for part in prefill) == life.input_tokens
        assert [part.start for part in decode_] == [*range(life.input_tokens or 0, (life.input_tokens or 0) + 39)]
        ends = [step.at + step.took_ms / 1e3 for step in steps]
        gaps = [later - one for one, later in pairwise(ends)]
        assert life.worst_gap_ms == pytest.approx(max(gaps[-39:]) * 1e3, rel=0.01)
        assert {life.state for frame in watcher.frames for life in frame.lives} >= {"decoding", "finished"}

    play(scene, vocabulary, traced=traced)


def test_the_first_frame_says_what_is_served_and_the_second_who_is_there(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        running, waiting = house.open(), house.open()
        house.ask(running)
        await house.running_on(running)
        house.ask(waiting)
        await asyncio.sleep(0.1)
        began = house.loop.time()
        watcher = keep(house)
        await house.until(lambda: watcher.frames)
        assert house.loop.time() - began < 0.01, "at once"
        hello = decode(watcher.raw[0])
        assert isinstance(hello, Hello)
        assert hello == Hello(hello.at, "m", "slack", "none", "plain torch", 256, 64, 16, 1)
        assert hello.at == pytest.approx(began, abs=0.01)
        first, second = watcher.frames[0].lives
        assert (first.state, second.state, second.position) == ("decoding", "queued", 1)
        assert first.first_seen_running
        assert first.output_tokens > 0
        pool = watcher.frames[0].pool
        assert pool is not None
        assert pool.held == ((1, pool.used),)

    play(scene, vocabulary, ONE_AT_A_TIME)


def test_while_nothing_happens_a_frame_a_second_says_so(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = keep(house)
        await asyncio.sleep(10.0)
        assert 9 <= len(watcher.frames) <= 12
        assert all(frame.pool is None and not frame.steps for frame in watcher.frames[1:])

    play(scene, vocabulary)


def test_a_refused_request_says_by_which_error(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = house.watch()
        socket = house.open()
        house.ask(socket, deadline_ms=1)
        assert await house.answer(socket) == "deadline_exceeded"
        [life] = await house.shown(watcher, all_ended)
        assert (life.state, life.reason) == ("refused", "deadline_exceeded")

    play(scene, vocabulary)


def test_no_frame_holds_a_text(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = keep(house)
        socket = house.open()
        house.ask(socket, input=SECRET, metadata={"who": SECRET}, instructions=SECRET)
        response = await house.answer(socket)
        assert isinstance(response, Response)
        await house.shown(watcher, all_ended)
        said = b"".join(watcher.raw).decode()
        assert SECRET not in said
        assert response.text[:12] not in said

    play(scene, vocabulary)


def test_ids_are_told_to_the_key_that_asked_and_to_no_other(vocabulary: Vocabulary) -> None:
    async def scene(house: GalleryHouse) -> None:
        watchers = {name: keep(house, name) for name in ("anna", "ben", "")}
        for name in ("anna", "ben"):
            socket = house.open_as(name)
            house.ask(socket, max_output_tokens=5)
            await house.answer(socket)
        for watcher in watchers.values():
            await house.shown(watcher, lambda lives: len(lives) == 2 and all_ended(lives))
        seen = {name: [life.id is not None for life in w.books.lives.values()] for name, w in watchers.items()}
        assert seen == {"anna": [True, False], "ben": [False, True], "": [False, False]}
        assert b"resp_" not in b"".join(watchers[""].raw)
        assert len({watcher.books.steps for watcher in watchers.values()}) == 1

    play(scene, vocabulary)


@pytest.mark.parametrize("open_to_all", [False, True])
def test_without_a_key_ids_are_told_only_where_nobody_comes_in_from_elsewhere(
    vocabulary: Vocabulary, open_to_all: bool
) -> None:
    async def scene(house: GalleryHouse) -> None:
        watcher = house.watch()
        socket = house.open()
        house.ask(socket, max_output_tokens=5)
        await house.answer(socket)
        [life] = await house.shown(watcher, all_ended)
        assert (life.id is None) is open_to_all

    play(scene, vocabulary, structs.replace(CONFIG, allow_no_key=open_to_all))


def test_an_end_that_found_no_room_at_the_tap_is_shown_all_the_same(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_taps.Taps.__init__, "__defaults__", (2,))

    async def scene(house: GalleryHouse) -> None:
        watcher = house.watch()
        socket = house.open()
        house.ask(socket)
        await house.whole_answer(socket)
        [life] = await house.shown(watcher, all_ended)
        assert (life.state, life.reason) in (("finished", None), ("finished", "stop"), ("finished", "cancelled"))
        assert house.engine._taps.lost > 0

    play(scene, vocabulary)


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
