"""The default model, which the server fetches if this machine has never had it: whole, and as `transformers` has it."""

import pytest

from loadgen.prompts import prompt
from tests.end_to_end.client import connected
from tests.end_to_end.reference import Reference
from tests.end_to_end.server import Server
from tests.end_to_end.test_exactness import assert_exact, together
from tests.end_to_end.test_text import assert_no_half_character

EMOJI = "Repeat exactly: 😀🎉👩‍👩‍👧‍👦🏳️‍🌈 你好世界 こんにちは 안녕 é ñ"
TOKENS = 8
PROMPTS = ["Hi", "Why is the sky blue?", prompt(3, 0, 150)]


@pytest.mark.parametrize("crowd", [False, True], ids=["alone", "together"])
async def test_the_real_model_answers_as_transformers_would(
    real: Server, real_reference: Reference, crowd: bool
) -> None:
    if crowd:
        answers = await together(real, PROMPTS, TOKENS)
    else:
        async with connected(real) as client:
            answers = [await client.ask(text, max_output_tokens=TOKENS) for text in PROMPTS]
    for text, answer in zip(PROMPTS, answers, strict=True):
        assert_exact(answer, real_reference.answer(text, TOKENS))


async def test_emoji_combining_characters_and_cjk_arrive_whole(real: Server, real_reference: Reference) -> None:
    expected = real_reference.answer(EMOJI, 48)
    assert sum(ord(letter) > 0x2000 for letter in expected.text) >= 10, "the model writes them at all"
    async with connected(real) as client:
        answer = await client.ask(EMOJI, max_output_tokens=48)
    cut = expected.text.rstrip("\ufffd") if not expected.ended else expected.text
    assert answer.text == cut
    assert "\ufffd" not in answer.text
    assert_no_half_character(answer)
