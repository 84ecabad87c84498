"""`rota chat` from the key that is pressed to the socket and back."""

import asyncio
import json
import threading

from prompt_toolkit.history import InMemoryHistory
from rich.console import Console
from websockets.sync.server import ServerConnection

from loadgen.chat_screen import TerminalScreen
from loadgen.chat_wire import Settings
from protocol.responses import Targets
from tests.loadgen.chat_person import Written, talking
from tests.loadgen.chat_scripts import Turns, refuses
from tests.loadgen.scripted_server import (
    ROTA,
    Body,
    answer,
    begin,
    delta,
    end,
    refusal,
    response,
    say,
    scripted_server,
)

DONE = "Output limit · 9 tokens in · 3 out"
STOPPED = "Stopped by you"


def until_cancelled(connection: ServerConnection, request: Body, *texts: str) -> None:
    """A script: some text, and no more until it is cancelled."""
    begin(connection, *(texts or ("Once upon",)))
    cancel = json.loads(connection.recv())
    assert cancel == {"type": "response.cancel", "response_id": "resp_1"}
    end_as_cancelled(connection)


def end_as_cancelled(connection: ServerConnection) -> None:
    rota = {**ROTA, "finish_reason": "cancelled"}
    end(connection, "incomplete", status="cancelled", incomplete_details=None, rota=rota)


# -- asking


async def test_a_question_is_asked_and_its_answer_and_cost_are_shown() -> None:
    with scripted_server(answer) as server:
        async with talking(server.url) as person:
            person.type("How are you?")
            await person.aside.shows(DONE)
            assert person.out.getvalue() == "Hello ✓.\n"
    assert server.requests == [{"type": "response.create", "model": "m", "input": "How are you?"}]
    assert person.code == 0
    assert "Talking to m." in person.aside.getvalue()


async def test_the_next_question_continues_on_the_same_socket_with_all_that_was_set() -> None:
    settings = Settings("m", "Be brief.", Targets(1000.0, None), None, 7, 50, 0.5)
    with scripted_server(answer) as server:
        async with talking(server.url, settings) as person:
            person.type("One?")
            await person.aside.shows(DONE)
            person.type("/tier fast")
            person.type("Two?")
            await person.aside.shows(DONE, 2)
    first, second = server.requests
    assert first == {
        "type": "response.create",
        "model": "m",
        "input": "One?",
        "instructions": "Be brief.",
        "targets": {"ttft_ms": 1000.0},
        "seed": 7,
        "max_output_tokens": 50,
        "temperature": 0.5,
    }
    assert second == {**first, "input": "Two?", "service_tier": "fast", "previous_response_id": "resp_1"}
    assert len(server.upgrades) == 1


async def test_alt_enter_begins_a_new_line_and_what_is_typed_during_an_answer_is_asked_after_it() -> None:
    with scripted_server(answer) as server:
        async with talking(server.url) as person:
            person.press("One\x1b\rmore?\rTwo?\r")
            await person.aside.shows(DONE, 2)
    assert [request["input"] for request in server.requests] == ["One\nmore?", "Two?"]


