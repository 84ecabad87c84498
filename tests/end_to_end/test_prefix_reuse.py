"""What has been computed once is not computed again, by whoever may know of it; and no answer changes by it."""

from pathlib import Path

from loadgen.prompts import prompt
from tests.end_to_end.client import connected
from tests.end_to_end.conftest import Start
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server

LONG = prompt(21, 0, 500)[:1900]


def cached(usage: dict[str, object]) -> int:
    details = usage["input_tokens_details"]
    assert isinstance(details, dict)
    return int(details["cached_tokens"])


async def test_the_second_turn_of_a_long_conversation_is_read_from_the_cache(server: Server) -> None:
    async with connected(server) as client:
        first = await client.ask(LONG, max_output_tokens=16, ignore_eos=True)
        second = await client.ask("And then?", previous_response_id=first.id, max_output_tokens=8)
    assert cached(first.usage) < 100
    assert cached(second.usage) >= 0.95 * second.usage["input_tokens"]
    [line] = [await server.finished(second.id)]
    assert line["cached_tokens"] == cached(second.usage)


async def test_an_answer_is_the_same_with_and_without_reuse(server: Server, legible: Reference) -> None:
    text = prompt(22, 0, 200)[:700]
    expected = legible.answer(text, 24)
    async with connected(server) as client:
        answers = [await client.ask(text, max_output_tokens=24) for _ in range(3)]
    assert [cached(answer.usage) > 100 for answer in answers] == [False, True, True]
    assert {answer.text for answer in answers} == {expected.text}


async def test_a_prompt_that_was_only_read_is_warm(server: Server) -> None:
    text = prompt(23, 0, 200)[:700]
    async with connected(server) as client:
        await client.ask(text, generate=False)
        answer = await client.ask(text, max_output_tokens=4)
    assert cached(answer.usage) >= answer.usage["input_tokens"] - 16


async def test_shared_instructions_are_read_once(server: Server) -> None:
    instructions = prompt(24, 0, 200)[:700]
    async with connected(server) as client:
        await client.ask("One?", instructions=instructions, max_output_tokens=2)
        answer = await client.ask("Another one?", instructions=instructions, max_output_tokens=2)
    assert cached(answer.usage) >= 600


async def test_one_key_finds_nothing_of_another_keys_prompts(own: Start, legible_folder: Path) -> None:
    keys = ("--api-keys", "anna=a-key", "--api-keys", "ben=b-key")
    server = own("--model", str(legible_folder), "--dtype", "float32", *keys)
    text = prompt(25, 0, 200)[:700]
    usages = []
    for key in ("a-key", "b-key", "a-key"):
        async with connected(server, key) as client:
            usages.append((await client.ask(text, max_output_tokens=2)).usage)
    assert [cached(usage) > 0 for usage in usages] == [False, False, True]
