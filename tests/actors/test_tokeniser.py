"""What becomes of a question: a request in tokens, or a refusal that says why."""

from collections.abc import Sequence
from typing import Any

import pytest

from actors.chat_template import PromptRefused
from actors.sampling_defaults import SamplingDefaults
from actors.targets import Tiers, table_of
from protocol.input_items import Message
from protocol.messages import (
    CloseStream,
    Enqueue,
    OpenStream,
    Refused,
)
from protocol.responses import Targets, Truncation
from tests.actors.tokeniser_stage import LONG, Stage, ask, chat, model
from tests.actors.vocabularies import END, chat_vocabulary


async def test_a_question_becomes_a_stream_and_then_a_request_in_tokens() -> None:
    stage = Stage()
    order: list[Any] = []
    stage.admission.messages = stage.detokeniser.messages = order
    await stage.ask(
        instructions="Be brief.",
        max_output_tokens=7,
        stop=("END",),
        temperature=0.5,
        seed=3,
        deadline_ms=2_500.0,
        targets=Targets(ttft_ms=300.0, itl_ms=40.0),
        service_tier="flex",
    )
    opened, enqueue = order
    assert opened == OpenStream("r", 1, (END,), ("END",), None, 7)
    assert stage.prompt() == chat(("system", "Be brief."), ("user", "Hi"))
    assert (enqueue.request, enqueue.connection, enqueue.tenant) == ("r", 1, "t")
    assert (enqueue.sampling.temperature, enqueue.sampling.seed) == (0.5, 3)
    assert (enqueue.max_output_tokens, enqueue.end_tokens) == (7, (END,))
    assert (enqueue.received_at, enqueue.deadline_at) == (50.0, 52.5)
    assert (enqueue.ttft_target_s, enqueue.itl_target_s, enqueue.service_tier) == (0.3, 0.04, "flex")


async def test_what_a_request_does_not_say_is_decided_for_it() -> None:
    stage = Stage(defaults=SamplingDefaults(temperature=0.7), default_max_output_tokens=99)
    await stage.ask("a", service_tier="auto")
    await stage.ask("b")
    a, b = stage.admission.of(Enqueue)
    assert (a.sampling.temperature, a.max_output_tokens, a.service_tier, a.deadline_at) == (0.7, 99, "default", None)
    assert a.sampling.seed != b.sampling.seed
    for enqueue in (a, b):
        assert (enqueue.service_tier, enqueue.ttft_target_s, enqueue.itl_target_s) == ("default", 5.0, 0.25)


async def test_its_tier_sets_the_targets_that_a_request_does_not_and_its_key_bounds_both() -> None:
    stage = Stage(tiers=Tiers(table_of("fast=900/90"), {"anna": "flex"}))
    await stage.ask("a", service_tier="fast")
    await stage.ask("b", service_tier="fast", targets=Targets(itl_ms=500.0))
    await stage.ask("c", service_tier="fast", tenant="anna")
    await stage.ask("d", targets=Targets(ttft_ms=70_000.0, itl_ms=1.0), tenant="anna")
    assert [(e.service_tier, e.ttft_target_s, e.itl_target_s) for e in stage.admission.of(Enqueue)] == [
        ("fast", 0.9, 0.09),
        ("fast", 0.9, 0.5),
        ("flex", 60.0, 1.0),
        ("flex", 70.0, 1.0),
    ]


async def test_ignore_eos_leaves_no_end_tokens_to_anyone() -> None:
    stage = Stage()
    await stage.ask(ignore_eos=True)
    assert stage.detokeniser.of(OpenStream)[0].end_tokens == stage.admission.of(Enqueue)[0].end_tokens == ()


async def test_generate_false_asks_for_no_output() -> None:
    stage = Stage()
    await stage.ask(generate=False)
    assert stage.admission.of(Enqueue)[0].max_output_tokens == 0


@pytest.mark.parametrize("model", [None, "rota-test", "small"])
async def test_the_served_name_and_its_aliases_are_known(model: str | None) -> None:
    stage = Stage(aliases=("small",))
    await stage.ask(model=model)
    assert len(stage.admission.messages) == 1


async def test_another_model_is_not_found() -> None:
    stage = Stage()
    await stage.ask(model="gpt-5")
    assert stage.refusal() == "model_not_found"
    assert stage.admission.messages == stage.detokeniser.messages == []


async def test_before_the_model_is_there_requests_are_told_to_come_again() -> None:
    stage = Stage()
    stage.actor.mailbox.clear()
    await stage.ask()
    assert stage.readers[0].of(Refused)[0].error.retry_after_ms is not None


