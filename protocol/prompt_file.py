"""Prompts of real text, from a file.

`NAME.jsonl`: every line is a JSON object, whose "prompt" is the text; other keys are ignored. Any other file is plain
text: a prompt a paragraph, which ends at an empty line. Both are UTF-8, and empty lines do not count.

Knows the two forms. Knows nothing of who sends which prompt.
"""

import re
from pathlib import Path

import msgspec
from msgspec import Struct

from protocol.scenario_error import ScenarioError

MOST_BYTES = 256 * 2**20


class _Line(Struct):
    prompt: str


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """The prompts in the order of the file, at least one, none of them blank. Raises `ScenarioError`."""
    path = check_prompts(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ScenarioError(f"The prompts in {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ScenarioError(f"The prompts in {path} are not UTF-8: {error}.") from None
    found = _objects(text, path) if path.suffix.lower() == ".jsonl" else re.split(r"\n[ \t\r]*\n", text)
    prompts = tuple(prompt.strip() for prompt in found if prompt.strip())
    if not prompts:
        raise ScenarioError(f"There are no prompts in {path}: it is empty.")
    return prompts


def check_prompts(path: str | Path) -> Path:
    """Whether there is a file of prompts, without having read it. Raises `ScenarioError`."""
    path = Path(path)
    if not path.is_file():
        raise ScenarioError(f'There is no file of prompts {path}; without one it is "letters" or "exact".')
    if path.stat().st_size > MOST_BYTES:
        raise ScenarioError(f"The prompts in {path} are more than {MOST_BYTES // 2**20} MiB: take a part of them.")
    return path


def _objects(text: str, path: Path) -> list[str]:
    decode = msgspec.json.Decoder(_Line).decode
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompts.append(decode(line).prompt)
        except msgspec.MsgspecError as error:
            raise ScenarioError(f'{path}: line {number}: not an object with a "prompt": {error}.') from None
    return prompts
