import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.chat_commands import COMMANDS, BadValue, Typed, obey, targets_in_words, targets_of
from loadgen.chat_conversation import Conversation
from loadgen.chat_wire import Answer, Event, Response, Settings, Usage
from protocol.responses import Targets


@pytest.fixture
def conversation() -> Conversation:
    return Conversation(Settings(model="m"))


def answered(conversation: Conversation, question: str, response: str, text: str = "Yes.") -> None:
    answer = Answer()
    for event in (
        Event("response.created", response=Response(response)),
        Event("response.output_text.delta", delta=text),
        Event("response.completed", response=Response(response, usage=Usage(input_tokens=10, output_tokens=4))),
    ):
        answer.hear(event)
    conversation.asked(question)
    conversation.answered(answer)


# -- what is a command


@pytest.mark.parametrize("line", ["What is it?", " /new", "/etc/hosts: what is it?", "//", "1/2", "/new/", "é/new"])
def test_what_does_not_begin_with_a_command_is_the_question(conversation: Conversation, line: str) -> None:
    assert obey(line, conversation) == Typed(ask=line.strip())


@pytest.mark.parametrize("line", ["", "  ", "\n"])
def test_nothing_typed_asks_nothing(conversation: Conversation, line: str) -> None:
    assert obey(line, conversation) == Typed()


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("/quti", "/quit"),
        ("/sys", "/system"),
        ("/target", "/targets"),
        ("/help!", None),
        ("/HELPP", "/help"),
        ("/", "/"),
    ],
)
def test_a_misspelt_command_names_the_nearest(conversation: Conversation, word: str, meant: str | None) -> None:
    typed = obey(word, conversation)
    if meant is None:
        assert typed == Typed(ask=word)
    else:
        assert typed.ask is None
        assert typed.say is not None
        assert f"Did you mean {meant}" in typed.say


@given(st.text())
def test_no_line_can_break_it(line: str) -> None:
    typed = obey(line, Conversation(Settings(model="m")))
    assert typed.say is None or typed.ask is None


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_command(conversation: Conversation, command: str) -> None:
    said = obey("/help", conversation).say
    assert said is not None
    assert f"{command} " in said


def test_a_command_may_be_written_in_capitals(conversation: Conversation) -> None:
    assert obey("/QUIT", conversation).leave


# -- what they change


def test_instructions_are_shown_set_and_taken_away(conversation: Conversation) -> None:
    assert obey("/system", conversation).say == "No instructions."
    obey("/system Be brief.\nBe kind.", conversation)
    assert conversation.settings.instructions == "Be brief.\nBe kind."
    assert "Be brief." in str(obey("/system", conversation).say)
    obey("/system none", conversation)
    assert conversation.settings.instructions is None


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("ttft=1s,itl=100ms", Targets(1000.0, 100.0)),
        ("itl=0.1s", Targets(None, 100.0)),
        ("ttft=300ms", Targets(300.0, None)),
        ("ttft=1s, itl=100ms", Targets(1000.0, 100.0)),
        ("none", None),
    ],
)
def test_targets_are_read_as_they_are_written(conversation: Conversation, text: str, targets: Targets | None) -> None:
    conversation.settings.targets = Targets(1.0, 1.0)
    said = obey(f"/targets {text}", conversation).say
    assert conversation.settings.targets == targets == targets_of(text)
    assert said == f"Targets: {targets_in_words(targets)}."


@pytest.mark.parametrize(
    "text", ["", ",", "ttft", "ttft=1", "ttft=0s", "itl=-1s", "itl=1..2s", "itl=.s", "foo=1s", "1s"]
)
def test_what_is_no_target_is_told_and_changes_nothing(conversation: Conversation, text: str) -> None:
    with pytest.raises(BadValue, match="ttft=1s,itl=100ms"):
        targets_of(text)
    if text:
        assert "ttft=1s,itl=100ms" in str(obey(f"/targets {text}", conversation).say)
    assert conversation.settings.targets is None


def test_a_tier_is_one_of_those_there_are(conversation: Conversation) -> None:
    obey("/tier fast", conversation)
    assert conversation.settings.service_tier == "fast"
    assert "ultrafast" in str(obey("/tier faster", conversation).say)
    assert conversation.settings.service_tier == "fast"


def test_seed_and_limit_are_whole_numbers_or_none(conversation: Conversation) -> None:
    obey("/seed 0", conversation)
    obey("/tokens 20", conversation)
    assert (conversation.settings.seed, conversation.settings.max_output_tokens) == (0, 20)
    for wrong in ("/seed -1", "/seed x", "/tokens 0", "/tokens 1.5", "/tokens ²"):
        assert "no whole number" in str(obey(wrong, conversation).say)
    assert (conversation.settings.seed, conversation.settings.max_output_tokens) == (0, 20)
    obey("/seed none", conversation)
    obey("/tokens none", conversation)
    assert (conversation.settings.seed, conversation.settings.max_output_tokens) == (None, None)


# -- the conversation


def test_the_next_question_continues_the_last_answer(conversation: Conversation) -> None:
    answered(conversation, "One?", "resp_1")
    answered(conversation, "Two?", "resp_2")
    assert conversation.continues == "resp_2"
    assert conversation.reading_tokens("x" * 40) == 14 + 10


def test_new_forgets_the_conversation_and_keeps_the_settings(conversation: Conversation) -> None:
    obey("/system Be brief.", conversation)
    answered(conversation, "One?", "resp_1")
    obey("/new", conversation)
    assert conversation.continues is None
    assert conversation.settings.instructions == "Be brief."
    assert obey("/retry", conversation).ask is None
    assert obey("/cost", conversation).say == "Nothing was answered yet."


def test_retry_asks_again_from_before_the_last_question(conversation: Conversation) -> None:
    assert obey("/retry", conversation) == Typed(say="Nothing was asked yet.")
    answered(conversation, "One?", "resp_1")
    answered(conversation, "Two?", "resp_2")
    assert obey("/retry", conversation) == Typed(ask="Two?")
    assert conversation.continues == "resp_1"
    answered(conversation, "Two?", "resp_3")
    assert obey("/retry", conversation) == Typed(ask="Two?")
    assert conversation.continues == "resp_1"


def test_an_answer_of_which_nothing_was_written_is_no_turn(conversation: Conversation) -> None:
    answered(conversation, "One?", "resp_1")
    answered(conversation, "Two?", "resp_2", text="")
    assert conversation.continues == "resp_1"


def test_cost_adds_up_the_whole_conversation(conversation: Conversation) -> None:
    answered(conversation, "One?", "resp_1")
    answered(conversation, "Two?", "resp_2")
    obey("/retry", conversation)
    answered(conversation, "Two?", "resp_3")
    assert str(obey("/cost", conversation).say).startswith("3 answers · 30 tokens in · 12 out · ")
