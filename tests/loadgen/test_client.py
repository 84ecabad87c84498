import json
import threading

import pytest
from websockets.sync.server import ServerConnection

from loadgen.bodies import request_body
from loadgen.client import NotOpened, Socket, Unreachable, first_model
from loadgen.figures import Exchange
from tests.loadgen.scripted_server import (
    Body,
    Script,
    answer,
    begin,
    end,
    refusal,
    response,
    say,
    scripted_server,
    usage,
)

BODY = request_body("m", "Say hello.", max_output_tokens=3, temperature=0.0, ignore_eos=True)


async def asked(script: Script) -> tuple[Exchange, bool]:
    """One request to a server with that script: its record, and whether the socket can be asked again."""
    exchange = Exchange(0, 0)
    with scripted_server(script) as server:
        socket = await Socket.open(server.url, None)
        usable = await socket.ask(BODY, exchange)
        await socket.close()
    return exchange, usable


def test_ignore_eos_is_sent_only_when_wanted() -> None:
    assert json.loads(BODY) == {
        "type": "response.create",
        "model": "m",
        "input": "Say hello.",
        "max_output_tokens": 3,
        "temperature": 0.0,
        "ignore_eos": True,
    }
    plain = request_body("m", "Say hello.", max_output_tokens=3, temperature=0.0, ignore_eos=False)
    assert "ignore_eos" not in json.loads(plain)


async def test_an_answer_is_recorded_with_its_times_and_the_servers_figures() -> None:
    exchange, usable = await asked(answer)
    assert usable
    assert exchange.outcome == "finished"
    assert (exchange.status, exchange.finish_reason, exchange.code) == ("incomplete", "length", None)
    assert len(exchange.texts_s) == 3, "the empty delta is no text"
    assert exchange.sent_s is not None
    assert exchange.ended_s is not None
    assert exchange.sent_s <= exchange.texts_s[0] <= exchange.texts_s[-1] <= exchange.ended_s
    assert (exchange.input_tokens, exchange.cached_tokens, exchange.output_tokens) == (9, 0, 3)
    assert (exchange.queue_ms, exchange.prefill_ms, exchange.server_ttft_ms) == (41.0, 12.0, 55.0)


