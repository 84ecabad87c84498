import os
import stat
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, InMemoryHistory

from loadgen.chat_input import Lines, _Commands, history_file, history_in


def completed(text: str) -> list[str]:
    return [found.text for found in _Commands().get_completions(Document(text), CompleteEvent())]


def test_commands_and_tiers_are_completed_and_questions_are_not() -> None:
    assert completed("/t") == ["/targets", "/tier", "/tokens"]
    assert completed("/tier f") == ["flex", "fast"]
    assert completed("/seed ") == []
    assert completed("t") == []
    assert completed("what /t") == []


def test_the_history_is_in_the_users_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert history_file({"XDG_STATE_HOME": "/state"}) == Path("/state/rota/chat-history")
    assert history_file({}) == tmp_path / ".local/state/rota/chat-history"
    assert history_file({"XDG_STATE_HOME": "relative"}) == tmp_path / ".local/state/rota/chat-history"


def test_the_history_is_kept_across_sessions_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "state" / "rota" / "chat-history"
    history_in(file).append_string("One?\nmore")
    assert list(history_in(file).load_history_strings()) == ["One?\nmore"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_history_that_cannot_be_written_is_kept_in_memory(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, no folder")
    assert isinstance(history_in(tmp_path / "taken" / "chat-history"), InMemoryHistory)


def test_a_history_that_cannot_be_written_any_more_breaks_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rota" / "chat-history"
    history = history_in(file)
    assert isinstance(history, FileHistory)
    file.unlink()
    file.mkdir()
    history.append_string("One?")
    assert history.get_strings() == ["One?"]


async def lines_of(data: bytes, *more: bytes) -> list[str]:
    read, write = os.pipe()
    try:
        lines, found = Lines(read), []
        for piece in (data, *more):
            os.write(write, piece)
        os.close(write)
        while (line := await lines.next()) is not None:
            found.append(line)
        return found
    finally:
        os.close(read)


async def test_every_line_is_a_question_and_empty_ones_are_not() -> None:
    assert await lines_of(b"One?\n\n  \nTwo", b"?\nThr\xc3", b"\xa9e") == ["One?", "Two?", "Thrée"]
    assert await lines_of(b"") == []
    assert await lines_of(b"\xff\n") == ["\N{REPLACEMENT CHARACTER}"]
