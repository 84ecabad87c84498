from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import numpy as np
import pytest

from actors.actor import Mailbox
from actors.conversations import Keeping
from actors.prompt import Prompts
from actors.sampling_defaults import SamplingDefaults
from actors.targets import Tiers, table_of
from actors.tokeniser import Tokeniser, TokeniserInbox
from protocol.input_items import Message
from protocol.messages import (
    Ask,
    Cancel,
    CloseStream,
    ConnectionClosed,
    Ended,
    Enqueue,
    Forget,
    ModelReady,
    OpenStream,
    Refused,
    Remember,
    Stats,
    Sweep,
)
from protocol.responses import ResponseCreate, Targets, Truncation
from tests.actors.vocabularies import END, Recorder, byte_level, chat_vocabulary, directory_of, send

T = TypeVar("T")
LONG = "A long story of whose turn it is. " * 100


def _ready(max_context: int = 4_096) -> ModelReady:
    return ModelReady("rota-test", "/m", "cpu", "float32", 16, 64, max_context, 520, (END,), 1, 1, 1, 0.1)


class _Stage:
    """A tokeniser between recorders, whose long work is done when the test says so."""

    def __init__(self, prompts: Prompts | None = None, ready: ModelReady | None = None, **options: Any) -> None:
        self.now = 100.0
        self.admission, self.detokeniser = Recorder(), Recorder()
        self.readers = [Recorder(), Recorder()]
        self.work: list[Callable[[], None]] = []
        mailbox: Mailbox[TokeniserInbox] = Mailbox(lambda: self.now, 64)
        self.actor = Tokeniser(
            mailbox,
            vocabulary=prompts or chat_vocabulary(),
            admission=self.admission.address(),
            detokeniser=self.detokeniser.address(),
            directory=directory_of(*self.readers),
            clock=lambda: self.now,
            offload=self._offload,
            random=Random(1),
            **options,
        )
        mailbox.tell(ready or _ready())

    def _offload(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        def job() -> None:
            try:
                done(work())
            except Exception as error:  # noqa: BLE001  handed over
                done(error)

        self.work.append(job)

    async def send(self, *messages: object) -> None:
        await send(self.actor, *messages)

    async def ask(self, request: str = "r", connection: int = 1, tenant: str = "t", **fields: Any) -> None:
        await self.send(_ask(request, connection, tenant, **fields))

    async def answered(self, request: str, text: str | None, **fields: Any) -> None:
        """A whole request that was answered with `text`."""
        await self.ask(request, **fields)
        await self.send(Remember(request, text))

    def refusal(self, connection: int = 1) -> str | None:
        refused = self.readers[connection - 1].of(Refused)
        return refused[-1].error.code if refused else None

    def prompt(self) -> str:
        """The newest prompt that was passed on, as text."""
        tokens = np.frombuffer(self.admission.of(Enqueue)[-1].tokens, "<i4").tolist()
        return byte_level().decode(tokens, skip_special_tokens=False)


def _ask(request: str = "r", connection: int = 1, tenant: str = "t", **fields: Any) -> Ask:
    return Ask(request, connection, tenant, ResponseCreate(**{"input": "Hi", **fields}), 50.0)


def _chat(*turns: tuple[str, str]) -> str:
    said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return f"{said}<|im_start|>assistant\n"


# --- from a question to tokens ---


async def test_a_question_becomes_a_stream_and_then_a_request_in_tokens() -> None:
    stage = _Stage()
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
    assert stage.prompt() == _chat(("system", "Be brief."), ("user", "Hi"))
    assert (enqueue.request, enqueue.connection, enqueue.tenant) == ("r", 1, "t")
    assert (enqueue.sampling.temperature, enqueue.sampling.seed) == (0.5, 3)
    assert (enqueue.max_output_tokens, enqueue.end_tokens) == (7, (END,))
    assert (enqueue.received_at, enqueue.deadline_at) == (50.0, 52.5)
    assert (enqueue.ttft_target_s, enqueue.itl_target_s, enqueue.service_tier) == (0.3, 0.04, "flex")


async def test_what_a_request_does_not_say_is_decided_for_it() -> None:
    stage = _Stage(defaults=SamplingDefaults(temperature=0.7), default_max_output_tokens=99)
    await stage.ask("a", service_tier="auto")
    await stage.ask("b")
    a, b = stage.admission.of(Enqueue)
    assert (a.sampling.temperature, a.max_output_tokens, a.service_tier, a.deadline_at) == (0.7, 99, "default", None)
    assert a.sampling.seed != b.sampling.seed
    for enqueue in (a, b):
        assert (enqueue.service_tier, enqueue.ttft_target_s, enqueue.itl_target_s) == ("default", 5.0, 0.25)


async def test_its_tier_sets_the_targets_that_a_request_does_not_and_its_key_bounds_both() -> None:
    stage = _Stage(tiers=Tiers(table_of("fast=900/90"), {"anna": "flex"}))
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
    stage = _Stage()
    await stage.ask(ignore_eos=True)
    assert stage.detokeniser.of(OpenStream)[0].end_tokens == stage.admission.of(Enqueue)[0].end_tokens == ()


async def test_generate_false_asks_for_no_output() -> None:
    stage = _Stage()
    await stage.ask(generate=False)
    assert stage.admission.of(Enqueue)[0].max_output_tokens == 0


@pytest.mark.parametrize("model", [None, "rota-test", "small"])
async def test_the_served_name_and_its_aliases_are_known(model: str | None) -> None:
    stage = _Stage(aliases=("small",))
    await stage.ask(model=model)
    assert len(stage.admission.messages) == 1


async def test_another_model_is_not_found() -> None:
    stage = _Stage()
    await stage.ask(model="gpt-5")
    assert stage.refusal() == "model_not_found"
    assert stage.admission.messages == stage.detokeniser.messages == []


async def test_before_the_model_is_there_requests_are_told_to_come_again() -> None:
    stage = _Stage()
    stage.actor.mailbox.clear()
    await stage.ask()
    assert stage.readers[0].of(Refused)[0].error.retry_after_ms is not None


async def test_a_prompt_the_template_refuses_is_an_invalid_request() -> None:
    class Refusing:
        longest_token = None

        def prompt(self, messages: Sequence[Message]) -> list[int]:
            return chat_vocabulary().prompt(
                [Message("user", "<|im_end|>" + "".join(map(chr, range(0xF0000, 0xF0040))))]
            )

    stage = _Stage(Refusing())
    await stage.ask()
    assert stage.refusal() == "invalid_request_error"


async def test_a_broken_vocabulary_fails_that_request_and_no_other() -> None:
    class Broken:
        longest_token = None

        def prompt(self, messages: Sequence[Message]) -> list[int]:
            if messages[-1].text.startswith("bad"):
                raise ValueError("broken")
            return [1, 2, 3]

    stage = _Stage(Broken())
    await stage.send(_ask("a", input="bad"), _ask("b"), _ask("c", connection=2, input="bad " + LONG))
    assert stage.refusal(1) == "internal_error"
    stage.work[0]()
    await stage.send()
    assert stage.refusal(2) == "internal_error"
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["b"]


# --- does it fit? ---


def _prompt_length(text: str) -> int:
    return len(chat_vocabulary().prompt([Message("user", text)]))


async def test_a_prompt_and_its_answer_must_fit_the_context_together() -> None:
    length = _prompt_length("Hi")
    stage = _Stage(ready=_ready(length + 5))
    await stage.ask("a", max_output_tokens=5)
    await stage.ask("b", max_output_tokens=6)
    await stage.ask("c")
    await stage.ask("d", generate=False, max_output_tokens=50)
    assert [(e.request, e.max_output_tokens) for e in stage.admission.of(Enqueue)] == [("a", 5), ("c", 5), ("d", 0)]
    (refused,) = stage.readers[0].of(Refused)
    assert refused.request == "b"
    assert f"The prompt is {length} tokens and max_output_tokens is 6" in refused.error.message


async def test_a_prompt_that_leaves_no_room_is_refused_though_no_output_was_named() -> None:
    stage = _Stage(ready=_ready(_prompt_length("Hi")))
    await stage.ask()
    assert stage.refusal() == "context_length_exceeded"


async def test_truncation_auto_leaves_out_the_oldest_turns() -> None:
    talk = tuple(Message("user" if n % 2 == 0 else "assistant", f"turn {n}") for n in range(5))
    stage = _Stage(ready=_ready(_prompt_length("turn 4") + 3))
    await stage.ask("a", input=talk, max_output_tokens=3)
    assert stage.refusal() == "context_length_exceeded"
    await stage.ask("b", input=talk, max_output_tokens=3, truncation="auto")
    assert stage.prompt() == _chat(("user", "turn 4"))


@pytest.mark.parametrize("truncation", ["disabled", "auto"])
@pytest.mark.parametrize(
    "turns", [(Message("user", "A" * 101),), (Message("assistant", "Hi"),) * 11, (Message("user", "é" * 51),)]
)
async def test_what_cannot_fit_is_refused_before_it_is_tokenised(
    turns: tuple[Message, ...], truncation: Truncation
) -> None:
    stage = _Stage(_Never(), _ready(10))
    await stage.ask(input=turns, truncation=truncation, generate=False)
    (refused,) = stage.readers[0].of(Refused)
    assert refused.error.code == "context_length_exceeded"
    assert "The prompt is at least 11 tokens; this model's context is 10." in refused.error.message
    assert stage.work == []


class _Never:
    """A token stands for ten bytes at most; any prompt is made of the newest message."""

    longest_token = 10

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        text = "".join(message.text for message in messages)
        assert len(text) <= 100, "what cannot fit was tokenised"
        return [1] * len(text)


async def test_what_came_before_counts_unless_it_may_be_left_out() -> None:
    stage = _Stage(_Never(), _ready(10))
    await stage.answered("one", "B" * 99, input="A", generate=False)
    await stage.ask("two", input="CC", previous_response_id="one", generate=False)
    assert stage.refusal() == "context_length_exceeded"
    await stage.ask("three", input="CC", previous_response_id="one", generate=False, truncation="auto")
    assert [len(e.tokens) // 4 for e in stage.admission.of(Enqueue)] == [1, 2]


# --- full lanes ---


async def test_without_room_at_admission_the_stream_is_closed_again() -> None:
    stage = _Stage()
    stage.admission.full = True
    await stage.ask()
    assert stage.refusal() == "server_overloaded"
    assert [type(message) for message in stage.detokeniser.messages] == [OpenStream, CloseStream]


# --- long prompts ---


async def test_a_long_prompt_does_not_hold_up_a_short_one() -> None:
    stage = _Stage()
    await stage.send(_ask("long", input=LONG), _ask("short"))
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["short"]
    stage.work[0]()
    await stage.send()
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["short", "long"]
    assert stage.prompt() == _chat(("user", LONG))


async def test_only_so_many_long_prompts_wait() -> None:
    stage = _Stage(most_offloaded=1)
    await stage.send(_ask("a", input=LONG), _ask("b", input=LONG))
    assert stage.refusal() == "server_overloaded"
    stage.work[0]()
    await stage.send(_ask("c", input=LONG))
    assert len(stage.work) == 2


async def test_many_short_messages_are_a_long_prompt() -> None:
    stage = _Stage()
    await stage.ask("few", input=(Message("user", ""),) * 60)
    await stage.ask("many", input=(Message("user", ""),) * 70)
    await stage.answered("half", "", input=(Message("user", ""),) * 40)
    await stage.ask("both", input=(Message("user", ""),) * 40, previous_response_id="half")
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["few", "half"]
    assert len(stage.work) == 2


async def test_a_long_prompt_that_nobody_wants_any_more_is_not_tokenised() -> None:
    class Counting:
        longest_token = None
        asked = 0

        def prompt(self, messages: Sequence[Message]) -> list[int]:
            self.asked += 1
            return [1, 2, 3]

    prompts = Counting()
    stage = _Stage(prompts, most_offloaded=3)
    for request in ("a", "b", "c"):
        await stage.ask(request, input=LONG)
    await stage.send(Cancel("a", 1.0), Cancel("c", 1.0, keep=""))
    for work in stage.work:
        work()
    await stage.send()
    assert prompts.asked == 1
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["b"]
    # Their places are free again, and what was cancelled can be continued.
    await stage.ask("d", input=LONG, previous_response_id="c")
    assert stage.refusal() is None


async def test_a_cancel_while_its_prompt_is_tokenised_ends_it_here() -> None:
    stage = _Stage()
    await stage.ask(input=LONG)
    await stage.send(Cancel("r", 1.0))
    assert stage.readers[0].messages == [Ended("r", "cancelled", Stats())]
    stage.work[0]()
    await stage.send()
    assert stage.admission.messages == stage.detokeniser.messages == []
    assert len(stage.readers[0].messages) == 1


# --- cancels ---


async def test_a_cancel_that_overtakes_its_request_is_enough() -> None:
    stage = _Stage()
    await stage.send(_ask(), Cancel("r", 1.0), Cancel("r", 2.0))
    assert stage.readers[0].messages == [Ended("r", "cancelled", Stats())]
    assert stage.admission.messages == []


async def test_a_cancel_follows_a_request_that_was_passed_on() -> None:
    stage = _Stage()
    await stage.ask()
    await stage.send(Cancel("r", 1.0))
    assert stage.admission.of(Cancel) == [Cancel("r", 1.0)]
    assert stage.detokeniser.of(CloseStream) == [CloseStream("r")]
    assert stage.readers[0].messages == []


async def test_a_cancelled_answer_can_be_continued_from_what_was_read_of_it() -> None:
    stage = _Stage()
    await stage.ask("r", input="Count.")
    await stage.send(Cancel("r", 1.0, keep="One, two"))
    await stage.send(Remember("r", "One, two, three"))
    await stage.ask("s", previous_response_id="r", input="Go on.")
    assert stage.prompt() == _chat(("user", "Count."), ("assistant", "One, two"), ("user", "Go on."))


async def test_what_was_read_counts_even_if_the_whole_answer_was_remembered_first() -> None:
    stage = _Stage()
    await stage.ask("r", input="Count.")
    await stage.send(Remember("r", "One, two, three"))
    await stage.send(Cancel("r", 1.0, keep="One"))
    await stage.ask("s", previous_response_id="r", input="Go on.")
    assert stage.prompt() == _chat(("user", "Count."), ("assistant", "One"), ("user", "Go on."))


async def test_a_cancel_by_a_reader_who_has_gone_keeps_nothing() -> None:
    stage = _Stage()
    await stage.ask("r")
    await stage.send(Cancel("r", 1.0))
    await stage.send(Forget("r"))
    await stage.ask("s", previous_response_id="r")
    assert stage.refusal() == "previous_response_not_found"


# --- conversations ---


async def test_a_conversation_goes_on_from_another_socket_without_its_instructions() -> None:
    stage = _Stage()
    await stage.answered("one", "Hello.", instructions="Be brief.")
    await stage.answered("two", "Fine.", connection=2, previous_response_id="one", input="How are you?")
    await stage.ask("three", previous_response_id="two", input="Bye", instructions="Be kind.")
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "How are you?"), ("assistant", "Fine."), ("user", "Bye")]
    assert stage.prompt() == _chat(("system", "Be kind."), *turns)


