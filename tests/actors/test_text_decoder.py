import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from actors.text_decoder import ByteDecoder, TextDecoder, WindowDecoder
from actors.token_bytes import token_bytes
from actors.vocabulary import Vocabulary
from tests.actors.vocabularies import byte_fallback, byte_level, cached_models, metaspace, word_piece

_DECOMPOSED = "e\u0301"
_text = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from(f" 😀👩\u200d👧好界{_DECOMPOSED}")))


def _by_bytes(tokenizer: Tokenizer) -> TextDecoder:
    table = token_bytes(tokenizer)
    assert table is not None
    return ByteDecoder(table)


def _decoded(decoder: TextDecoder, tokens: list[int]) -> str:
    return "".join(decoder.push(token) for token in tokens) + decoder.finish()


@given(_text)
def test_text_comes_back_from_byte_level_tokens(text: str) -> None:
    tokens = byte_level().encode(text, add_special_tokens=False).ids
    assert _decoded(_by_bytes(byte_level()), tokens) == byte_level().decode(tokens, skip_special_tokens=True)


@given(st.lists(st.integers(0, 540)))
def test_any_byte_level_tokens_give_what_decoding_them_at_once_gives(tokens: list[int]) -> None:
    expected = byte_level().decode(tokens, skip_special_tokens=True)
    assert _decoded(_by_bytes(byte_level()), tokens) == expected


@pytest.mark.parametrize("strip", [0, 1])
@given(text=_text)
def test_text_comes_back_from_tokens_with_byte_fallback(strip: int, text: str) -> None:
    tokenizer = byte_fallback(strip)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert _decoded(_by_bytes(tokenizer), tokens) == tokenizer.decode(tokens, skip_special_tokens=True)


@given(st.lists(st.integers(0, 620)))
def test_any_tokens_with_byte_fallback_differ_only_in_runs_of_invalid_bytes(tokens: list[int]) -> None:
    tokenizer = byte_fallback()
    expected = tokenizer.decode(tokens, skip_special_tokens=True)
    decoded = _decoded(_by_bytes(tokenizer), tokens)
    assert decoded == expected or "\ufffd" in expected


@given(st.lists(st.integers(0, 299)))
def test_any_metaspace_tokens_give_what_decoding_them_at_once_gives(tokens: list[int]) -> None:
    assert _decoded(_by_bytes(metaspace()), tokens) == metaspace().decode(tokens, skip_special_tokens=True)


@given(st.lists(st.integers(0, 299)))
def test_a_window_gives_what_decoding_all_at_once_gives(tokens: list[int]) -> None:
    expected = word_piece().decode(tokens, skip_special_tokens=True)
    assert _decoded(WindowDecoder(word_piece()), tokens) == expected


@given(_text)
def test_a_window_and_the_bytes_agree(text: str) -> None:
    tokens = byte_level().encode(text, add_special_tokens=False).ids
    assert _decoded(WindowDecoder(byte_level()), tokens) == _decoded(_by_bytes(byte_level()), tokens)


@pytest.mark.parametrize("decoder", [_by_bytes(byte_level()), WindowDecoder(byte_level())])
def test_half_a_character_is_neither_pushed_out_nor_left_when_cut(decoder: TextDecoder) -> None:
    first_bytes = byte_level().encode("🦊", add_special_tokens=False).ids[:-1]
    assert [decoder.push(token) for token in first_bytes] == [""] * len(first_bytes)
    assert decoder.unfinished
    assert decoder.cut() == ""


def test_numbers_that_no_token_has_are_nothing() -> None:
    decoder = _by_bytes(byte_level())
    assert decoder.push(1_000_000) == ""


@pytest.mark.parametrize("folder", cached_models(), ids=lambda folder: folder.name)
def test_text_comes_back_from_a_real_model_s_tokens(folder: object) -> None:
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    vocabulary = Vocabulary(tokenizer, None)

    @given(_text)
    def comes_back(text: str) -> None:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = _decoded(vocabulary.decoder(), tokens)
        assert decoded == tokenizer.decode(tokens, skip_special_tokens=True)

    comes_back()
