from hypothesis import given
from hypothesis import strategies as st

from actors.answer_text import AnswerText
from protocol.messages import OpenStream, SampledToken, Text, TextEnd
from tests.actors.vocabularies import END, byte_level, chat_vocabulary

_text = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("ab 😀👩\u200d好\u0301")))


def _answer(stop: tuple[str, ...] = (), limit: int = 0, logprobs: int | None = None) -> AnswerText:
    opened = OpenStream("r", 1, (END,), stop, logprobs, limit)
    return AnswerText(opened, chat_vocabulary().decoder(), chat_vocabulary().token_text)


def _tokens(text: str) -> list[int]:
    return byte_level().encode(text, add_special_tokens=False).ids


def _take_all(answer: AnswerText, tokens: list[int], last: bool = True) -> list[Text]:
    """What it shows after every token, the last of which is said to be `last`."""
    texts = []
    for number, token in enumerate(tokens):
        answer.take(SampledToken(token), float(number), last and number == len(tokens) - 1)
        texts.append(answer.text())
        if answer.finish is not None:
            break
    return [text for text in texts if text is not None]


def _shown(texts: list[Text]) -> str:
    return "".join(text.text for text in texts)


@given(_text)
def test_an_answer_that_ends_by_itself_is_shown_whole(text: str) -> None:
    texts = _take_all(_answer(), [*_tokens(text), END])
    assert _shown(texts) == text
    assert texts[-1].end == TextEnd("stop", len(_tokens(text)) + 1)


@given(_text, st.integers(1, 40))
def test_a_limit_shows_every_whole_character_and_no_other(text: str, limit: int) -> None:
    tokens = _tokens(text)
    if len(tokens) > limit:
        texts = _take_all(_answer(limit=limit), tokens, last=False)
        expected = byte_level().decode(tokens[:limit], skip_special_tokens=True)
        assert "\ufffd" in text or _shown(texts) == expected.rstrip("\ufffd")
        assert texts[-1].end == TextEnd("length", limit)


@given(st.text("abcEND#", max_size=60), st.lists(st.text("abEND#", min_size=1, max_size=5), max_size=3).map(tuple))
def test_a_stop_text_is_never_shown_in_part_and_what_is_none_is_shown(text: str, stop: tuple[str, ...]) -> None:
    texts = _take_all(_answer(stop), [*_tokens(text), END])
    shown = _shown(texts)
    assert not any(one in shown for one in stop)
    found = min((text.find(one) for one in stop if one in text), default=-1)
    if found < 0:
        assert shown == text
        assert texts[-1].end is not None
        assert texts[-1].end.reason == "stop"
    else:
        assert text.startswith(shown)
        assert any(text[len(shown) :].startswith(one) for one in stop)
        assert texts[-1].end is not None
        assert texts[-1].end.reason == "stop_text"


@given(_text, st.lists(st.booleans(), max_size=80))
def test_every_token_s_time_is_told_once(text: str, asked: list[bool]) -> None:
    answer, tokens, texts = _answer(("zz",)), [*_tokens(text), END], []
    for number, token in enumerate(tokens):
        answer.take(SampledToken(token), float(number), False)
        if number < len(asked) and asked[number]:
            texts.append(answer.text())
    texts.append(answer.text())
    times = [at for one in texts if one is not None for at in one.token_times]
    assert times == [float(number) for number in range(len(tokens))]


def test_the_token_that_completes_a_stop_text_ends_it_though_it_is_also_the_last() -> None:
    texts = _take_all(_answer(("###",)), _tokens("ab###"))
    assert _shown(texts) == "ab"
    assert texts[-1].end == TextEnd("stop_text", len(_tokens("ab###")))


def test_text_held_back_at_the_limit_is_shown() -> None:
    assert _shown(_take_all(_answer(("###",)), _tokens("ab##"))) == "ab##"


def test_an_end_token_at_the_limit_is_the_model_s_own_end() -> None:
    texts = _take_all(_answer(limit=3), [*_tokens("ab")[:2], END])
    assert texts[-1].end is not None
    assert texts[-1].end.reason == "stop"


def test_special_tokens_that_end_nothing_are_not_shown() -> None:
    texts = _take_all(_answer(), [0, *_tokens("ab"), 1, *_tokens("c"), END])
    assert _shown(texts) == "abc"


def test_a_character_that_the_model_left_unfinished_is_a_replacement_character() -> None:
    tokens = [*_tokens("a"), *_tokens("🦊")[:-1], END]
    assert _shown(_take_all(_answer(), tokens)) == byte_level().decode(tokens, skip_special_tokens=True) == "a\ufffd"


def test_a_deadline_leaves_out_the_unfinished_character() -> None:
    answer = _answer()
    shown = _take_all(answer, [*_tokens("a"), *_tokens("🦊")[:-1]], last=False)
    answer.end("deadline")
    end = answer.text()
    assert end is not None
    assert _shown([*shown, end]) == answer.full_text() == "a"
    assert end.end == TextEnd("deadline", len(_tokens("🦊")))


def _logprobs_of(texts: list[Text]) -> list[list[str]]:
    return [[logprob.token for logprob in text.logprobs] for text in texts]


def _take_with_logprobs(answer: AnswerText, tokens: list[int]) -> list[Text]:
    texts = []
    for token in tokens:
        answer.take(SampledToken(token, -0.5, ((token, -0.5), (END, -1.0))), 0.0, False)
        text = answer.text()
        if text is not None:
            texts.append(text)
        if answer.finish is not None:
            break
    return texts


def test_log_probabilities_come_with_the_characters_of_their_tokens() -> None:
    fox = _tokens("🦊")
    texts = _take_with_logprobs(_answer(logprobs=2), [*_tokens("a"), *fox, *_tokens("b"), END])
    assert [text.text for text in texts] == ["a", "🦊", "b", ""]
    assert _logprobs_of(texts) == [["a"], ["\ufffd"] * len(fox), ["b"], []]
    assert texts[0].logprobs[0].top == (("a", -0.5), ("<|im_end|>", -1.0))


def test_log_probabilities_of_a_stop_text_are_not_told() -> None:
    tokens = [*_tokens("q"), *_tokens("#"), *_tokens("!")]
    texts = _take_with_logprobs(_answer(("#!",), logprobs=0), tokens)
    assert _logprobs_of(texts) == [["q"], []]


def test_log_probabilities_of_held_text_follow_when_it_is_shown() -> None:
    tokens = [*_tokens("q"), *_tokens("#"), *_tokens("x"), END]
    texts = _take_with_logprobs(_answer(("#!",), logprobs=0), tokens)
    assert [text.text for text in texts] == ["q", "#x", ""]
    assert _logprobs_of(texts) == [["q"], ["#", "x"], []]