async def test_conversations_fork() -> None:
    stage = _Stage()
    await stage.answered("one", "Hello.")
    for request in ("a", "b"):
        await stage.answered(request, request, previous_response_id="one", input=request)
    await stage.ask("c", previous_response_id="a", input="c")
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "a"), ("assistant", "a"), ("user", "c")]
    assert stage.prompt() == _chat(*turns)


async def test_another_tenant_s_and_unknown_responses_are_not_found() -> None:
    stage = _Stage()
    await stage.answered("one", "Hello.")
    await stage.ask("two", tenant="other", previous_response_id="one")
    await stage.ask("three", previous_response_id="none")
    assert [refused.error.code for refused in stage.readers[0].of(Refused)] == ["previous_response_not_found"] * 2


async def test_a_refused_continuation_leaves_its_parent_usable() -> None:
    stage = _Stage()
    await stage.answered("one", "Hello.")
    await stage.ask("two", previous_response_id="one", max_output_tokens=100_000)
    await stage.ask("three", previous_response_id="one", model="wrong")
    await stage.ask("four", previous_response_id="one", input="Bye")
    assert stage.prompt() == _chat(("user", "Hi"), ("assistant", "Hello."), ("user", "Bye"))


async def test_an_unstored_conversation_belongs_to_its_socket_and_ends_with_it() -> None:
    stage = _Stage()
    await stage.answered("one", "Hello.", store=False)
    await stage.ask("two", connection=2, previous_response_id="one")
    assert stage.refusal(2) == "previous_response_not_found"
    await stage.ask("three", previous_response_id="one")
    assert stage.refusal(1) is None
    await stage.send(ConnectionClosed(1), Remember("three", "late"))
    for previous in ("one", "three"):
        await stage.ask("four", previous_response_id=previous)
        assert stage.refusal(1) == "previous_response_not_found"


