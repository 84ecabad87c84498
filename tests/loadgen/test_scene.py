"""What a run is to play: the same scenario and seed are the same bytes, due at the same offsets."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadgen.bodies import Asking, Retold, Stored, prepared
from loadgen.exchange import Exchange
from loadgen.scene import arrivals_in_words, of_scenario, requests_of
from loadgen.warm_up import Lengths
from loadgen.wording import EXACT, Exact, Letters, One, Texts
from protocol.people import Person, Question
from protocol.scenario import crowd, read_scenario

ASKING = Asking(api="responses", model="m", temperature=0.0, ignore_eos=True)

PLAN = """
import hashlib
from loadgen.bodies import Asking
from loadgen.scene import of_scenario, requests_of
from loadgen.wording import Letters
from protocol.scenario import read_scenario

scene = of_scenario(read_scenario("chat"), 7)
plan = hashlib.sha256()
for person, requests in zip(scene.people, requests_of(scene.people, Asking(
    api="responses", model="m", temperature=0.0, ignore_eos=True), Letters(7))):
    plan.update(f"{person.at_s!r} {[question.think_s for question in person.questions]!r}".encode())
    for request in requests:
        plan.update(request.body)
print(plan.hexdigest())
"""


def planned(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run([sys.executable, "-c", PLAN], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_same_scenario_and_seed_are_the_same_bytes_at_the_same_offsets_in_every_process() -> None:
    scene = of_scenario(read_scenario("chat"), 7)
    here = hashlib.sha256()
    for person, requests in zip(scene.people, requests_of(scene.people, ASKING, Letters(7)), strict=True):
        here.update(f"{person.at_s!r} {[question.think_s for question in person.questions]!r}".encode())
        for request in requests:
            here.update(request.body)
    assert planned("0") == planned("1234") == here.hexdigest()


def test_another_seed_is_other_people_and_other_words() -> None:
    one, other = (of_scenario(read_scenario("chat"), seed) for seed in (7, 8))
    assert [person.at_s for person in one.people] != [person.at_s for person in other.people]
    first, second = (requests_of(one.people, ASKING, Letters(seed)) for seed in (7, 8))
    assert first[0][0].body != second[0][0].body


def test_no_two_prompts_of_a_scenario_begin_alike() -> None:
    scene = of_scenario(read_scenario("chat"), 7)
    for wording in (Letters(7), Exact(7, Lengths(4.0, 1.0))):
        prompts = [
            json.loads(each.body)["input"] for mine in requests_of(scene.people, ASKING, wording) for each in mine
        ]
        assert len({tuple(prompt.split()[:3]) for prompt in prompts}) == len(prompts)


def test_what_a_request_asks_for_is_what_its_person_wants() -> None:
    person = Person(
        "A", (Question(20, 3), Question(30, 4)), client="c", service_tier="flex", ttft_target_s=1.5, itl_target_s=0.25
    )
    [[first, second]] = requests_of([person], ASKING, One("Hi."))
    assert json.loads(first.body) == {
        "type": "response.create",
        "model": "m",
        "input": "Hi.",
        "max_output_tokens": 3,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream_id": "r0",
        "store": True,
        "targets": {"ttft_ms": 1500.0, "itl_ms": 250.0},
        "service_tier": "flex",
    }
    later = json.loads(second.body)
    assert (later["max_output_tokens"], later["store"]) == (4, False)


def test_a_bare_request_names_nothing_that_was_not_asked_for() -> None:
    [[request]] = requests_of([Person("A", (Question(20, 3),))], ASKING, One("Hi."), bare=True)
    assert set(json.loads(request.body)) == {
        "type", "model", "input", "max_output_tokens", "temperature", "ignore_eos",
    }  # fmt: skip


def test_how_long_a_prompt_is_to_be_is_known_of_all_but_what_continues() -> None:
    person = Person("A", (Question(50, 3), Question(30, 3)))
    for wording in (Letters(7), Exact(7, Lengths(4.0, 1.0))):
        [[first, second]] = requests_of([person], ASKING, wording)
        assert (first.asked_tokens, second.asked_tokens) == (50, None)
    anew = Person("A", person.questions, remembers=False)
    [[_, second]] = requests_of([anew], ASKING, Letters(7))
    assert second.asked_tokens == 30
    [[first, _]] = requests_of([person], ASKING, Texts(7, ["Real text."]))
    assert first.asked_tokens is None


def test_exact_prompts_leave_room_for_the_template_and_follow_ups_need_none() -> None:
    [[first, second]] = requests_of(
        [Person("A", (Question(50, 3), Question(30, 3)))], ASKING, Exact(7, Lengths(4.0, 1.0))
    )
    assert [len(json.loads(each.body)["input"].split()) for each in (first, second)] == [46, 30]


def test_texts_of_a_file_are_said_in_an_order_of_the_seeds_and_each_as_often() -> None:
    texts = [f"text {number}" for number in range(5)]
    said = [Texts(7, texts).question(index, 1, first=True).text for index in range(10)]
    assert sorted(said) == sorted(texts * 2)
    assert said != [Texts(8, texts).question(index, 1, first=True).text for index in range(10)]


# -- conversations


def test_the_responses_api_is_told_where_the_conversation_goes_on() -> None:
    conversation, request = Stored(), prepared(ASKING, "Hi.", 3)
    assert conversation.body(request) == request.body
    assert conversation.answered(request, Exchange(0, 0, response_id='resp_"1'))
    assert json.loads(conversation.body(request)) == {
        **json.loads(request.body),
        "previous_response_id": 'resp_"1',
    }
    assert not conversation.answered(request, Exchange(0, 0)), "without an id there is nothing to continue from"


def test_chat_completions_are_told_all_of_it_again() -> None:
    asking = Asking(api="chat", model="m", temperature=0.0, ignore_eos=False)
    conversation, request = Retold(), prepared(asking, "Hi.", 3)
    conversation.answered(request, Exchange(0, 0, text=["Good ", "day."]))
    assert json.loads(conversation.body(request))["messages"] == [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Good day."},
        {"role": "user", "content": "Hi."},
    ]


# -- in words


def test_arrivals_are_told_in_words() -> None:
    one: dict[str, Any] = {"count": 3, "prompt_tokens": 9, "output_tokens": 3}
    assert arrivals_in_words(crowd(**one, arrive="poisson", rate=4)) == "poisson, 4/s"
    assert arrivals_in_words(crowd(**one, arrive="gamma", rate=2, burstiness=3)) == "gamma with burstiness 3, 2/s"
    assert arrivals_in_words(crowd(**one)) == "together"
    assert arrivals_in_words(read_scenario("laptops")) == "as written"


@pytest.mark.parametrize("name", ["chat", "laptops", "long-documents", "rush"])
def test_every_scenario_that_comes_with_rota_can_be_played(name: str) -> None:
    scene = of_scenario(read_scenario(name), 1)
    assert scene.questions == sum(map(len, requests_of(scene.people, ASKING, Letters(1)))) > 0
    assert scene.arrivals


def test_exact_is_a_kind_of_prompts_that_a_scenario_can_ask_for(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('prompts = "exact"\n[[people]]\nname = "p"\ncount = 1\nprompt_tokens = 9\noutput_tokens = 3\n')
    assert of_scenario(read_scenario(file), 1).prompts == EXACT
