"""What nobody is told: texts and keys to whoever looks on, and one key's conversations to another."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from websockets.asyncio.client import connect

from actors.keys import table_of
from protocol.errors import previous_response_not_found
from tests.actors.certificates import client_context, make_certificate
from tests.end_to_end.client import Client, connected
from tests.end_to_end.conftest import Start
from tests.end_to_end.server import Server, serving, until

CANARY = "Xylophone-Quokka-7731"
KEYS = {"anna": "sesame-of-anna", "bert": "mellon-of-bert", "dora": "door-of-dora", "emil": "gate-of-emil"}
TYPED, TYPED_KEY = "cleo", "typed-for-cleo"
ENDLESS = {"max_output_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("apart")


@pytest.fixture(scope="module")
def guarded(folder: Path, legible_folder: Path) -> Iterator[Server]:
    """Keys from a file and from a flag, and a trace."""
    limits = {"dora": "requests_per_minute = 2\n", "emil": "running = 1\n"}
    tables = [table_of(name, key) + limits.get(name, "") for name, key in KEYS.items()]
    (folder / "keys.toml").write_text("\n".join(tables))
    arguments = ["--model", str(legible_folder), "--dtype", "float32", "--trace", str(folder / "trace.jsonl")]
    arguments += ["--keys-file", str(folder / "keys.toml"), "--api-keys", f"{TYPED}={TYPED_KEY}"]
    with serving(folder / "server", *arguments) as server:
        yield server


def pieces(text: str) -> list[str]:
    """Parts of a text that look the same in JSON, long enough not to be there by chance."""
    return [part for part in re.split(r"[^ !#-\[\]-~]", text) if len(part) >= 10]


def everything_seen(server: Server, folder: Path, metrics: bytes, frames: list[str]) -> dict[str, str]:
    """All that whoever looks on can read, by where."""
    traces = "".join(path.read_text() for path in folder.glob("trace.jsonl*"))
    assert traces
    return {
        "the metrics": metrics.decode(),
        "the turns": "".join(frames),
        "the trace": traces,
        "the log": server.errors,
        "standard output": server.output,
    }


async def test_no_text_and_no_key_is_in_metrics_turns_trace_log_or_process_listing(
    guarded: Server, folder: Path
) -> None:
    frames: list[str] = []
    watching = {"Authorization": f"Bearer {KEYS['anna']}"}
    url = guarded.url.replace("/v1/responses", "/v1/turns")
    async with (
        connect(url, additional_headers=watching, max_size=None) as watcher,
        connected(guarded, KEYS["anna"]) as anna,
    ):

        async def watch() -> None:
            async for frame in watcher:
                assert isinstance(frame, str)
                frames.append(frame)

        looking = asyncio.create_task(watch())
        answer = await anna.ask(
            f"Say {CANARY}.", instructions=f"You are {CANARY}.", stop=[CANARY], max_output_tokens=400, ignore_eos=True
        )
        await anna.send({"type": "response.create", "input": CANARY, "temprature": CANARY})
        await anna.answer()
        await anna.send('{"type": "response.create", "input": "' + CANARY)
        await anna.answer()

        async def watched() -> bool:
            return answer.id in "".join(frames)

        await until(watched, what="frame that tells of the answer")
        looking.cancel()
    await guarded.finished(answer.id)
    answer_parts = pieces(answer.text)
    assert answer_parts, "the answer says nothing that could be found again"
    seen = everything_seen(guarded, folder, (await guarded.get("/metrics"))[1], frames)
    seen["the process listing"] = " ".join(psutil.Process(guarded.process.pid).cmdline())
    seen["what the worker was started with"] = f"{guarded.worker.cmdline()} {guarded.worker.environ()}"
    assert answer.id in seen["the trace"]
    for where, text in seen.items():
        for secret in (CANARY, *answer_parts, *KEYS.values(), TYPED_KEY):
            assert secret not in text, f"{where} has {secret!r}"


async def test_a_watcher_with_another_key_is_not_told_the_id(guarded: Server) -> None:
    watching = {"Authorization": f"Bearer {KEYS['bert']}"}
    url = guarded.url.replace("/v1/responses", "/v1/turns")
    async with connect(url, additional_headers=watching, max_size=None) as watcher:
        await watcher.recv()
        async with connected(guarded, KEYS["anna"]) as anna, connected(guarded, KEYS["bert"]) as bert:
            hers = await anna.ask("Hello.", max_output_tokens=20)
            his = await bert.ask("Hello.", max_output_tokens=20)
        heard = ""
        async with asyncio.timeout(30):
            while his.id not in heard:
                heard += str(await watcher.recv())
        assert hers.id not in heard


async def test_a_conversation_cannot_be_continued_with_another_key(guarded: Server) -> None:
    async with connected(guarded, KEYS["anna"]) as anna, connected(guarded, KEYS["bert"]) as bert:
        first = await anna.ask("Hello.", max_output_tokens=20)
        refused = await bert.ask("And then?", previous_response_id=first.id)
        assert refused.error["code"] == "previous_response_not_found"
        assert refused.error["message"] == previous_response_not_found(first.id).message, "as if there were none"
        never = await bert.ask("And then?", previous_response_id="resp_never")
        assert never.error["message"] == refused.error["message"].replace(first.id, "resp_never")
    async with connected(guarded, KEYS["anna"]) as again:
        assert (await again.ask("And then?", previous_response_id=first.id, max_output_tokens=5)).id


async def test_an_answer_cannot_be_cancelled_or_resumed_with_another_key(guarded: Server) -> None:
    async with connected(guarded, KEYS["anna"]) as anna, connected(guarded, KEYS["bert"]) as bert:
        await anna.create("Hello.", max_output_tokens=1500, ignore_eos=True)
        started = await anna.until("response.created")
        name = started["response"]["id"]
        await anna.until("response.output_text.delta", 2)
        await bert.cancel_response(name)
        await bert.send({"type": "response.resume", "response_id": name, "starting_after": 0, "stream_id": "a"})
        own = await bert.lane("b").ask("Hello.", max_output_tokens=5, ignore_eos=True)
        assert (await anna.answer()).reason == "length"
        assert own.reason == "length"
        others = [event for event in bert.heard if event.get("stream_id") != "b"]
        assert {event["type"] for event in others} <= {"error"}, "of a response that is not his he hears nothing"


async def test_a_key_has_so_many_requests_a_minute_on_all_its_sockets_together(guarded: Server) -> None:
    async with connected(guarded, KEYS["dora"]) as one, connected(guarded, KEYS["dora"]) as other:
        await one.ask("Hello.", max_output_tokens=2)
        await other.ask("Hello.", max_output_tokens=2)
        refused = (await other.ask("Hello.", max_output_tokens=2)).error
    assert refused["code"] == "rate_limit_exceeded"
    assert "This key has asked 2 times within a minute, the most it may" in refused["message"]
    assert 0 < refused["retry_after_ms"] <= 60_000
    async with connected(guarded, KEYS["anna"]) as anna:
        assert (await anna.ask("Hello.", max_output_tokens=2)).reason in ("length", "stop")


async def test_a_key_has_so_many_running_on_all_its_sockets_together(guarded: Server) -> None:
    async with connected(guarded, KEYS["emil"]) as one, connected(guarded, KEYS["emil"]) as other:
        await one.create("Hello.", **ENDLESS)
        await one.until("response.output_text.delta")
        waits: Client = other
        await waits.create("Hello.", max_output_tokens=2)
        assert (await waits.until("response.queued"))["response"]["rota"]["position"] == 1
        refused = (await other.lane("third").ask("Hello.", max_output_tokens=2)).error
        assert refused["code"] == "rate_limit_exceeded"
        assert refused["retry_after_ms"] >= 1000
        async with connected(guarded, KEYS["anna"]) as anna:
            assert (await anna.ask("Hello.", max_output_tokens=2)).text is not None
        await one.cancel()
        assert (await one.answer()).reason == "cancelled"
        assert (await waits.answer()).text is not None


async def test_a_server_under_tls_says_so_and_answers(own: Start, legible_folder: Path, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    server = own(
        "--model", str(legible_folder), "--kernels", "none", "--tls-cert", str(certificate), "--tls-key", str(key)
    )
    [ready] = server.logged("engine.ready")
    assert ready["url"] == f"wss://127.0.0.1:{server.port}/v1/responses"
    assert f"https://127.0.0.1:{server.port}/" in server.output + ready["page"]
    async with connect(ready["url"], ssl=client_context(certificate), max_size=None) as client:
        await client.send(json.dumps({"type": "response.create", "input": "Hello.", "max_output_tokens": 50}))
        async with asyncio.timeout(60):
            async for frame in client:
                if json.loads(frame)["type"] in ("response.completed", "response.incomplete"):
                    break