async def test_times_are_taken_when_text_arrives_and_not_when_the_answer_ends() -> None:
    seen = threading.Event()

    def hold_the_end_until_the_text_is_seen(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        assert seen.wait(5)
        end(connection)

    exchange = Exchange(0, 0)
    with scripted_server(hold_the_end_until_the_text_is_seen) as server:
        socket = await Socket.open(server.url, None)
        assert await socket.ask(BODY, exchange, seen.set)
        await socket.close()
    assert exchange.ended_s is not None
    assert exchange.texts_s[0] < exchange.ended_s


async def test_a_server_without_the_rota_object_is_understood() -> None:
    def another_server(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        end(connection, rota=None)

    exchange, usable = await asked(another_server)
    assert usable
    assert (exchange.outcome, exchange.finish_reason, exchange.queue_ms) == ("finished", None, None)


async def test_a_stop_is_a_finish() -> None:
    def stop(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        end(connection, "completed", rota={"finish_reason": "stop"})

    exchange, _ = await asked(stop)
    assert (exchange.outcome, exchange.status, exchange.finish_reason) == ("finished", "completed", "stop")


@pytest.mark.parametrize(
    ("kind", "more", "code"),
    [
        (
            "failed",
            {
                "rota": {"finish_reason": "failed", "error_code": "worker_failed"},
                "error": {"code": "server_error", "message": "The worker stopped."},
            },
            "worker_failed",
        ),
        ("failed", {"rota": None, "error": {"code": "server_error", "message": "Sorry."}}, "server_error"),
        (
            "incomplete",
            {"status": "cancelled", "incomplete_details": None, "rota": {"finish_reason": "cancelled"}},
            "cancelled",
        ),
        ("incomplete", {"incomplete_details": {"reason": None}, "rota": {"finish_reason": "deadline"}}, "deadline"),
        ("incomplete", {"incomplete_details": {"reason": "content_filter"}, "rota": None}, "incomplete"),
    ],
)
async def test_an_answer_cut_short_by_the_server_is_a_failure_with_its_code(kind: str, more: Body, code: str) -> None:
    def cut_short(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        end(connection, kind, **more)

    exchange, usable = await asked(cut_short)
    assert usable
    assert (exchange.outcome, exchange.code) == ("failed", code)
    assert exchange.output_tokens == 3, "what was delivered counts"


async def test_a_refusal_is_recorded_with_its_code_and_leaves_the_socket_usable() -> None:
    def refuse(connection: ServerConnection, request: Body) -> None:
        say(connection, refusal("rate_limit_exceeded", "The queue is full. Try again in 1.5 s."))

    exchange, usable = await asked(refuse)
    assert usable
    assert (exchange.outcome, exchange.code) == ("refused", "rate_limit_exceeded")
    assert exchange.message == "The queue is full. Try again in 1.5 s."


async def test_an_error_after_created_is_a_failure_and_no_refusal() -> None:
    def break_off(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        say(connection, refusal("internal_error", "Something broke.", 500))

    exchange, _ = await asked(break_off)
    assert (exchange.outcome, exchange.code) == ("failed", "internal_error")


async def test_a_socket_closed_in_the_middle_is_dropped_with_its_close_code() -> None:
    def leave(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello", " there")
        connection.close(1013, "Too many sockets.")

    exchange, usable = await asked(leave)
    assert not usable
    assert (exchange.outcome, exchange.code, exchange.message) == ("dropped", "closed_1013", "Too many sockets.")
    assert len(exchange.texts_s) == 2


async def test_a_socket_that_breaks_without_a_close_frame_is_dropped_as_1006() -> None:
    def vanish(connection: ServerConnection, request: Body) -> None:
        begin(connection)
        connection.close_socket()

    exchange, usable = await asked(vanish)
    assert not usable
    assert (exchange.outcome, exchange.code) == ("dropped", "closed_1006")


@pytest.mark.parametrize("frame", ["not json", '"text"', '{"type": 7}', b"\xff\xfe"])
async def test_an_unreadable_event_is_a_failure_and_no_crash(frame: str | bytes) -> None:
    def babble(connection: ServerConnection, request: Body) -> None:
        connection.send(frame)

    exchange, usable = await asked(babble)
    assert not usable
    assert (exchange.outcome, exchange.code) == ("failed", "unreadable_event")


async def test_events_it_does_not_know_are_passed_over() -> None:
    def chatty(connection: ServerConnection, request: Body) -> None:
        say(connection, {"type": "response.new_in_2027", "delta": None, "response": response("queued")})
        answer(connection, request)

    exchange, _ = await asked(chatty)
    assert exchange.outcome == "finished"


async def test_one_socket_carries_one_request_after_another() -> None:
    counts = iter((3, 64))

    def count(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        end(connection, usage=usage(next(counts), cached_tokens=4))

    first, second = Exchange(0, 0), Exchange(0, 1)
    with scripted_server(count) as server:
        socket = await Socket.open(server.url, None)
        assert await socket.ask(BODY, first)
        assert await socket.ask(BODY, second)
        await socket.close()
        await socket.close()
    assert (first.output_tokens, second.output_tokens) == (3, 64)
    assert second.cached_tokens == 4


async def test_asking_on_a_socket_that_was_aborted_is_a_drop() -> None:
    exchange = Exchange(0, 0)
    with scripted_server(answer) as server:
        socket = await Socket.open(server.url, None)
        socket.abort()
        assert not await socket.ask(BODY, exchange)
        await socket.close()
    assert exchange.outcome == "dropped"


# -- opening


async def test_the_key_goes_in_the_header_and_only_when_there_is_one() -> None:
    with scripted_server(answer) as server:
        for key in ("secret", None):
            socket = await Socket.open(server.url, key)
            await socket.close()
    assert server.upgrades[0]["Authorization"] == "Bearer secret"
    assert "Authorization" not in server.upgrades[1]
    assert all("Sec-WebSocket-Extensions" not in upgrade for upgrade in server.upgrades), "compression would cost time"


async def test_a_declined_upgrade_brings_the_servers_code_and_sentence() -> None:
    body = json.dumps({"error": {"code": "websocket_connection_limit_reached", "message": "64 sockets are open."}})
    with scripted_server(answer) as server:
        server.decline = lambda upgrade: (429, body)
        with pytest.raises(NotOpened, match=r"answers: 64 sockets are open\.") as declined:
            await Socket.open(server.url, None)
    assert declined.value.code == "websocket_connection_limit_reached"


@pytest.mark.parametrize("body", ["<html>", "{}", '{"error": null}'])
async def test_a_declined_upgrade_without_a_code_has_its_status(body: str) -> None:
    with scripted_server(answer) as server:
        server.decline = lambda upgrade: (503, body)
        with pytest.raises(NotOpened, match="HTTP 503") as declined:
            await Socket.open(server.url, None)
    assert declined.value.code == "http_503"


async def test_a_port_nobody_listens_on_is_named_with_advice(free_port: int) -> None:
    with pytest.raises(
        NotOpened,
        match=rf"^Nothing answers at ws://127.0.0.1:{free_port}: is `rota serve` running there\? .*HOST:PORT\.$",
    ):
        await Socket.open(f"ws://127.0.0.1:{free_port}/v1/responses", None)


# -- the list of models


def test_the_first_model_listed_is_taken() -> None:
    with scripted_server(answer) as server:
        server.models = (200, '{"object": "list", "data": [{"id": "one"}, {"id": "two"}]}')
        assert first_model(server.url, "secret", 5.0) == "one"


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        ((404, "nothing here"), "answers: HTTP 404 Not Found"),
        ((200, "nothing here"), "does not list models"),
        ((200, '{"data": []}'), "lists no model"),
    ],
)
def test_a_server_without_a_list_of_models_asks_for_the_name(models: tuple[int, str], sentence: str) -> None:
    with scripted_server(answer) as server:
        server.models = models
        with pytest.raises(Unreachable, match=sentence) as unreachable:
            first_model(server.url, None, 5.0)
    assert "--model" in str(unreachable.value)
    assert "\n" not in str(unreachable.value)


@pytest.mark.parametrize(
    ("key", "hint"), [(None, "Give a key with --key."), ("wrong", "with --key is none of its keys.")]
)
async def test_who_lacks_the_key_is_told_of_it_and_not_of_the_model(key: str | None, hint: str) -> None:
    refusal = (401, '{"error": {"message": "The key is wrong."}}')
    with scripted_server(answer) as server:
        server.models = refusal
        server.decline = lambda upgrade: refusal
        with pytest.raises(Unreachable, match=rf"answers: The key is wrong\. \(.*{hint}\)$"):
            first_model(server.url, key, 5.0)
        with pytest.raises(NotOpened, match=rf"answers: The key is wrong\. \(.*{hint}\)$"):
            await Socket.open(server.url, key)


def test_a_server_that_is_not_ready_is_not_helped_by_a_name() -> None:
    with scripted_server(answer) as server:
        server.models = (503, '{"error": {"message": "The model is being loaded."}}')
        with pytest.raises(Unreachable, match=r"answers: The model is being loaded\.$"):
            first_model(server.url, None, 5.0)


def test_a_list_of_models_that_nobody_serves(free_port: int) -> None:
    with pytest.raises(Unreachable, match="is `rota serve` running"):
        first_model(f"ws://127.0.0.1:{free_port}/v1/responses", None, 5.0)


def test_a_server_that_accepts_and_says_nothing_is_given_up(silent_port: int) -> None:
    with pytest.raises(Unreachable, match=r"did not answer within 0\.2 s\."):
        first_model(f"ws://127.0.0.1:{silent_port}/v1/responses", None, 0.2)
