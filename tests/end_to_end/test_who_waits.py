"""Who waits, seen from outside: policies change when a token comes and never which, and nobody waits for a crowd."""

import asyncio
from pathlib import Path

import pytest

from actors.scheduling.policies import POLICIES, PolicyName
from loadgen.prompts import prompt
from tests.end_to_end.client import Event, connected
from tests.end_to_end.conftest import Start
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server
from tests.end_to_end.test_exactness import PROMPTS, assert_exact, together

CROWD = 40
TOKENS = 48
SLOW = ("--dtype", "float32", "--max-running", "4", "--chunk-tokens", "32")


@pytest.fixture(scope="module")
def four_at_once(shared: Start, legible_folder: Path) -> Server:
    return shared("--model", str(legible_folder), *SLOW)


@pytest.mark.parametrize("policy", [policy for policy in POLICIES if policy != "slack"])  # the others use slack
async def test_no_policy_changes_a_token(
    own: Start, legible_folder: Path, legible: Reference, policy: PolicyName
) -> None:
    server = own("--model", str(legible_folder), "--dtype", "float32", "--policy", policy, "--max-running", "5")
    for text, answer in zip(PROMPTS, await together(server, PROMPTS, 24), strict=True):
        assert_exact(answer, legible.answer(text, 24))


async def test_a_crowd_on_one_socket_does_not_hold_up_another_sockets_request(four_at_once: Server) -> None:
    async with connected(four_at_once) as crowd, connected(four_at_once) as single:
        lanes = [crowd.lane(f"lane-{number}") for number in range(CROWD)]
        for number, lane in enumerate(lanes):
            await lane.create(prompt(1, number, 60), max_output_tokens=TOKENS, ignore_eos=True)
        await lanes[0].until("response.output_text.delta")
        answer = await single.ask(prompt(2, 0, 60), max_output_tokens=TOKENS, ignore_eos=True)
        ended = sum(1 for event in crowd.heard if event["type"] == "response.completed")
        ended += sum(1 for event in crowd.heard if event["type"] == "response.incomplete")
        assert answer.reason == "length"
        assert ended < CROWD / 2, f"{ended} of {CROWD} that had come before it were answered before it"
        for lane in lanes:
            assert (await lane.answer()).reason == "length"
    await four_at_once.empty()


async def test_whoever_waits_is_told_its_place_and_how_it_moves_up(four_at_once: Server) -> None:
    async with connected(four_at_once) as client:
        lanes = [client.lane(f"lane-{number}") for number in range(16)]
        for number, lane in enumerate(lanes):
            await lane.create(prompt(3, number, 60), max_output_tokens=400, ignore_eos=True)
        last = await lanes[-1].answer()
        assert last.terminal["type"] != "error", last.error
        for lane in lanes[:-1]:
            await lane.answer()
    told: list[Event] = [event["response"]["rota"] for event in last.events if event["type"] == "response.queued"]
    positions = [place["position"] for place in told]
    assert positions[0] > 1
    assert positions == sorted(positions, reverse=True)
    assert len(set(positions)) > 1, "its place never changed"
    assert all(place["estimated_wait_ms"] >= 0 for place in told)
    await four_at_once.empty()


async def test_a_deadline_that_cannot_be_met_is_refused_at_once_with_the_estimate(four_at_once: Server) -> None:
    async with connected(four_at_once) as crowd, connected(four_at_once) as late:
        lanes = [crowd.lane(f"lane-{number}") for number in range(16)]
        for number, lane in enumerate(lanes):
            await lane.create(prompt(4, number, 60), max_output_tokens=2000, ignore_eos=True)
        await lanes[0].until("response.output_text.delta")
        refused = await late.ask("x" * 5000, deadline_ms=20, max_output_tokens=8)
        assert refused.error["code"] == "deadline_exceeded"
        assert "would come after" in refused.error["message"]
        for lane in lanes:
            await lane.cancel()
        await asyncio.gather(*(lane.answer() for lane in lanes))
    await four_at_once.empty()


async def test_a_request_with_targets_of_its_own_is_answered_and_shows_its_tier(server: Server) -> None:
    async with connected(server) as client:
        answer = await client.ask(
            "Hello.", service_tier="priority", targets={"ttft_ms": 800, "itl_ms": 50}, max_output_tokens=4
        )
        assert answer.response["service_tier"] == "priority"
        assert answer.reason in ("stop", "length")