async def test_keys_pressed_while_an_answer_comes_in_are_kept_for_the_next_prompt() -> None:
    go_on = threading.Event()

    def slowly(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Hello")
        go_on.wait()
        end(connection)

    with scripted_server(Turns(slowly)) as server:
        async with talking(server.url) as person:
            person.type("One?")
            await person.out.shows("Hello")
            person.type("Two?")
            go_on.set()
            await person.aside.shows(DONE, 2)
    assert [request["input"] for request in server.requests] == ["One?", "Two?"]


async def test_commands_ask_nothing() -> None:
    with scripted_server(answer) as server:
        async with talking(server.url) as person:
            person.type("/seed 5")
            person.type("/sede 6")
            person.type("/help")
            await person.aside.shows("Alt-Enter")
    assert server.requests == []
    assert "Did you mean /seed?" in person.aside.getvalue()


async def test_quit_leaves() -> None:
    with scripted_server(answer) as server:
        async with talking(server.url) as person:
            person.type("/quit")
    assert person.code == 0


async def test_an_answer_cannot_send_escape_codes() -> None:
    def rude(connection: ServerConnection, request: Body) -> None:
        begin(connection, "\x1b[2J", "\x1b", "]0;title\x07")
        say(connection, refusal("server_error", "\x1b[2J\nno"))

    with scripted_server(rude) as server:
        async with talking(server.url, Settings("\x1b[2Jm")) as person:
            person.type("Hi")
            await person.aside.shows("Failed: [2J no")
    assert person.out.getvalue() == "[2J]0;title\n"
    assert "\x1b" not in person.aside.getvalue()


# -- stopping


async def test_ctrl_c_stops_the_answer_and_the_next_question_continues_it() -> None:
    with scripted_server(Turns(until_cancelled)) as server:
        async with talking(server.url) as person:
            person.type("A story.")
            await person.out.shows("Once upon")
            person.press("\x03")
            await person.aside.shows(STOPPED)
            person.type("Go on.")
            await person.aside.shows(DONE)
    assert server.requests[1]["previous_response_id"] == "resp_1"
    assert len(server.upgrades) == 1
    assert person.code == 0


async def test_a_second_ctrl_c_while_it_stops_changes_nothing() -> None:
    def reluctantly(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Once")
        json.loads(connection.recv())
        say(connection, delta(" more"))
        go_on.wait()
        end_as_cancelled(connection)

    go_on = threading.Event()
    with scripted_server(Turns(reluctantly)) as server:
        async with talking(server.url) as person:
            person.type("A story.")
            await person.out.shows("Once")
            person.press("\x03")
            await person.out.shows(" more")
            person.press("\x03\x03")
            go_on.set()
            await person.aside.shows(STOPPED)
            person.type("Go on.")
            await person.aside.shows(DONE)
    assert [request["type"] for request in server.requests] == ["response.create"] * 2


async def test_ctrl_c_before_the_response_has_an_id_stops_it_as_soon_as_it_has() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def late(connection: ServerConnection, request: Body) -> None:
        asked.set()
        go_on.wait()
        until_cancelled(connection, request, "")

    with scripted_server(Turns(late)) as server:
        async with talking(server.url) as person:
            person.type("A story.")
            await asyncio.to_thread(asked.wait)
            person.press("\x03")
            go_on.set()
            await person.aside.shows(STOPPED)
            person.type("Something else.")
            await person.aside.shows(DONE)
    assert "previous_response_id" not in server.requests[1]


async def test_a_server_that_does_not_stop_loses_its_socket() -> None:
    def deaf(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Once")
        connection.recv()
        connection.recv()

    with scripted_server(Turns(deaf)) as server:
        async with talking(server.url, stop_patience_s=0.01) as person:
            person.type("A story.")
            await person.out.shows("Once")
            person.press("\x03")
            await person.aside.shows(STOPPED)
            person.type("And now?")
            await person.aside.shows(DONE)
    assert len(server.upgrades) == 2


async def test_ctrl_c_at_an_empty_prompt_says_how_to_leave_and_clears_one_that_is_not() -> None:
    with scripted_server(answer) as server:
        async with talking(server.url) as person:
            await person.aside.shows("Ctrl-D")
            person.press("\x03")
            await person.aside.shows("Ctrl-D", 2)
            person.press("never mind\x03")
            person.type("Hi")
            await person.aside.shows(DONE)
    assert [request["input"] for request in server.requests] == ["Hi"]


# -- what goes wrong


async def test_a_full_server_is_asked_again_after_the_time_it_names() -> None:
    full = refuses("server_overloaded", "The queue is full.", retry_after_ms=1)
    with scripted_server(Turns(full, full)) as server:
        async with talking(server.url) as person:
            person.type("Hi")
            await person.aside.shows(DONE)
    assert len(server.requests) == 3


async def test_ctrl_c_gives_up_on_a_full_server() -> None:
    asked = threading.Event()

    def full(connection: ServerConnection, request: Body) -> None:
        refuses("rate_limit_exceeded", "Too many.", retry_after_ms=1e9)(connection, request)
        asked.set()

    with scripted_server(full) as server:
        async with talking(server.url) as person:
            person.type("Hi")
            await asyncio.to_thread(asked.wait)
            person.press("\x03")
            await person.aside.shows("Refused: Too many.")
    assert len(server.requests) == 1


async def test_a_server_that_stays_full_is_not_asked_for_ever() -> None:
    with scripted_server(refuses("server_overloaded", "The queue is full.", retry_after_ms=1)) as server:
        async with talking(server.url) as person:
            person.type("Hi")
            await person.aside.shows("Refused: The queue is full.")
    assert len(server.requests) == 5


async def test_a_forgotten_conversation_is_told_and_begun_anew() -> None:
    forgot = refuses("previous_response_not_found", "There is no response resp_1.")
    with scripted_server(Turns(answer, forgot)) as server:
        async with talking(server.url) as person:
            person.type("One?")
            await person.aside.shows(DONE)
            person.type("Two?")
            await person.aside.shows(DONE, 2)
    assert "The server has forgotten the conversation" in person.aside.getvalue()
    assert [request.get("previous_response_id") for request in server.requests] == [None, "resp_1", None]


async def test_a_conversation_that_has_grown_too_long_suggests_new_and_a_first_question_does_not() -> None:
    long = refuses("context_length_exceeded", "The prompt is 9,120 tokens.")
    with scripted_server(Turns(long, answer, long)) as server:
        async with talking(server.url) as person:
            person.type("Much.")
            await person.aside.shows("9,120 tokens.")
            assert "/new" not in person.aside.getvalue()
            person.type("Little.")
            await person.aside.shows(DONE)
            person.type("More.")
            await person.aside.shows("9,120 tokens. /new forgets the conversation.")


async def test_a_connection_lost_in_an_answer_is_told_and_the_next_question_opens_a_new_one() -> None:
    def breaks(connection: ServerConnection, request: Body) -> None:
        begin(connection, "Half")
        connection.close()

    with scripted_server(Turns(answer, breaks)) as server:
        async with talking(server.url) as person:
            person.type("One?")
            await person.aside.shows(DONE)
            person.type("Two?")
            await person.aside.shows("Failed: The connection was lost")
            person.type("Two, again?")
            await person.aside.shows(DONE, 2)
    assert len(server.upgrades) == 2
    assert server.requests[2]["previous_response_id"] == "resp_1"


async def test_a_connection_lost_between_questions_is_opened_again_and_the_conversation_goes_on() -> None:
    def leaves(connection: ServerConnection, request: Body) -> None:
        answer(connection, request)
        connection.close()

    with scripted_server(Turns(leaves)) as server:
        async with talking(server.url) as person:
            person.type("One?")
            await person.aside.shows(DONE)
            person.type("Two?")
            await person.aside.shows(DONE, 2)
    assert len(server.upgrades) == 2
    assert [request["input"] for request in server.requests] == ["One?", "Two?"]
    assert server.requests[1]["previous_response_id"] == "resp_1"
    assert "Failed" not in person.aside.getvalue()


async def test_a_server_that_has_gone_away_is_one_sentence_and_the_person_stays() -> None:
    with scripted_server(lambda connection, request: connection.close()) as server:
        server.decline = lambda upgrade: (
            (503, '{"error": {"code": "shutting_down", "message": "Leaving."}}') if upgrade else None
        )
        async with talking(server.url) as person:
            person.type("One?")
            await person.aside.shows("Leaving.")
            person.type("Two?")
            await person.aside.shows("Leaving.", 2)
    assert person.code == 0


async def test_what_is_no_event_is_told() -> None:
    with scripted_server(Turns(lambda connection, request: connection.send("{"))) as server:
        async with talking(server.url) as person:
            person.type("One?")
            await person.aside.shows("what is no event")
            person.type("Two?")
            await person.aside.shows(DONE)


# -- on a terminal


async def test_a_terminal_shows_the_place_in_the_queue_and_then_the_answer_as_markdown() -> None:
    seen = threading.Event()

    def waits(connection: ServerConnection, request: Body) -> None:
        queued = response("queued", rota={"position": 3, "estimated_wait_ms": 1200.0})
        say(
            connection,
            {"type": "response.created", "sequence_number": 0, "response": response("queued")},
            {"type": "response.queued", "sequence_number": 1, "response": queued},
        )
        seen.wait()
        say(connection, *map(delta, ("# Tit", "le\n\nSome **bo", "ld** text\n\n- a\n- b")))
        end(connection)

    out = Written()
    screen = TerminalScreen(Console(file=out, force_terminal=True, color_system="truecolor", width=60, height=20))
    with scripted_server(waits) as server:
        async with talking(server.url, screen=screen) as person:
            person.type("Hi")
            await out.shows("number 3 in the queue, about 1.2 s")
            seen.set()
            await out.shows(DONE)
    written = out.getvalue()
    assert "\x1b[1;4mTitle\x1b[0m" in written
    assert "\x1b[1mbold\x1b[0m" in written
    assert "**" not in written[written.rindex("Title") :]


async def test_what_was_typed_is_in_the_history() -> None:
    history = InMemoryHistory()
    with scripted_server(answer) as server:
        async with talking(server.url, history=history) as person:
            person.type("One?")
            await person.aside.shows(DONE)
            person.press("\x1b[A")
            person.press("\r")
            await person.aside.shows(DONE, 2)
    assert [request["input"] for request in server.requests] == ["One?", "One?"]
