"""Prompts of real text: a paragraph each, or an object a line; and the sentence where there are none."""

import re
from pathlib import Path

import pytest

from protocol.prompt_file import MOST_BYTES, read_prompts
from protocol.scenario_error import ScenarioError


def test_a_paragraph_is_a_prompt_and_keeps_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "real.txt"
    file.write_text("\ufeffWhy is\n  the sky blue?\n \t\n\n\nAnd the sea?\n\n", encoding="utf-8")
    assert read_prompts(file) == ("Why is\n  the sky blue?", "And the sea?")


def test_of_a_jsonl_file_the_prompt_of_each_line_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "real.JSONL"
    file.write_text('{"prompt": "One\\n\\nof two", "id": 3}\n\n{"prompt": "Two"}\n{"prompt": " "}\n')
    assert read_prompts(file) == ("One\n\nof two", "Two")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b" \n\n", "There are no prompts in "),
        ("a.txt", b"\xff", "are not UTF-8"),
        ("a.jsonl", b'{"prompt": "x"}\n{"text": "y"}', 'line 2: not an object with a "prompt": '),
        ("a.jsonl", b"{", 'line 1: not an object with a "prompt": '),
        ("a.jsonl", b'{"prompt": 3}', "Expected `str`, got `int`"),
    ],
)
def test_what_is_no_file_of_prompts_is_one_sentence(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ScenarioError, match=re.escape(said)) as error:
        read_prompts(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


def test_a_file_that_is_not_there_or_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"There is no file of prompts .*no\.txt"):
        read_prompts(tmp_path / "no.txt")
    huge = tmp_path / "huge.txt"
    with huge.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ScenarioError, match="more than 256 MiB"):
        read_prompts(huge)
