import asyncio
from random import Random
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.actor import Mailbox
from actors.detokeniser import Detokeniser, DetokeniserInbox
from actors.text_decoder import TextDecoder
from protocol.messages import (
    CloseStream,
    FinishReason,
    FinishStream,
    Forget,
    OpenStream,
    Remember,
    SampledToken,
    Text,
    TextEnd,
    TokenRow,
    Tokens,
    TokensTaken,
)
from tests.actors.vocabularies import END, Recorder, byte_level, chat_vocabulary, directory_of, send


class _Stage:
    """A detokeniser between recorders. `broken`: the token at which its decoder fails."""

    def __init__(self, broken: int | None = None) -> None:
        self.reader, self.tokeniser, self.scheduler = Recorder(), Recorder(), Recorder()
        mailbox: Mailbox[DetokeniserInbox] = Mailbox(lambda: 7.0, 64)
        self._broken = broken
        self.actor = Detokeniser(
            mailbox,
            vocabulary=self,
            tokeniser=self.tokeniser.address(),
            scheduler=self.scheduler.address(),
            directory=directory_of(self.reader),
            clock=lambda: 7.0,
        )

    def decoder(self) -> TextDecoder:
        decoder = chat_vocabulary().decoder()
        return cast(TextDecoder, _Broken(decoder, self._broken)) if self._broken is not None else decoder

    def token_text(self, token: int) -> str:
        return chat_vocabulary().token_text(token)

    def texts(self, request: str) -> list[Text]:
        return [text for text in self.reader.of(Text) if text.request == request]

    def shown(self, request: str) -> str:
        return "".join(text.text for text in self.texts(request))

    def end(self, request: str) -> TextEnd | None:
        texts = self.texts(request)
        return texts[-1].end if texts else None


class _Broken:
    def __init__(self, decoder: TextDecoder, token: int) -> None:
        self._decoder = decoder
        self._token = token
        self.finish, self.cut = decoder.finish, decoder.cut

    def push(self, token: int) -> str:
        if token == self._token:
            raise ValueError("a token that breaks the decoder")
        return self._decoder.push(token)


def _open(request: str, stop: tuple[str, ...] = ()) -> OpenStream:
    return OpenStream(request, 1, (END,), stop, None, 0)


def _tokens(
    step: int, *rows: tuple[str, int], last: bool = False, ended: tuple[tuple[str, FinishReason], ...] = ()
) -> Tokens:
    return Tokens(step, step / 10, tuple(TokenRow(name, SampledToken(token), last) for name, token in rows), ended)


def _ids(text: str) -> list[int]:
    return byte_level().encode(text, add_special_tokens=False).ids


def _steps(request: str, text: str) -> list[Tokens]:
    return [_tokens(step, (request, token)) for step, token in enumerate([*_ids(text), END], start=1)]


async def test_an_answer_is_shown_as_it_comes_and_its_end_is_told_to_all() -> None:
    stage = _Stage()
    await send(stage.actor, _open("a"), *_steps("a", "a fox 🦊."))
    assert stage.shown("a") == "a fox 🦊."
    assert stage.end("a") == TextEnd("stop", len(_ids("a fox 🦊.")) + 1)
    assert stage.tokeniser.messages == [Remember("a", "a fox 🦊.")]
    assert stage.scheduler.of(FinishStream) == []
    assert [taken.step for taken in stage.scheduler.of(TokensTaken)] == list(range(1, len(_ids("a fox 🦊.")) + 2))


ANSWERS = st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda text: "<|" not in text)
"""What is no special token: those are not shown."""


@settings(max_examples=40)
@given(st.lists(ANSWERS, min_size=1, max_size=5), st.randoms())
def test_many_answers_side_by_side_keep_apart(texts: list[str], random: Random) -> None:
    """Each step holds a random choice of the requests that are not done."""

    async def run() -> None:
        stage = _Stage()
        left = {str(number): [*_ids(text), END] for number, text in enumerate(texts)}
        await send(stage.actor, *(_open(name) for name in left))
        step = 0
        while left:
            step += 1
            chosen = random.sample(sorted(left), random.randint(1, len(left)))
            await send(stage.actor, _tokens(step, *((name, left[name].pop(0)) for name in chosen)))
            left = {name: tokens for name, tokens in left.items() if tokens}
        assert [stage.shown(str(number)) for number in range(len(texts))] == texts
        assert {message.request: message.text for message in stage.tokeniser.messages} == {
            str(number): text for number, text in enumerate(texts)
        }

    asyncio.run(run())


