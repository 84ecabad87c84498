import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from actors.token_bytes import NFC_SHORTENS, longest_token, token_bytes
from tests.actors.vocabularies import byte_fallback, byte_level, metaspace, word_piece


@pytest.mark.parametrize("tokenizer", [byte_level(), byte_fallback(), byte_fallback(0), metaspace()])
def test_every_token_after_the_first_has_the_bytes_that_decoding_gives_it(tokenizer: Tokenizer) -> None:
    table = token_bytes(tokenizer)
    assert table is not None
    anchor = tokenizer.encode("a", add_special_tokens=False).ids[-1]
    before = tokenizer.decode([anchor, anchor], skip_special_tokens=True)
    for token in range(tokenizer.get_vocab_size()):
        alone = table.shown[token]
        decoded = tokenizer.decode([anchor, anchor, token], skip_special_tokens=True)
        assert before + alone.decode(errors="replace") == decoded


def test_special_tokens_are_not_shown_and_other_added_tokens_are() -> None:
    table = token_bytes(byte_level())
    assert table is not None
    vocabulary = byte_level().get_vocab()
    assert table.shown[vocabulary["<|im_end|>"]] == b""
    assert table.shown[vocabulary["<think>"]] == b"<think>"
    assert table.shown[vocabulary["two words é"]] == "two words é".encode()


def test_a_tokeniser_whose_text_depends_on_neighbours_has_no_table() -> None:
    assert token_bytes(word_piece()) is None


def _with(**parts: object) -> Tokenizer:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


_NFC = _with(normalizer=normalizers.NFC())


@pytest.mark.parametrize("tokenizer", [byte_level(), _NFC, byte_fallback(), byte_fallback(0)])
@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.text("▁ ae\u0301two words quick\u1100\u1161\u11a8"))
def test_no_prompt_is_shorter_than_its_bytes_over_the_longest_token(tokenizer: Tokenizer, text: str) -> None:
    longest = longest_token(tokenizer, token_bytes(tokenizer))
    assert longest is not None
    assert len(tokenizer.encode(text, add_special_tokens=False).ids) * longest >= len(text.encode())


def _stripping() -> Tokenizer:
    tokenizer = _with()
    tokenizer.add_special_tokens([AddedToken("<x>", rstrip=True, special=True)])
    return tokenizer


@pytest.mark.parametrize(
    "tokenizer",
    [
        metaspace(),  # one token for all that is unknown
        word_piece(),
        _stripping(),
        _with(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])),
        _with(normalizer=normalizers.Replace("a", "")),
        _with(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel()])),
        _with(
            pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])
        ),
    ],
)
def test_where_a_token_can_stand_for_anything_there_is_no_longest(tokenizer: Tokenizer) -> None:
    assert longest_token(tokenizer, token_bytes(tokenizer)) is None


def test_composing_characters_shortens_no_text_by_more_than_we_think() -> None:
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            apart, composed = (len(unicodedata.normalize(form, chr(code)).encode()) for form in ("NFD", "NFC"))
            assert max(apart, len(chr(code).encode())) <= NFC_SHORTENS * composed
