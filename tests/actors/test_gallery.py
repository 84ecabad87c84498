"""What those who watch the whole engine are shown, in virtual time, and what they are not."""

import asyncio
from itertools import pairwise

import pytest
from msgspec import structs

from actors import gallery_taps
from actors.vocabulary import Vocabulary
from protocol.turns import Hello
from tests.actors.engine_house import CONFIG, ONE_AT_A_TIME
from tests.actors.gallery_house import GalleryHouse, all_ended, keep, play
from tests.simulation.sockets import Response
from tests.simulation.watchers import decode

SECRET = "zebra"


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
