"""The scripted server says only what the official client's types allow."""

import pytest
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from tests.web.scripted_server import Answer, Json

EVENTS: TypeAdapter[ResponsesServerEvent] = TypeAdapter(ResponsesServerEvent)


@pytest.mark.parametrize("end", ["complete", "cut_off", "cancelled", "fail", "shut_down"])
async def test_a_whole_answer_is_valid_on_the_wire(end: str) -> None:
    sent: list[Json] = []

    async def send(event: Json) -> None:
        sent.append(event)

    answer = Answer(send, {"type": "response.create", "stream_id": "chat", "input": "Say hello."}, "resp_1")
    await answer.created("queued")
    await answer.queued(2, 4200.0)
    await answer.in_progress()
    await answer.write("Hello")
    await answer.write(" ✓")
    await getattr(answer, end)()

    for event in sent:
        assert EVENTS.validate_python(event).type == event["type"]
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))
    assert {event["stream_id"] for event in sent} == {"chat"}


async def test_a_refusal_is_valid_on_the_wire() -> None:
    sent: list[Json] = []

    async def send(event: Json) -> None:
        sent.append(event)

    create = {"type": "response.create", "stream_id": "chat", "input": "Say hello."}
    await Answer(send, create, "resp_1").refuse("server_overloaded", "The queue is full.", 1500)
    assert EVENTS.validate_python(sent[0]).type == "error"
    assert sent[0]["error"]["headers"] == {"retry-after-ms": "1500"}
