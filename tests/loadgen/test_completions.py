import argparse
import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from loadgen.bodies import chat_body
from loadgen.client import NotOpened
from loadgen.command_line import server_url
from loadgen.completions import ChatSocket
from loadgen.figures import Exchange, Report
from loadgen.load import add_arguments, run
from tests.loadgen.chat_server import (
    Answer,
    Body,
    ChatServer,
    Script,
    answer,
    chat_server,
    chunk,
    event,
    usage,
)

BODY = chat_body("m", "Say hello.", max_output_tokens=5, temperature=0.0, ignore_eos=True)


async def asked(script: Script) -> tuple[Exchange, bool]:
    """One request to a server with that script: its record, and whether the socket can be asked again."""
    exchange = Exchange(0, 0)
    async with chat_server(script) as server:
        socket = await ChatSocket.open(server.url, None)
        usable = await socket.ask(BODY, exchange)
        await socket.close()
    return exchange, usable


async def rota_load(server: ChatServer, *flags: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args([server.url, "--api", "chat", "--quiet", *flags])
    return await asyncio.to_thread(run, args)


# -- what is sent


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.1:8000", "ws://127.0.0.1:8000/v1", "http://127.0.0.1:8000/"])
def test_every_way_to_write_the_server_means_the_same_path(text: str) -> None:
    assert server_url(text, "chat") == "http://127.0.0.1:8000/v1/chat/completions"


def test_ignore_eos_is_sent_only_when_wanted() -> None:
    assert json.loads(BODY) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 5,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    plain = chat_body("m", "Say hello.", max_output_tokens=5, temperature=0.0, ignore_eos=False)
    assert "ignore_eos" not in json.loads(plain)


async def test_the_load_takes_the_same_prompts_and_figures_over_http(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    async with chat_server(answer) as server:
        flags = ("--sockets", "3", "--requests", "2", "--warmup", "1", "--key", "secret", "--json", str(file))
        assert await rota_load(server, *flags) == 0
    assert len(server.requests) == 7
    assert len({request["messages"][0]["content"] for request in server.requests}) == 7
    assert {request["model"] for request in server.requests} == {"m"}, "the first that the server lists"
    assert all(request["ignore_eos"] for request in server.requests)
    assert server.connections == 4, "each is kept alive; the warm-up has one of its own"
    assert all("Authorization: Bearer secret\r\n" in head for head in server.heads)
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert (report.load.api, report.load.url) == ("chat", server.url)
    assert (report.requests.planned, report.requests.finished) == (6, 6)
    assert report.requests.by_finish_reason == {"length": 6}
    assert (report.tokens.input, report.tokens.cached_input, report.tokens.output) == (54, 12, 30)
    assert report.tokens.output_from_chunks == 0
    assert report.client.gap_ms is not None
    assert report.client.gap_ms.count == 12
    assert "6 of 6 requests finished (6 length)." in capsys.readouterr().out


async def test_no_server_is_one_sentence_and_exit_code_2(free_port: int, capsys: pytest.CaptureFixture[str]) -> None:
    nobody = ChatServer(answer)
    nobody.url = f"http://127.0.0.1:{free_port}"
    for flags in ((), ("--model", "m")):
        assert await rota_load(nobody, *flags) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"Nothing answers at http://127.0.0.1:{free_port}: is the server running?")
        assert said.count("\n") == 1


async def test_a_socket_that_does_not_open_says_why(free_port: int) -> None:
    with pytest.raises(NotOpened) as declined:
        await ChatSocket.open(f"http://127.0.0.1:{free_port}/v1/chat/completions", None)
    assert declined.value.code == "no_connection"


# -- what is recorded


async def test_an_answer_is_recorded_with_its_times_and_usage() -> None:
    exchange, usable = await asked(answer)
    assert usable
    assert (exchange.outcome, exchange.status, exchange.finish_reason) == ("finished", "incomplete", "length")
    assert len(exchange.texts_s) == 3, "the role and the empty delta are no text"
    assert exchange.sent_s is not None
    assert exchange.ended_s is not None
    assert exchange.sent_s <= exchange.texts_s[0] <= exchange.texts_s[-1] <= exchange.ended_s
    assert (exchange.input_tokens, exchange.cached_tokens, exchange.output_tokens) == (9, 2, 5)
    assert not exchange.tokens_are_chunks, "two tokens came in a chunk with others"


async def test_without_usage_tokens_are_chunks_and_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def uncounted(to: Answer, request: Body) -> None:
        to.begin()
        to.text("a", "b", "c")
        to.finish("stop")

    exchange, _ = await asked(uncounted)
    assert (exchange.outcome, exchange.status) == ("finished", "completed")
    assert (exchange.output_tokens, exchange.tokens_are_chunks) == (3, True)
    async with chat_server(uncounted) as server:
        assert await rota_load(server, "--sockets", "2", "--warmup", "0") == 0
    assert "6 of the tokens out are chunks: the server did not count tokens." in capsys.readouterr().out


async def test_events_that_share_a_piece_or_are_cut_are_all_read() -> None:
    async def in_lumps(to: Answer, request: Body) -> None:
        to.begin()
        both = event(chunk({"content": "a"})) + event(chunk({"content": "b"}))
        to.piece(both[:200])
        to.piece(both[200:])
        to.finish("length", usage(2))

    exchange, _ = await asked(in_lumps)
    assert (exchange.outcome, len(exchange.texts_s), exchange.output_tokens) == ("finished", 2, 2)


async def test_a_stream_without_done_ends_with_its_body() -> None:
    async def terse(to: Answer, request: Body) -> None:
        to.begin()
        to.text("a")
        to.piece(event(chunk({}, "stop")))
        to.raw(b"0\r\n\r\n")

    exchange, usable = await asked(terse)
    assert usable
    assert exchange.outcome == "finished"


async def test_a_server_that_closes_after_each_answer_is_asked_on_a_new_connection() -> None:
    async def answer_and_close(to: Answer, request: Body) -> None:
        to.begin("Connection: close")
        to.text("a")
        to.finish("length", usage(1))
        to.writer.close()

    exchanges = [Exchange(0, number) for number in range(3)]
    async with chat_server(answer_and_close) as server:
        socket = await ChatSocket.open(server.url, None)
        for exchange in exchanges:
            assert await socket.ask(BODY, exchange)
        await socket.close()
    assert server.connections == 3
    assert [exchange.outcome for exchange in exchanges] == ["finished"] * 3


async def test_a_connection_that_closes_under_the_next_request_is_replaced_once() -> None:
    carried: list[Answer] = []

    async def close_the_second_time(to: Answer, request: Body) -> None:
        if to in carried:
            to.writer.close()
        else:
            carried.append(to)
            await answer(to, request)

    exchanges = [Exchange(0, number) for number in range(3)]
    async with chat_server(close_the_second_time) as server:
        socket = await ChatSocket.open(server.url, None)
        for exchange in exchanges:
            assert await socket.ask(BODY, exchange)
        await socket.close()
    assert [exchange.outcome for exchange in exchanges] == ["finished"] * 3
    assert (server.connections, len(server.requests)) == (3, 5)


async def test_a_first_request_that_finds_its_connection_closed_is_not_sent_again() -> None:
    async def close(to: Answer, request: Body) -> None:
        to.writer.close()

    async with chat_server(close) as server:
        socket = await ChatSocket.open(server.url, None)
        assert not await socket.ask(BODY, exchange := Exchange(0, 0))
        await socket.close()
    assert (exchange.outcome, exchange.code) == ("dropped", "connection_closed")
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "body", "code", "message"),
    [
        (429, {"error": {"message": "No.", "type": "rate", "code": "overloaded"}}, "overloaded", "No."),
        (400, {"error": {"message": "No.", "type": "BadRequestError", "code": 400}}, "BadRequestError", "No."),
        (400, {"object": "error", "message": "No.", "type": "invalid", "code": "400"}, "invalid", "No."),
        (422, {"detail": "Unexpected: ignore_eos"}, "http_422", "Unexpected: ignore_eos"),
        (422, {"detail": [{"loc": ["body"], "msg": "bad"}]}, "http_422", '[{"loc":["body"],"msg":"bad"}]'),
        (500, {"error": "broken"}, "http_500", "broken"),
        (502, b"<html>", "http_502", "HTTP 502 Said"),
        (307, b"", "http_307", "HTTP 307 Said"),
    ],
)
async def test_a_refusal_has_the_servers_code_or_its_status(status: int, body: object, code: str, message: str) -> None:
    async def refuse(to: Answer, request: Body) -> None:
        to.plain(status, body)

    exchange, usable = await asked(refuse)
    assert usable, "the connection is kept"
    assert (exchange.outcome, exchange.code, exchange.message) == ("refused", code, message)


