import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadgen.progress import Board, Rate, counts, display


def test_the_bar_counts_text_and_fills_up_when_requests_end_early() -> None:
    board = Board(requests=2, output_tokens_each=10)
    for _ in range(4):
        board.text()
    assert (board.chunks, board.bar, board.ended) == (4, 4, 0)
    board.end(4)
    assert (board.bar, board.ended) == (10, 1)
    board.end(0)
    assert (board.bar, board.ended) == (20, 2)


@given(st.lists(st.integers(0, 20), max_size=20))
def test_the_bar_is_full_when_all_have_ended(chunks: list[int]) -> None:
    board = Board(requests=len(chunks), output_tokens_each=20)
    for count in chunks:
        for _ in range(count):
            board.text()
        board.end(count)
    assert board.bar == 20 * len(chunks)


def test_the_rate_is_that_of_the_last_two_seconds() -> None:
    rate = Rate()
    assert rate.at(0.0, 0) == 0.0
    assert rate.at(1.0, 10) == 10.0
    assert rate.at(2.0, 20) == 10.0
    assert rate.at(3.0, 120) == 55.0
    assert rate.at(10.0, 120) == 0.0


def test_counts_read_as_a_sentence() -> None:
    board = Board(requests=16, output_tokens_each=64, ended=2, open_sockets=14)
    assert counts(board, 1312.4, 0.0) == "~1,312 tokens/s, 14 sockets open, 2/16 ended"


def test_a_request_by_itself_is_told_as_reading_until_it_has_text() -> None:
    board = Board(requests=1, output_tokens_each=1, open_sockets=17, began_s=100.0)
    assert counts(board, 0.0, 140.2) == "reading its prompt, 40 s"
    board.text()
    assert counts(board, 12.0, 141.0) == "~12 tokens/s, 41 s"


def shown(console: Console, quiet: bool, *times: float) -> str:
    board = Board(requests=2, output_tokens_each=10, phase="running")
    with display(console, quiet) as display_:
        for now_s in times:
            display_.show(board, now_s)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_quiet_shows_nothing(terminal: bool) -> None:
    assert shown(Console(file=io.StringIO(), force_terminal=terminal), True, 0.0, 100.0) == ""


def test_without_a_terminal_there_is_a_line_every_five_seconds() -> None:
    lines = shown(Console(file=io.StringIO(), force_terminal=False), False, *range(13)).splitlines()
    assert [line.split(",")[0] for line in lines] == ["5 s", "10 s"]


def test_on_a_terminal_there_is_a_live_bar() -> None:
    text = shown(Console(file=io.StringIO(), force_terminal=True, width=120), False, 0.0, 0.1)
    assert "running" in text
    assert "sockets open" in text
    assert "\x1b[" in text
