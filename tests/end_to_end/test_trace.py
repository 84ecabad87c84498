"""`rota serve --trace FILE`, watched from outside: what stands in the file, while it serves and after it has left."""

from pathlib import Path

import pytest

from protocol.trace import BEGUN, TraceLine, files_of, lines
from tests.end_to_end.client import connected
from tests.end_to_end.conftest import Start
from tests.end_to_end.server import run_to_its_end, until

KEY = "s3cret-key"
WHO = "annabelle"
WORD = "Constantinople"


def read(path: Path) -> list[TraceLine]:
    """Of all files, without a last line that is still being written."""
    return [
        lines.decode(line)
        for file in files_of(path)
        for line in file.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


async def test_a_request_is_in_the_trace_while_the_server_lives_and_its_words_are_not(
    own: Start, legible_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    keys = ("--api-keys", f"{WHO}={KEY}")
    server = own("--model", str(legible_folder), "--dtype", "float32", *keys, "--trace", str(path))
    assert server.logged("engine.ready")[0]["trace"] == str(path)
    async with connected(server, key=KEY) as client:
        answer = await client.ask(f"Tell me of {WORD}. " * 200, max_output_tokens=8, ignore_eos=True)
        assert len(answer.text) == 8

        async def told() -> TraceLine | None:
            return next((line for line in read(path) if (line.type, line.request) == ("Ended", answer.id)), None)

        ended = await until(told)
        assert (ended.reason, ended.output_tokens) == ("length", 8)
    found = read(path)
    assert found[0].type == BEGUN
    own_lines = [line for line in found if line.request == answer.id]
    tokenised = next(line for line in own_lines if line.type == "Tokenised")
    assert tokenised.from_ == "thread", "a prompt of that length is tokenised off the loop"
    assert tokenised.tokens == answer.usage["input_tokens"]
    chunks = [chunk for line in found if line.type == "Step" for chunk in line.chunks if chunk[0] == answer.id]
    assert sum(count for *_, count, _ in chunks) == answer.usage["input_tokens"] + 7
    step = next(line for line in found if line.type == "StepDone")
    assert step.from_ == "worker"
    assert (step.took_s or 0) > 0
    server.terminate()
    assert server.process.wait(30) == 0
    left = read(path)
    assert left[: len(found)] == found
    assert left[-1].time >= found[-1].time
    assert "Drained" in {line.type for line in left}, "its last words"
    content = path.read_bytes()
    assert content.endswith(b"\n")
    for word in (KEY, WHO, WORD, answer.text):
        assert word.encode() not in content


@pytest.mark.parametrize("where", ["a folder", "nowhere", "no trace", "a full disk"])
def test_a_trace_that_cannot_be_written_is_said_before_anything_is_loaded(where: str, tmp_path: Path) -> None:
    other = tmp_path / "notes"
    other.write_text("mine\n")
    path, why = {
        "a folder": (tmp_path, "Is a directory"),
        "nowhere": (tmp_path / "nowhere" / "trace", "No such file or directory"),
        "no trace": (other, "exists and is not a trace"),
        "a full disk": (Path("/dev/full"), "No space left on device"),
    }[where]
    code, output, errors = run_to_its_end(tmp_path / "server", "--trace", str(path))
    assert (code, output) == (2, "")
    assert errors.startswith("rota: ")
    assert errors.count("\n") == 1
    for part in (str(path), why, "--trace"):
        assert part in errors
    assert other.read_text() == "mine\n"