@pytest.mark.parametrize(("began", "outcome"), [(False, "refused"), (True, "failed")])
async def test_an_error_in_the_stream_ends_it(began: bool, outcome: str) -> None:
    async def break_off(to: Answer, request: Body) -> None:
        to.begin()
        if began:
            to.text("a")
        to.piece(event({"error": {"message": "Worker died.", "type": "InternalServerError", "code": 500}}))

    exchange, usable = await asked(break_off)
    assert usable, "on another connection"
    assert (exchange.outcome, exchange.code, exchange.message) == (outcome, "InternalServerError", "Worker died.")


@pytest.mark.parametrize(("reason", "code"), [(None, "no_finish_reason"), ("abort", "abort")])
async def test_an_answer_that_does_not_end_as_asked_has_failed(reason: str | None, code: str) -> None:
    async def abort(to: Answer, request: Body) -> None:
        to.begin()
        to.text("a")
        to.finish(reason, usage(1))

    exchange, usable = await asked(abort)
    assert usable
    assert (exchange.outcome, exchange.code, exchange.status) == ("failed", code, "failed")


async def test_a_connection_that_breaks_is_a_drop_and_its_other_requests_are_not_sent(tmp_path: Path) -> None:
    async def break_off(to: Answer, request: Body) -> None:
        to.begin()
        to.text("a")
        to.writer.close()

    file = tmp_path / "figures.json"
    async with chat_server(break_off) as server:
        assert await rota_load(server, "--sockets", "1", "--requests", "3", "--warmup", "0", "--json", str(file)) == 1
    report = msgspec.json.decode(file.read_bytes(), type=Report)
    assert (report.requests.dropped, report.requests.not_sent) == (1, 2)
    assert report.requests.dropped_by_code == {"connection_closed": 1}


@pytest.mark.parametrize("said", [b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata: {\n\n"])
async def test_what_is_no_event_is_unreadable(said: bytes) -> None:
    async def babble(to: Answer, request: Body) -> None:
        to.raw(said)

    exchange, usable = await asked(babble)
    assert not usable
    assert (exchange.outcome, exchange.code) == ("failed", "unreadable_event")


async def test_a_cancel_closes_the_connection_and_keeps_what_came() -> None:
    gone = asyncio.Event()
    seen = asyncio.Event()

    async def hang(to: Answer, request: Body) -> None:
        to.begin()
        to.text("a")
        assert await to.reader.read() == b""
        gone.set()

    exchange = Exchange(0, 0)
    async with chat_server(hang) as server:
        socket = await ChatSocket.open(server.url, None)
        asking = asyncio.create_task(socket.ask(BODY, exchange, seen.set))
        await seen.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await socket.close()
        await gone.wait()
    assert (exchange.outcome, len(exchange.texts_s)) == ("unfinished", 1)