async def test_a_stop_text_tells_the_scheduler_and_later_tokens_are_dropped() -> None:
    stage = _Stage()
    await send(stage.actor, _open("a", ("STOP",)), *_steps("a", "goSTOPnever"))
    assert stage.shown("a") == "go"
    assert stage.end("a") == TextEnd("stop_text", len(_ids("goSTOP")))
    assert stage.scheduler.of(FinishStream) == [FinishStream("a", 7.0)]
    assert stage.tokeniser.messages == [Remember("a", "go")]


async def test_the_conversation_is_remembered_before_the_end_is_told() -> None:
    stage = _Stage()
    order: list[object] = []
    stage.reader.messages = stage.tokeniser.messages = order
    await send(stage.actor, _open("a"), _tokens(1, ("a", END)))
    assert [type(message) for message in order] == [Remember, Text]


async def test_an_empty_answer_is_one_only_where_its_client_is_shown_it() -> None:
    stage = _Stage()
    await send(stage.actor, _open("a"), _open("b"), _tokens(1, ("a", END)), _tokens(2, ended=(("b", "deadline"),)))
    assert stage.tokeniser.messages == [Remember("a", ""), Remember("b", None)]


async def test_prefilled_and_deadline_end_without_a_token() -> None:
    stage = _Stage()
    await send(
        stage.actor,
        _open("a"),
        _open("b"),
        _tokens(1, ("b", _ids("x")[0])),
        _tokens(2, ended=(("a", "prefilled"), ("b", "deadline"), ("gone", "deadline"))),
    )
    assert stage.end("a") == TextEnd("prefilled", 0)
    assert stage.end("b") == TextEnd("deadline", 1)
    assert stage.tokeniser.messages == [Remember("a", None), Remember("b", "x")]


async def test_a_stream_that_is_closed_before_its_first_token_shows_nothing() -> None:
    stage = _Stage()
    await send(stage.actor, *_steps("a", "text"), _open("a"), CloseStream("a"))
    assert stage.reader.messages == stage.tokeniser.messages == []


async def test_nothing_is_said_after_a_cancel() -> None:
    stage = _Stage()
    await send(stage.actor, _open("a"), _tokens(1, ("a", _ids("x")[0])))
    await send(stage.actor, CloseStream("a"), _tokens(2, ("a", _ids("y")[0])), _tokens(3, ("a", END)))
    assert stage.shown("a") == "x"
    assert stage.end("a") is None
    assert stage.tokeniser.messages == []


async def test_an_answer_that_cannot_be_decoded_fails_alone() -> None:
    stage = _Stage(broken=5)
    a, b = _ids("a")[0], _ids("b")[0]
    await send(stage.actor, _open("bad"), _open("good"), _tokens(1, ("bad", a), ("good", b)))
    await send(stage.actor, _tokens(2, ("bad", 5), ("good", a)), _tokens(3, ("bad", a), ("good", END)))
    assert stage.shown("bad") == "a"
    assert stage.end("bad") == TextEnd("failed", 2)
    assert stage.shown("good") == "ba"
    assert stage.end("good") == TextEnd("stop", 3)
    assert stage.scheduler.of(FinishStream) == [FinishStream("bad", 7.0)]
    assert stage.tokeniser.messages == [Forget("bad"), Remember("good", "ba")]
    assert [taken.step for taken in stage.scheduler.of(TokensTaken)] == [1, 2, 3]


async def test_one_text_a_request_and_step_with_the_times_of_held_back_tokens() -> None:
    stage = _Stage()
    fox = _ids("🦊")
    assert len(fox) > 1
    await send(stage.actor, _open("a"), *(_tokens(step, ("a", token)) for step, token in enumerate(fox, start=1)))
    assert stage.reader.messages == [Text("a", "🦊", tuple(step / 10 for step in range(1, len(fox) + 1)))]
