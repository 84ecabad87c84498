"""A server is told to leave while many ask, and another takes its port: nobody is left without a word."""

import asyncio
import socket
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.end_to_end.client import Client, connected
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server, start, until

PEOPLE = 18
WORDS = {1001: "the server is shutting down", 1012: "the server is shutting down"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Person:
    """Asks question after question until its socket is closed, and keeps how each ended."""

    def __init__(self, client: Client, number: int) -> None:
        self.client = client
        self.number = number
        self.accepted = 0
        self.ends: Counter[str] = Counter()

    async def ask_for_ever(self) -> None:
        try:
            while True:
                # Some are short, some take longer than they will be given.
                tokens = (5, 60, 8000)[self.number % 3]
                await self.client.create("Go on.", max_output_tokens=tokens, ignore_eos=True)
                answer = await self.client.answer()
                if answer.terminal["type"] == "error":
                    self.ends[answer.error["code"]] += 1
                    if answer.error["code"] == "shutting_down":
                        await self.client.closed()
                        return
                    continue
                self.accepted += 1
                self.ends[answer.response["rota"].get("error_code") or answer.reason] += 1
        except (EOFError, ConnectionClosed):
            return

    @property
    def left_hanging(self) -> int:
        """Responses that were created on this socket and had no terminal event."""
        created: int = sum(event["type"] == "response.created" for event in self.client.heard)
        ended = ("response.completed", "response.incomplete", "response.failed")
        over: int = sum(event["type"] in ended for event in self.client.heard)
        return created - over


async def test_a_restart_under_load_ends_every_accepted_answer_in_words(
    tmp_path: Path, legible_folder: Path, legible: Reference
) -> None:
    port = free_port()
    arguments = ("--model", str(legible_folder), "--dtype", "float32", "--grace-s", "2", "--max-running", "12")
    first = start(tmp_path / "first", *arguments, port=port)
    second: Server | None = None
    stack = AsyncExitStack()
    try:
        await asyncio.to_thread(first.wait_until_ready)
        people = [Person(await stack.enter_async_context(connected(first)), number) for number in range(PEOPLE)]
        asking = [asyncio.create_task(person.ask_for_ever()) for person in people]
        await until(lambda: _all_have_been_answered(people), what="load")
        first.terminate()
        await asyncio.gather(*asking)
        for person in people:
            code = await person.client.closed()
            assert code in WORDS, f"closed with {code}"
            assert person.client.connection.close_reason == WORDS[code]
            assert person.left_hanging == 0, "an answer was accepted and never ended"
        assert await first.exit_code() == 0
        ends = sum((person.ends for person in people), Counter[str]())
        print(dict(ends))
        assert set(ends) <= {"length", "shutting_down"}
        assert ends["shutting_down"] >= PEOPLE / 3, "those who asked for more than there was time for"
        logged = Counter(line["error_code"] or line["finish_reason"] for line in first.logged("request.finished"))
        heard = sum(
            event["type"] in ("response.completed", "response.incomplete", "response.failed")
            for person in people
            for event in person.client.heard
        )
        assert sum(logged.values()) == heard, "the log knows of another number of answers than those who asked"

        second = start(tmp_path / "second", *arguments, port=port)
        await asyncio.to_thread(second.wait_until_ready)
        async with connected(second) as client:
            answer = await client.ask("And now?", max_output_tokens=20)
            assert answer.text == legible.answer("And now?", 20).text
        second.terminate()
        assert await second.exit_code() == 0
    finally:
        await stack.aclose()
        for server in (first, second):
            if server is not None:
                server.kill()


async def _all_have_been_answered(people: list[Person]) -> bool:
    return all(len(one.client.heard) > 10 for one in people)


async def test_whoever_comes_while_a_server_leaves_is_turned_away_in_words_until_another_is_there(
    tmp_path: Path, legible_folder: Path
) -> None:
    """Every try to connect, from before the end of one server until after the start of the next, is answered by a
    socket, by 503 with a sentence, or by nobody listening; what was asked on a socket has an end or the socket a
    close."""
    port = free_port()
    arguments = ("--model", str(legible_folder), "--dtype", "float32", "--grace-s", "1")
    first = start(tmp_path / "first", *arguments, port=port)
    second: Server | None = None
    seen: Counter[str] = Counter()
    over = asyncio.Event()

    async def come_again(server: Server) -> None:
        while not over.is_set():
            try:
                async with connected(server) as client:
                    await client.create("Short.", max_output_tokens=3, ignore_eos=True)
                    answer = await client.answer()
                    seen[answer.error["code"] if answer.terminal["type"] == "error" else answer.reason] += 1
            except EOFError:
                seen["closed"] += 1
            except InvalidStatus as refused:
                said = bytes(refused.response.body)
                in_words = b"shutting_down" in said or b"being loaded" in said
                seen["turned away" if refused.response.status_code == 503 and in_words else "refused otherwise"] += 1
            except ConnectionRefusedError:
                seen["nobody"] += 1
            await asyncio.sleep(0.01)

    try:
        await asyncio.to_thread(first.wait_until_ready)
        coming = [asyncio.create_task(come_again(first)) for _ in range(4)]
        await until(lambda: _seen(seen, "length", 8))
        first.terminate()
        assert await first.exit_code() == 0
        await until(lambda: _seen(seen, "nobody", 1))
        second = start(tmp_path / "second", *arguments, port=port)
        await asyncio.to_thread(second.wait_until_ready)
        known = seen["length"]
        await until(lambda: _seen(seen, "length", known + 8), what="answer of the second server")
        over.set()
        await asyncio.gather(*coming)
        print(dict(seen))
        assert set(seen) <= {"length", "shutting_down", "closed", "turned away", "nobody"}
        second.terminate()
        assert await second.exit_code() == 0
    finally:
        over.set()
        for server in (first, second):
            if server is not None:
                server.kill()


async def _seen(seen: Counter[str], what: str, count: int) -> bool:
    return seen[what] >= count
