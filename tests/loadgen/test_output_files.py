"""What could not be written at the end is a sentence at the beginning, and nothing is touched."""

import os
from pathlib import Path

import pytest

from loadgen.command_line import Misuse
from loadgen.output_files import check_files


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.svg"
    old.write_text("kept", encoding="utf-8")
    check_files({"svg": new, "html": None, "json": old})
    assert old.read_text(encoding="utf-8") == "kept"
    assert not new.exists()


def test_a_pipe_is_not_tried_since_its_reader_would_take_it_for_the_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_files({"json": pipe})


def test_two_flags_cannot_name_one_file_however_it_is_spelled(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    twice = {"svg": tmp_path / "x", "html": None, "json": tmp_path / "folder" / ".." / "x"}
    with pytest.raises(Misuse, match=r"^--svg and --json name the same file: "):
        check_files(twice)


def test_a_folder_or_a_place_where_nothing_can_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"cannot be written: Is a directory\.$"):
        check_files({"html": tmp_path})
    with pytest.raises(Misuse, match=r"/proc/x\.html cannot be written: "):
        check_files({"html": Path("/proc/x.html")})
    with pytest.raises(Misuse, match="there is no folder"):
        check_files({"html": tmp_path / "no" / "x.html"})
