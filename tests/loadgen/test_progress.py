import io
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from loadgen.figures import Exchange
from loadgen.progress import MOST_WAITS, Board, LiveView, Rate, counts, display
from loadgen.sparkline import BLOCKS


def ended(chunks: int = 0, **fields: Any) -> Exchange:
    one: dict[str, Any] = {"socket": 0, "number": 0, "outcome": "finished", "due_s": 0.0, "sent_s": 0.0}
    return Exchange(**one | {"texts_s": [1.0] * chunks} | fields)


def test_the_bar_counts_text_and_fills_up_when_requests_end_early() -> None:
    board = Board(requests=2, output_tokens_each=10)
    board.first_text(0.5)
    for _ in range(3):
        board.text(0.1)
    assert (board.chunks, board.bar, board.ended) == (4, 4, 0)
    board.end(ended(4))
    assert (board.bar, board.ended) == (10, 1)
    board.end(Exchange(0, 1))
    assert (board.bar, board.ended) == (20, 2)


@given(st.lists(st.integers(0, 40), max_size=20))
def test_the_bar_is_full_when_all_have_ended_however_long_each_was(chunks: list[int]) -> None:
    board = Board(requests=len(chunks), output_tokens_each=20)
    for count in chunks:
        for _ in range(count):
            board.text()
        board.end(ended(count))
    assert board.bar == 20 * len(chunks)


def test_every_end_is_counted_as_what_it_was() -> None:
    board = Board(requests=8, output_tokens_each=10)
    for _ in range(6):
        board.sent()
    targets: dict[str, Any] = {"ttft_target_s": 2.0, "itl_target_s": 1.0}
    board.end(ended(3, **targets))
    board.end(ended(3, **targets | {"ttft_target_s": 0.5}))
    board.end(ended(3))
    board.end(ended(outcome="refused", **targets))
    board.end(ended(3, outcome="left", ended_s=1.5, **targets))
    assert (board.started, board.running, board.ended) == (6, 1, 5)
    assert (board.met, board.missed) == (1, 2)
    assert (board.refused, board.left, board.failed) == (1, 1, 0)
    board.end(ended(outcome="dropped"))
    board.end(Exchange(0, 0))
    assert (board.running, board.ended, board.failed) == (0, 7, 1)


def test_waits_that_nobody_draws_do_not_pile_up() -> None:
    board = Board(requests=1, output_tokens_each=1)
    for _ in range(MOST_WAITS + 10):
        board.text(0.1)
    assert len(board.gaps_s) == MOST_WAITS


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
    board.running, board.met, board.missed, board.refused = 3, 1, 0, 1
    assert counts(board, 0.0, 0.0).endswith(", 2/16 ended, 3 running, 1 met, 1 refused")


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


def frames(width: int, seconds: int = 30) -> tuple[str, list[str]]:
    """All that went to a terminal of this width in a run of a request a second, and the lines of its last frame."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, height=30)
    board = Board(40, 20, phase="running", open_sockets=64, began_s=0.0, arrivals_s=40.0)
    chance = random.Random(1)
    view = display(console, False)
    assert isinstance(view, LiveView)
    with view:
        for tenth in range(10 * seconds):
            if tenth % 10 == 0:
                board.sent()
                board.first_text(chance.uniform(0.1, 0.9))
            for _ in range(20):
                board.text(chance.lognormvariate(-4.0, 1.5))
            view.show(board, tenth / 10)
    last = Console(file=io.StringIO(), force_terminal=True, width=width)
    last.print(view.drawn(board, seconds))
    assert isinstance(last.file, io.StringIO)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), last.file.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_frame_fits_the_terminal(width: int) -> None:
    _, lines = frames(width)
    plain = [Text.from_ansi(line).plain for line in lines]
    assert all(cell_len(line) <= width for line in plain)
    assert len(plain) == (3 if width < 28 else 8)


def test_a_frame_tells_how_the_run_stands() -> None:
    text, lines = frames(80)
    assert "\x1b[" in text
    plain = [Text.from_ansi(line).plain for line in lines]
    assert plain[0].startswith("running ")
    assert plain[0].rstrip().endswith("30 s, arrivals for 40 s")
    assert "30/40 arrived, 30 running" in plain[1]
    assert plain[1].endswith("64 sockets open")
    assert plain[2].startswith("0/40 ended")
    assert [line[:9] for line in plain[3:7]] == ["TTFT p50 ", "     p99 ", "gap  p50 ", "     p99 "]
    assert all(sum(letter in BLOCKS for letter in line) == 29 for line in plain[3:7])
    assert "TTFT ▁" in plain[7]
    assert plain[7].endswith("log")


def test_no_more_than_ten_frames_a_second_are_drawn() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    board = Board(requests=2, output_tokens_each=10)
    assert isinstance(console.file, io.StringIO)
    lengths = set()
    with display(console, False) as view:
        for thousandth in range(1000):
            view.show(board, thousandth / 1000)
            lengths.add(len(console.file.getvalue()))
    assert 9 <= len(lengths) <= 11


def test_the_bar_never_goes_back() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    board = Board(requests=2, output_tokens_each=10)
    view = LiveView(console)
    with view:
        for _ in range(15):
            board.text()
        view.show(board, 0.0)
        full = view.done
        board.end(ended(15))
        view.show(board, 1.0)
        assert (board.bar, view.done) == (10, full)
        view.show(Board(requests=2, output_tokens_each=10), 2.0)
        assert view.done == 0
