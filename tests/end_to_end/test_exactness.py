"""Greedy answers in float32 are those of `transformers`, token for token, whoever else is served.

`python -m tests.end_to_end.exactness` says the same of the real model at full length.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from loadgen.prompts import prompt
from tests.end_to_end.client import Answer, connected
from tests.end_to_end.conftest import ONE_AT_A_TIME, OVERLAPPED, Start
from tests.end_to_end.reference import Expected, Reference
from tests.end_to_end.server import Server

PROMPTS = [prompt(7, number, length)[:length] for number, length in enumerate((1, 16, 17, 64, 130, 333, 512, 1200))]
TOKENS = 24
SHORT_PROMPTS = [prompt(8, number, length)[:length] for number, length in enumerate((1, 2, 16, 17, 40, 100))]
LONG_ANSWER = 200


def assert_exact(answer: Answer, expected: Expected) -> None:
    assert answer.text == expected.text
    assert answer.usage["input_tokens"] == expected.input_tokens
    assert answer.usage["output_tokens"] == expected.output_tokens
    assert answer.reason == ("stop" if expected.ended else "length")


async def together(server: Server, prompts: list[str], tokens: int, ignore_eos: bool = False) -> list[Answer]:
    """All at once: one on a socket of its own, every third on a lane of one socket."""
    async with connected(server) as shared_socket, asyncio.TaskGroup() as group:

        async def ask(number: int, text: str) -> Answer:
            if number % 3 == 0:
                lane = shared_socket.lane(f"lane-{number}")
                return await lane.ask(text, max_output_tokens=tokens, ignore_eos=ignore_eos)
            async with connected(server) as client:
                return await client.ask(text, max_output_tokens=tokens, ignore_eos=ignore_eos)

        tasks = [group.create_task(ask(number, text)) for number, text in enumerate(prompts)]
        await asyncio.gather(*tasks)
    return [task.result() for task in tasks]


@pytest.fixture(params=[ONE_AT_A_TIME, OVERLAPPED], ids=["one step in flight", "two steps in flight"])
def how(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """A server whose steps come one by one, and one that is given the next while one runs."""
    found: Mapping[str, Any] = request.param
    return found


@pytest.fixture
def server(how: Mapping[str, Any], request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue("overlapped_server" if how else "plain_server")
    return found


async def test_prompts_sent_alone_are_answered_as_transformers_would(server: Server, legible: Reference) -> None:
    async with connected(server) as client:
        for text in PROMPTS:
            assert_exact(await client.ask(text, max_output_tokens=TOKENS), legible.answer(text, TOKENS))


async def test_prompts_sent_together_in_chunks_of_64_are_answered_the_same(server: Server, legible: Reference) -> None:
    for text, answer in zip(PROMPTS, await together(server, PROMPTS, TOKENS), strict=True):
        assert_exact(answer, legible.answer(text, TOKENS))


async def test_chunks_of_16_and_being_preempted_change_no_token(
    own: Start, legible_folder: Path, legible: Reference, how: Mapping[str, Any]
) -> None:
    """The pool holds one request of the full context and not a block more."""
    context = ("--max-context", "512", "--kv-memory", "256KiB")
    tight = own("--model", str(legible_folder), "--dtype", "float32", "--chunk-tokens", "16", *context, **how)
    prompts = SHORT_PROMPTS * 3  # enough to fill the pool, however fast a step is
    answers = await together(tight, prompts, LONG_ANSWER, ignore_eos=True)
    for text, answer in zip(prompts, answers, strict=True):
        assert_exact(answer, legible.answer(text, LONG_ANSWER, ignore_eos=True))
    preemptions = (await tight.empty()).value("rota_preemptions_total")
    print(f"{preemptions:.0f} preemptions")
    assert preemptions >= 3


async def test_chunks_of_512_change_no_token(own: Start, legible_folder: Path, legible: Reference) -> None:
    arguments = ("--model", str(legible_folder), "--dtype", "float32", "--chunk-tokens", "512", "--grace-s", "600")
    wide = own(*arguments)
    for text, answer in zip(PROMPTS, await together(wide, PROMPTS, TOKENS), strict=True):
        assert_exact(answer, legible.answer(text, TOKENS))


async def test_steps_that_find_no_memory_are_made_smaller_and_change_no_token(
    own: Start, legible_folder: Path, legible: Reference
) -> None:
    small = own(
        *("--model", str(legible_folder), "--dtype", "float32", "--chunk-tokens", "64"),
        environment={"TEST_DEVICE_TOKENS": "20"},
        **OVERLAPPED,
    )
    for text, answer in zip(PROMPTS, await together(small, PROMPTS, TOKENS), strict=True):
        assert_exact(answer, legible.answer(text, TOKENS))
    failed = (await small.empty()).value("rota_steps_out_of_memory_total")
    print(f"{failed:.0f} steps found no memory")
    assert failed > 0
    assert any(line["event"] == "step.out_of_memory" for line in small.log)
