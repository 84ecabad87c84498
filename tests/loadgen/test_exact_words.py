"""Prompts of an exact number of tokens, as far as words are tokens."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.server import ServerConnection

from loadgen.bodies import Asking
from loadgen.client import Socket, Unreachable
from loadgen.exact_words import FEWEST, WORDS, exact
from loadgen.warm_up import Lengths, count_words
from protocol.people import Person, Question
from tests.loadgen.playing import ONE, played
from tests.loadgen.scripted_server import Body, Script, begin, end, refusal, say, scripted_server, usage

ASKING = Asking(api="responses", model="m", temperature=0.0, ignore_eos=True)


def test_there_are_no_two_words_alike_and_all_are_plain() -> None:
    assert len(set(WORDS)) == len(WORDS) == 240
    assert all(re.fullmatch("[a-z]+", word) for word in WORDS)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(FEWEST, 300))
def test_a_prompt_has_as_many_words_as_asked_and_is_always_the_same(seed: int, index: int, words: int) -> None:
    prompt = exact(seed, index, words)
    assert len(prompt.split()) == words
    assert prompt == exact(seed, index, words)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=2, max_size=50, unique=True))
def test_no_two_begin_alike(numbers: list[tuple[int, int]]) -> None:
    openings = {tuple(exact(seed, index, 40).split()[:FEWEST]) for seed, index in numbers}
    assert len(openings) == len(numbers)


def counting(each: int, template: int) -> Script:
    def count(connection: ServerConnection, asked: Body) -> None:
        begin(connection, "Hello")
        end(connection, usage=usage(1, each * len(asked["input"].split()) + template))

    return count


@pytest.mark.parametrize(("each", "template"), [(1, 31), (2, 4)])
async def test_how_a_server_counts_is_found_out_from_two_prompts(each: int, template: int) -> None:
    with scripted_server(counting(each, template)) as server:
        socket = await Socket.open(server.url, None)
        assert await count_words(socket, ASKING, 7) == Lengths(template, each)
        await socket.close()
    assert [asked["max_output_tokens"] for asked in server.requests] == [1, 1]


async def test_prompts_are_exactly_as_long_as_asked_where_a_word_is_a_token() -> None:
    people = [Person(f"{tokens}", (Question(tokens, 3),)) for tokens in (40, 41, 100, 1000)]
    with scripted_server(counting(1, 31)) as server:
        report, exchanges = await played(server, *people, scene={"prompts": "exact"})
    assert [exchange.input_tokens for exchange in exchanges] == [40, 41, 100, 1000]
    assert report.prompt_tokens_off == 0
    with scripted_server(counting(2, 31)) as server:
        report, _ = await played(server, *people, scene={"prompts": "exact"})
    assert report.prompt_tokens_off == 7, "40 tokens leave no room for eight words of two; that is told"


async def test_a_server_that_does_not_count_cannot_be_asked_exactly() -> None:
    def refuse(connection: ServerConnection, asked: Body) -> None:
        say(connection, refusal("server_overloaded", "Not now."))

    with (
        scripted_server(refuse) as server,
        pytest.raises(Unreachable, match=r"cannot be found out from the server: Not now\."),
    ):
        await played(server, Person("A", ONE), scene={"prompts": "exact"})
