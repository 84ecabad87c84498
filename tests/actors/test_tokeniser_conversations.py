"""Conversations: what can be continued, from where, by whom and for how long."""

import pytest

from actors.conversations import Keeping
from protocol.messages import (
    ConnectionClosed,
    Forget,
    Refused,
    Remember,
    Sweep,
)
from tests.actors.tokeniser_stage import Stage, chat


async def test_a_conversation_goes_on_from_another_socket_without_its_instructions() -> None:
    stage = Stage()
    await stage.answered("one", "Hello.", instructions="Be brief.")
    await stage.answered("two", "Fine.", connection=2, previous_response_id="one", input="How are you?")
    await stage.ask("three", previous_response_id="two", input="Bye", instructions="Be kind.")
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "How are you?"), ("assistant", "Fine."), ("user", "Bye")]
    assert stage.prompt() == chat(("system", "Be kind."), *turns)


async def test_conversations_fork() -> None:
    stage = Stage()
    await stage.answered("one", "Hello.")
    for request in ("a", "b"):
        await stage.answered(request, request, previous_response_id="one", input=request)
    await stage.ask("c", previous_response_id="a", input="c")
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "a"), ("assistant", "a"), ("user", "c")]
    assert stage.prompt() == chat(*turns)


async def test_another_tenant_s_and_unknown_responses_are_not_found() -> None:
    stage = Stage()
    await stage.answered("one", "Hello.")
    await stage.ask("two", tenant="other", previous_response_id="one")
    await stage.ask("three", previous_response_id="none")
    assert [refused.error.code for refused in stage.readers[0].of(Refused)] == ["previous_response_not_found"] * 2


async def test_a_refused_continuation_leaves_its_parent_usable() -> None:
    stage = Stage()
    await stage.answered("one", "Hello.")
    await stage.ask("two", previous_response_id="one", max_output_tokens=100_000)
    await stage.ask("three", previous_response_id="one", model="wrong")
    await stage.ask("four", previous_response_id="one", input="Bye")
    assert stage.prompt() == chat(("user", "Hi"), ("assistant", "Hello."), ("user", "Bye"))


async def test_an_unstored_conversation_belongs_to_its_socket_and_ends_with_it() -> None:
    stage = Stage()
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
    stage = Stage()
    await stage.ask("one", store=False)
    await stage.send(ConnectionClosed(1))
    await stage.send(Remember("one", "Hello."))
    await stage.ask("two", previous_response_id="one")
    assert stage.refusal() == "previous_response_not_found"


async def test_a_prefilled_prompt_is_continued_without_an_answer() -> None:
    stage = Stage()
    await stage.answered("one", None, generate=False, input="Long preface.")
    await stage.ask("two", previous_response_id="one", input="Now.")
    assert stage.prompt() == chat(("user", "Long preface."), ("user", "Now."))


@pytest.mark.parametrize("text", ["", None])
async def test_an_answer_is_continued_from_if_it_was_shown_though_it_be_empty(text: str | None) -> None:
    stage = Stage()
    await stage.answered("one", text)
    await stage.ask("two", previous_response_id="one", input="Now.")
    answer = [] if text is None else [("assistant", text)]
    assert stage.prompt() == chat(("user", "Hi"), *answer, ("user", "Now."))


async def test_a_failed_answer_is_not_kept() -> None:
    stage = Stage()
    await stage.ask("one")
    await stage.send(Forget("one"))
    await stage.ask("two", previous_response_id="one")
    assert stage.refusal() == "previous_response_not_found"


async def test_a_conversation_expires_and_being_remembered_late_does_no_harm() -> None:
    stage = Stage(keeping=Keeping(retain_s=10.0))
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
    assert stage.prompt() == chat(*turns)
