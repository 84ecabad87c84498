"""`/v1/turns` of a real server: what is shown of a real worker's steps, and what a key may see."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from protocol.trace import files_of
from protocol.turns import Frame, Hello, Life, TurnStep
from tests.end_to_end.client import connected
from tests.end_to_end.conftest import Start
from tests.end_to_end.server import Server, until

WORD = "Constantinople"
ANNA, BEN = "s3cret-key", "other-key"
decode = msgspec.json.Decoder(Hello | Frame).decode


class Seen:
    """All that one watcher has been shown."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.steps: list[TurnStep] = []
        self.lives: dict[int, Life] = {}
        self.last: Frame | None = None

    def add(self, frame: bytes) -> None:
        self.raw.append(frame)
        told = decode(frame)
        if isinstance(told, Frame):
            self.last = told
            self.steps += told.steps
            self.lives.update((life.request, life) for life in told.lives)

    async def over(self, count: int) -> None:
        async def look() -> bool:
            return len(self.lives) == count and all(life.ended_at is not None for life in self.lives.values())

        await until(look, what=f"end of {count} lives: {self.lives}")


@asynccontextmanager
async def watching(server: Server, key: str) -> AsyncIterator[Seen]:
    seen = Seen()

    async def read() -> None:
        async for frame in client:
            seen.add(frame if isinstance(frame, bytes) else frame.encode())

    async with connect(
        f"ws://127.0.0.1:{server.port}/v1/turns", additional_headers={"Authorization": f"Bearer {key}"}
    ) as client:
        reading = asyncio.create_task(read())
        yield seen
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("traced", [False, True])
async def test_two_keys_watch_one_anothers_turns_and_see_no_word_of_them(
    own: Start, legible_folder: Path, tmp_path: Path, traced: bool
) -> None:
    path = tmp_path / "trace.jsonl"
    trace = ("--trace", str(path)) if traced else ()
    keys = ("--api-keys", f"anna={ANNA}", "--api-keys", f"ben={BEN}")
    server = own("--model", str(legible_folder), "--dtype", "float32", "--chunk-tokens", "64", *keys, *trace)
    with pytest.raises(InvalidStatus):
        await connect(f"ws://127.0.0.1:{server.port}/v1/turns")
    async with watching(server, ANNA) as anna, watching(server, BEN) as ben, connected(server, key=ANNA) as client:
        await server.shows(lambda seen: seen.value("rota_watchers") == 2)
        first = await client.ask(f"Tell me of {WORD}. " * 20, max_output_tokens=12, ignore_eos=True)
        second = await client.ask("And more.", max_output_tokens=5, ignore_eos=True)
        for seen in (anna, ben):
            await seen.over(2)
        assert [life.id for life in anna.lives.values()] == [first.id, second.id]
        assert [life.id for life in ben.lives.values()] == [None, None]
        for life, answer in zip(anna.lives.values(), (first, second), strict=True):
            assert (life.reason, life.output_tokens) == ("length", answer.usage["output_tokens"])
            assert life.input_tokens == life.prefilled_tokens == answer.usage["input_tokens"]
            of_one = [part for step in anna.steps for part in step.parts if part.request == life.request]
            read = sum(part.tokens for part in of_one if part.kind == "prefill")
            assert read + life.cached_tokens == life.input_tokens
        for step in anna.steps:
            assert sum(part.share_ms for part in step.parts) == pytest.approx(step.took_ms, abs=1e-6)

        async def all_is_free() -> bool:
            return anna.last is not None and anna.last.pool is not None and not anna.last.pool.used

        await until(all_is_free)
        said = b"".join(anna.raw + ben.raw).decode()
        for word in (WORD, ANNA, BEN, "anna", first.text):
            assert word not in said
    await server.shows(lambda seen: seen.value("rota_watchers") == 0)
    if traced:
        assert b'"gallery"' in b"".join(file.read_bytes() for file in files_of(path))


async def test_a_killed_worker_and_its_successor_are_watched(own: Start, legible_folder: Path) -> None:
    server = own("--model", str(legible_folder), "--dtype", "float32", "--api-keys", f"anna={ANNA}")
    async with watching(server, ANNA) as seen, connected(server, key=ANNA) as client:
        asking = asyncio.create_task(client.ask("Tell me.", max_output_tokens=4000, ignore_eos=True))

        async def runs() -> bool:
            return bool(seen.steps)

        await until(runs)
        server.worker.send_signal(signal.SIGKILL)
        assert (await asking).reason == "failed"
        await seen.over(1)

        async def is_up(up: bool) -> bool:
            return seen.last is not None and seen.last.worker_up is up

        await until(lambda: is_up(False))
        await until(lambda: is_up(True))
        await client.ask("Again.", max_output_tokens=3, ignore_eos=True)
        await seen.over(2)
        assert [life.reason for life in seen.lives.values()] == ["failed", "length"]
