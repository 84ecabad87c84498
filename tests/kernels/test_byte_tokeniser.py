from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from kernels.byte_tokeniser import END_ID, START_ID, VOCABULARY, write_byte_tokeniser


def test_chatml_is_marked_with_its_two_tokens(small_folder: Path) -> None:
    tokeniser: Any = AutoTokenizer.from_pretrained(small_folder)
    messages = [{"role": "user", "content": "hi"}]
    tokens = tokeniser.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokens == [START_ID, *b"user\nhi", END_ID, 10, START_ID, *b"assistant\n"]
    assert (tokeniser.eos_token_id, len(tokeniser)) == (END_ID, VOCABULARY)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text())
def test_every_text_is_its_bytes_and_comes_back(tmp_path: Path, text: str) -> None:
    from tokenizers import Tokenizer

    if not (tmp_path / "tokenizer.json").exists():
        write_byte_tokeniser(tmp_path)
    tokeniser = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    if "<|im_" not in text:
        assert tokeniser.encode(text).ids == list(text.encode())
    assert tokeniser.decode(tokeniser.encode(text).ids, skip_special_tokens=False) == text
