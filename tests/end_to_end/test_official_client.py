"""OpenAI's own client works against rota unchanged."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits
from openai.resources.responses.responses import AsyncResponsesConnection

from tests.end_to_end.client import Client, connected
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server
from tests.protocol.official import validate_event

LIMITS = ResponsesWebSocketLimits(
    max_lanes=8, max_events_per_lane=4096, max_events=8192, max_bytes_per_lane=2**24, max_bytes=2**25
)
TERMINAL = ("response.completed", "response.incomplete", "response.failed", "error")


@pytest.fixture
async def connection(server: Server) -> AsyncIterator[AsyncResponsesConnection]:
    async with (
        AsyncOpenAI(base_url=f"{server.http}/v1", api_key="unused") as openai,
        openai.responses.connect() as connection,
    ):
        yield connection


async def heard(connection: AsyncResponsesConnection) -> list[Any]:
    """One answer, every event of it checked as it came."""
    events = []
    while True:
        frame = await connection.recv_bytes()
        validate_event(frame)
        events.append(connection.parse_event(frame))
        if events[-1].type in TERMINAL:
            return events


async def test_an_answer_arrives_as_it_is_written(connection: AsyncResponsesConnection, legible: Reference) -> None:
    await connection.response.create(model="legible", input="Hello there.", max_output_tokens=30, temperature=0)
    events = await heard(connection)
    expected = legible.answer("Hello there.", 30)
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == expected.text
    assert len(deltas) > 5
    final = events[-1].response
    assert final.output_text == expected.text
    assert final.usage.output_tokens == expected.output_tokens
    assert final.usage.input_tokens == expected.input_tokens


async def test_whoever_waits_for_a_long_prompt_hears_how_much_of_it_is_read(
    connection: AsyncResponsesConnection,
) -> None:
    long = "Whoever sends many words waits for them to be read. " * 140
    for cached in (False, True):
        await connection.response.create(model="legible", input=long, max_output_tokens=3, temperature=0)
        events = await heard(connection)
        final = events[-1].response
        told = [event.response.rota for event in events if event.type == "response.in_progress"]
        assert (told[0]["prefilled_tokens"] > 0) is cached, "what the cache holds counts as read"
        assert {rota["input_tokens"] for rota in told} == {final.usage.input_tokens}
        read = [rota["prefilled_tokens"] for rota in told]
        assert read == sorted(set(read))
        half_seconds = final.rota["prefill_ms"] / 500
        assert len(read) - 1 <= half_seconds
        assert len(read) > 1 or half_seconds < 3
        kinds = [event.type for event in events]
        assert kinds.count("response.output_item.added") == 1
        assert "response.in_progress" not in kinds[kinds.index("response.output_item.added") :]


async def test_a_conversation_is_continued_by_id(connection: AsyncResponsesConnection) -> None:
    await connection.response.create(model="legible", input="My name is Ada.", max_output_tokens=8, temperature=0)
    first = (await heard(connection))[-1].response
    await connection.response.create(
        model="legible", input="Who am I?", previous_response_id=first.id, max_output_tokens=8, temperature=0
    )
    second = (await heard(connection))[-1].response
    # The answer's own items, sent back as they came, are the same conversation.
    history = [
        {"role": "user", "content": "My name is Ada."},
        *(item.model_dump() for item in first.output),
        {"role": "user", "content": "Who am I?"},
    ]
    await connection.response.create(model="legible", input=history, max_output_tokens=8, temperature=0)
    third = (await heard(connection))[-1].response
    assert second.usage.input_tokens == third.usage.input_tokens > first.usage.input_tokens
    assert second.output_text == third.output_text


async def test_lanes_of_the_session_helper_run_side_by_side(
    connection: AsyncResponsesConnection, legible: Reference
) -> None:
    async with AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session:
        lanes = {name: session.lane(name) for name in ("one", "two", "three")}
        for name, lane in lanes.items():
            await lane.send(
                {
                    "type": "response.create",
                    "model": "legible",
                    "input": f"I am {name}.",
                    "max_output_tokens": 25,
                    "temperature": 0,
                }
            )
        finals = await asyncio.gather(*(lane.get_final_response() for lane in lanes.values()))
        for name, final in zip(lanes, finals, strict=True):
            assert final.output_text == legible.answer(f"I am {name}.", 25).text
        # A fork: another lane continues from the first one's answer.
        await lanes["two"].send(
            {
                "type": "response.create",
                "model": "legible",
                "input": "And I?",
                "previous_response_id": finals[0].id,
                "max_output_tokens": 4,
                "temperature": 0,
            }
        )
        fork = await lanes["two"].get_final_response()
        assert fork.usage is not None
        assert finals[0].usage is not None
        assert fork.usage.input_tokens > finals[0].usage.total_tokens


async def test_an_error_is_raised_to_the_lane_that_earned_it(connection: AsyncResponsesConnection) -> None:
    from openai.lib.responses_websocket import ResponsesWebSocketError

    async with AsyncResponsesWebSocketSession(connection, limits=LIMITS) as session:
        bad, good = session.lane("bad"), session.lane("good")
        await bad.send({"type": "response.create", "model": "gpt-0", "input": "Hello."})
        await good.send({"type": "response.create", "model": "legible", "input": "Hello.", "max_output_tokens": 4})
        with pytest.raises(ResponsesWebSocketError) as raised:
            await bad.get_final_response()
        event: Any = raised.value.event
        assert event.error.code == "model_not_found"
        assert (await good.get_final_response()).status in ("incomplete", "completed")


async def test_rotas_own_fields_go_through_send(connection: AsyncResponsesConnection) -> None:
    texts = []
    for _ in range(2):
        create: Any = {
            "type": "response.create",
            "model": "legible",
            "input": "Surprise me.",
            "temperature": 1.2,
            "max_output_tokens": 20,
            "seed": 7,
        }
        await connection.send(create)
        texts.append((await heard(connection))[-1].response.output_text)
    assert texts[0] == texts[1]


async def test_log_probabilities_come_with_the_text(connection: AsyncResponsesConnection, legible: Reference) -> None:
    await connection.response.create(
        model="legible",
        input="How sure are you?",
        max_output_tokens=12,
        temperature=0,
        include=["message.output_text.logprobs"],
        top_logprobs=3,
    )
    events = await heard(connection)
    expected = legible.answer("How sure are you?", 12)
    scored = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
    assert "".join(entry.token for entry in scored) == expected.text
    for entry in scored:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        # Greedy: the chosen one is the likeliest.
        assert entry.top_logprobs[0].token == entry.token
    [part] = events[-1].response.output[0].content
    assert "".join(entry.token for entry in part.logprobs) == expected.text


async def test_prefill_only_says_nothing_and_can_be_continued_from(client: Client) -> None:
    warm = await client.ask("Remember this.", generate=False)
    assert [event["type"] for event in warm.events if event["type"] != "response.queued"] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]
    assert (warm.reason, warm.response["output"], warm.usage["output_tokens"]) == ("prefilled", [], 0)
    following = await client.ask("And this.", previous_response_id=warm.id, max_output_tokens=3)
    assert following.usage["input_tokens"] > warm.usage["input_tokens"]


async def test_another_socket_can_continue_what_is_stored_and_only_that(server: Server) -> None:
    async with connected(server) as client, connected(server) as elsewhere:
        stored = await client.ask("Keep this.", max_output_tokens=3)
        private = await client.ask("Keep this to us.", max_output_tokens=3, store=False)
        continued = await elsewhere.ask("Go on.", previous_response_id=stored.id, max_output_tokens=3)
        assert continued.usage["input_tokens"] > stored.usage["total_tokens"] - 1
        refused = await elsewhere.ask("Go on.", previous_response_id=private.id, max_output_tokens=3)
        assert refused.error["code"] == "previous_response_not_found"
        assert (await client.ask("Go on.", previous_response_id=private.id, max_output_tokens=3)).reason == "length"
    async with connected(server) as later:
        gone = await later.ask("Go on.", previous_response_id=private.id, max_output_tokens=3)
        assert gone.error["code"] == "previous_response_not_found"
        assert (await later.ask("Go on.", previous_response_id=stored.id, max_output_tokens=3)).reason == "length"


async def test_what_was_asked_is_echoed_and_null_means_absent(client: Client) -> None:
    fields = {"metadata": {"a": "b"}, "top_p": 0.5, "instructions": "Be brief.", "user": None}
    await client.send(
        json.dumps({"type": "response.create", "model": client.model, "input": "Hi", "max_output_tokens": 2, **fields})
    )
    answer = await client.answer()
    assert answer.response["metadata"] == {"a": "b"}
    assert answer.response["top_p"] == 0.5
    assert "user" not in answer.response