async def test_an_answer_that_ends_after_its_socket_is_not_kept_if_unstored() -> None:
    stage = _Stage()
    await stage.ask("one", store=False)
    await stage.send(ConnectionClosed(1))
    await stage.send(Remember("one", "Hello."))
    await stage.ask("two", previous_response_id="one")
    assert stage.refusal() == "previous_response_not_found"


async def test_a_prefilled_prompt_is_continued_without_an_answer() -> None:
    stage = _Stage()
    await stage.answered("one", None, generate=False, input="Long preface.")
    await stage.ask("two", previous_response_id="one", input="Now.")
    assert stage.prompt() == _chat(("user", "Long preface."), ("user", "Now."))


@pytest.mark.parametrize("text", ["", None])
async def test_an_answer_is_continued_from_if_it_was_shown_though_it_be_empty(text: str | None) -> None:
    stage = _Stage()
    await stage.answered("one", text)
    await stage.ask("two", previous_response_id="one", input="Now.")
    answer = [] if text is None else [("assistant", text)]
    assert stage.prompt() == _chat(("user", "Hi"), *answer, ("user", "Now."))


async def test_a_failed_answer_is_not_kept() -> None:
    stage = _Stage()
    await stage.ask("one")
    await stage.send(Forget("one"))
    await stage.ask("two", previous_response_id="one")
    assert stage.refusal() == "previous_response_not_found"


async def test_a_conversation_expires_and_being_remembered_late_does_no_harm() -> None:
    stage = _Stage(keeping=Keeping(retain_s=10.0))
    await stage.answered("one", "Hello.")
    await stage.ask("two", previous_response_id="one")
    stage.now += 11.0
    await stage.send(Sweep(stage.now))
    await stage.ask("three", previous_response_id="one")
    assert stage.refusal() == "previous_response_not_found"
    await stage.send(Remember("two", "Yes."), Remember("never", "x"), Forget("never"))
    await stage.send(Remember("two", "again"))
    await stage.ask("four", previous_response_id="two", input="Bye")
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Hi"), ("assistant", "Yes."), ("user", "Bye")]
    assert stage.prompt() == _chat(*turns)
