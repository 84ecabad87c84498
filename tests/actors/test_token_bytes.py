import pytest
from tokenizers import Tokenizer

from actors.token_bytes import token_bytes
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
