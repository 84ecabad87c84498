"""What whoever runs rota can see: HTTP endpoints, metrics, and one log line a request."""

import json

import pytest

from tests.end_to_end.client import Client, connected
from tests.end_to_end.server import Server

DURATIONS = {"queue_ms", "prefill_ms", "first_token_ms", "first_text_ms", "gap_p50_ms", "gap_p99_ms", "gap_max_ms"}
COUNTS = {"input_tokens", "cached_tokens", "output_tokens", "preemptions", "paused_ms", "delivered_chars"}
GOAL = {"service_tier", "ttft_target_ms", "ttft_met", "itl_target_ms", "itl_met"}
FIELDS = {"request", "lane", "connection", "finish_reason", "error_code", *DURATIONS, *COUNTS, *GOAL}


async def test_health_readiness_and_models(server: Server) -> None:
    assert await server.get("/healthz") == (200, b'{"status":"alive"}')
    assert await server.get("/readyz") == (200, b'{"status":"ready"}')
    status, body = await server.get("/v1/models")
    assert status == 200
    assert [card["id"] for card in json.loads(body)["data"]] == ["legible"]
    assert (await server.get("/v1/responses"))[0] == 426
    assert (await server.get("/nothing/here"))[0] == 404


async def test_metrics_count_what_was_served(server: Server, client: Client) -> None:
    before = await server.empty()
    answer = await client.ask("Count me.", max_output_tokens=30, ignore_eos=True)
    await server.finished(answer.id)
    after = await server.shows(lambda seen: seen.value("rota_connections") == 1)

    def more(name: str, **labels: str) -> float:
        return after.value(name, **labels) - before.value(name, **labels)

    assert more("rota_requests_finished_total", reason="length") == 1
    assert more("rota_input_tokens_total") == answer.usage["input_tokens"]
    assert more("rota_output_tokens_total") == 30
    assert more("rota_ttft_seconds_count") == 1
    assert more("rota_inter_token_gap_seconds_count") == 29
    assert more("rota_step_seconds_count") >= 30


async def test_one_line_is_logged_for_each_request_however_it_ended(server: Server, client: Client) -> None:
    endless = {"max_output_tokens": 7000, "ignore_eos": True}
    length = await client.lane("length").ask("Hello.", max_output_tokens=20, ignore_eos=True)
    stopped = await client.ask("Hello.", max_output_tokens=20, ignore_eos=True, stop=[length.text[5:7]])
    prefilled = await client.ask("Hello.", generate=False)
    late = await client.ask("Hello.", deadline_ms=400, **endless)
    await client.create("Hello.", **endless)
    await client.until("response.output_text.delta", 2)
    await client.cancel()
    cancelled = await client.answer()
    ends = {"length": length, "stop_text": stopped, "prefilled": prefilled, "deadline": late, "cancelled": cancelled}
    for reason, answer in ends.items():
        assert answer.reason == reason
        line = await server.finished(answer.id)
        assert line.keys() >= FIELDS, FIELDS - line.keys()
        assert line["finish_reason"] == reason
        for name in ("input_tokens", "output_tokens"):
            assert line[name] == answer.usage[name]
        assert line["delivered_chars"] == len(answer.text)
        for name in DURATIONS - {"queue_ms"}:
            # Nothing was written, so there is no first token to count to.
            assert line[name] is None if reason == "prefilled" else line[name] >= 0, (reason, name)
    assert (await server.finished(length.id))["lane"] == "length"


async def test_a_refusal_is_logged_and_counted_too(server: Server, client: Client) -> None:
    before = await server.metrics()
    assert (await client.ask("x" * 9000)).error["code"] == "context_length_exceeded"
    after = await server.metrics()
    code = {"code": "context_length_exceeded"}
    assert after.value("rota_requests_refused_total", **code) == before.value("rota_requests_refused_total", **code) + 1
    assert server.logged("request.refused", **code)[-1]["request"]


@pytest.mark.parametrize("tokens", [1, 2])
async def test_the_shortest_answers_have_figures_too(server: Server, tokens: int) -> None:
    async with connected(server) as client:
        answer = await client.ask("Hello.", max_output_tokens=tokens, ignore_eos=True)
    line = await server.finished(answer.id)
    assert line["first_token_ms"] > 0
    assert (line["gap_max_ms"] is None) == (tokens == 1)