async def test_a_prompt_the_template_refuses_is_an_invalid_request() -> None:
    class Refusing:
        longest_token = None

        def prompt(self, messages: Sequence[Message]) -> list[int]:
            raise PromptRefused("This model does not take these messages.")

    stage = Stage(Refusing())
    await stage.ask()
    assert stage.refusal() == "invalid_request_error"


async def test_a_broken_vocabulary_fails_that_request_and_no_other() -> None:
    class Broken:
        longest_token = None

        def prompt(self, messages: Sequence[Message]) -> list[int]:
            if messages[-1].text.startswith("bad"):
                raise ValueError("broken")
            return [1, 2, 3]

    stage = Stage(Broken())
    await stage.send(ask("a", input="bad"), ask("b"), ask("c", connection=2, input="bad " + LONG))
    assert stage.refusal(1) == "internal_error"
    stage.work[0]()
    await stage.send()
    assert stage.refusal(2) == "internal_error"
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["b"]


def _prompt_length(text: str) -> int:
    return len(chat_vocabulary().prompt([Message("user", text)]))


async def test_a_prompt_and_its_answer_must_fit_the_context_together() -> None:
    length = _prompt_length("Hi")
    stage = Stage(ready=model(length + 5))
    await stage.ask("a", max_output_tokens=5)
    await stage.ask("b", max_output_tokens=6)
    await stage.ask("c")
    await stage.ask("d", generate=False, max_output_tokens=50)
    assert [(e.request, e.max_output_tokens) for e in stage.admission.of(Enqueue)] == [("a", 5), ("c", 5), ("d", 0)]
    (refused,) = stage.readers[0].of(Refused)
    assert refused.request == "b"
    assert f"The prompt is {length} tokens and max_output_tokens is 6" in refused.error.message


async def test_a_prompt_that_leaves_no_room_is_refused_though_no_output_was_named() -> None:
    stage = Stage(ready=model(_prompt_length("Hi")))
    await stage.ask()
    assert stage.refusal() == "context_length_exceeded"


async def test_truncation_auto_leaves_out_the_oldest_turns() -> None:
    talk = tuple(Message("user" if n % 2 == 0 else "assistant", f"turn {n}") for n in range(5))
    stage = Stage(ready=model(_prompt_length("turn 4") + 3))
    await stage.ask("a", input=talk, max_output_tokens=3)
    assert stage.refusal() == "context_length_exceeded"
    await stage.ask("b", input=talk, max_output_tokens=3, truncation="auto")
    assert stage.prompt() == chat(("user", "turn 4"))


@pytest.mark.parametrize("truncation", ["disabled", "auto"])
@pytest.mark.parametrize(
    "turns", [(Message("user", "A" * 101),), (Message("assistant", "Hi"),) * 11, (Message("user", "é" * 51),)]
)
async def test_what_cannot_fit_is_refused_before_it_is_tokenised(
    turns: tuple[Message, ...], truncation: Truncation
) -> None:
    stage = Stage(_Never(), model(10))
    await stage.ask(input=turns, truncation=truncation, generate=False)
    (refused,) = stage.readers[0].of(Refused)
    assert refused.error.code == "context_length_exceeded"
    assert "The prompt is at least 11 tokens; a prompt and its answer may have 10 together." in refused.error.message
    assert stage.work == []


class _Never:
    """A token stands for ten bytes at most; any prompt is made of the newest message."""

    longest_token = 10

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        text = "".join(message.text for message in messages)
        assert len(text) <= 100, "what cannot fit was tokenised"
        return [1] * len(text)


async def test_what_came_before_counts_unless_it_may_be_left_out() -> None:
    stage = Stage(_Never(), model(10))
    await stage.answered("one", "B" * 99, input="A", generate=False)
    await stage.ask("two", input="CC", previous_response_id="one", generate=False)
    assert stage.refusal() == "context_length_exceeded"
    await stage.ask("three", input="CC", previous_response_id="one", generate=False, truncation="auto")
    assert [len(e.tokens) // 4 for e in stage.admission.of(Enqueue)] == [1, 2]


async def test_without_room_at_admission_the_stream_is_closed_again() -> None:
    stage = Stage()
    stage.admission.full = True
    await stage.ask()
    assert stage.refusal() == "server_overloaded"
    assert [type(message) for message in stage.detokeniser.messages] == [OpenStream, CloseStream]
