"""What arrives is what the model wrote: whole characters, no part of a stop text, nothing more and nothing less."""

import codecs

import pytest

from tests.end_to_end.client import Answer, connected
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server


def shown(tokens: tuple[int, ...]) -> str:
    """The text of so many byte tokens as far as it is complete; bytes that are no character are U+FFFD."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(bytes(token for token in tokens if token < 256))


def assert_no_half_character(answer: Answer) -> None:
    for delta in answer.deltas:
        assert not any(0xD800 <= ord(letter) <= 0xDFFF for letter in delta)


@pytest.mark.parametrize("prompt", ["One", "Another", "A third"])
async def test_bytes_that_are_no_character_come_as_transformers_decodes_them(
    narrow: Server, noisy: Reference, prompt: str
) -> None:
    expected = noisy.answer(prompt, 96, ignore_eos=True)
    async with connected(narrow) as client:
        answer = await client.ask(prompt, max_output_tokens=96, ignore_eos=True)
    assert "\ufffd" in answer.text
    assert answer.text == shown(expected.tokens)
    assert answer.text.rstrip("\ufffd") == expected.text.rstrip("\ufffd")


async def test_an_output_limit_in_the_middle_of_a_character_ends_cleanly(narrow: Server, noisy: Reference) -> None:
    tokens = noisy.answer("One", 96, ignore_eos=True).tokens
    limits = [limit for limit in range(1, 97) if len(shown(tokens[:limit])) == len(shown(tokens[: limit - 1]))]
    assert limits, "this model begins characters"
    async with connected(narrow) as client:
        for limit in limits[:6]:
            answer = await client.ask("One", max_output_tokens=limit, ignore_eos=True)
            assert (answer.reason, answer.usage["output_tokens"]) == ("length", limit)
            assert answer.response["incomplete_details"] == {"reason": "max_output_tokens"}
            assert answer.text == shown(tokens[:limit])


@pytest.mark.parametrize("length", [1, 2, 7])
async def test_a_stop_text_over_several_tokens_is_never_shown_in_part(
    server: Server, legible: Reference, length: int
) -> None:
    written = legible.answer("Where do you stop?", 80).text
    stop = written[40 : 40 + length]
    end = written.index(stop)
    async with connected(server) as client:
        answer = await client.ask("Where do you stop?", max_output_tokens=80, stop=[stop])
    assert (answer.reason, answer.response["status"]) == ("stop_text", "completed")
    assert answer.text == written[:end]
    assert answer.usage["output_tokens"] == end + length


async def test_text_that_only_looked_like_the_beginning_of_a_stop_text_is_shown(
    server: Server, legible: Reference
) -> None:
    written = legible.answer("Where do you stop?", 80).text
    never = "\x7f~never~"
    looks_alike = [written[10:14] + never, written[70:76] + never, written[-3:] + never]
    async with connected(server) as client:
        answer = await client.ask("Where do you stop?", max_output_tokens=80, stop=looks_alike)
    assert answer.text == written


async def test_what_follows_a_stop_text_is_not_kept_of_the_conversation(server: Server, legible: Reference) -> None:
    written = legible.answer("Where do you stop?", 80).text
    async with connected(server) as client:
        stopped = await client.ask("Where do you stop?", max_output_tokens=80, stop=[written[40:44]])
        following = await client.ask("Go on.", previous_response_id=stopped.id, max_output_tokens=1)
        history = [
            {"role": "user", "content": "Where do you stop?"},
            {"role": "assistant", "content": stopped.text},
            {"role": "user", "content": "Go on."},
        ]
        in_full = await client.ask(history, max_output_tokens=1)
    assert following.usage["input_tokens"] == in_full.usage["input_tokens"]
    assert following.text == in_full.text


async def test_the_seed_decides_what_is_drawn(server: Server) -> None:
    drawn = {"temperature": 1.5, "max_output_tokens": 40, "ignore_eos": True}
    async with connected(server) as client, connected(server) as elsewhere:
        first = await client.ask("Surprise me.", seed=7, **drawn)
        again = await elsewhere.ask("Surprise me.", seed=7, **drawn)
        other = await client.ask("Surprise me.", seed=8, **drawn)
        unseeded = [(await client.ask("Surprise me.", **drawn)).text for _ in range(2)]
    assert first.text == again.text
    assert len({first.text, other.text, *unseeded}) == 4
