"""How far the runs are: a line now and then where nobody draws bars, and a bar each on a terminal."""

import io

from rich.console import Console

from actors.simulator.progress import Bars, Lines, display


def test_a_line_tells_how_far_each_run_is_and_only_now_and_then() -> None:
    said, now_s = io.StringIO(), 100.0
    with Lines(Console(file=said), ["slack", "fixed_chunk"], 19_366, "requests simulated", lambda: now_s) as far:
        now_s = 104.9
        far([10, 20])
        assert said.getvalue() == "", "what takes less says nothing"
        now_s = 105.0
        far([3200, 64])
        now_s = 109.9
        far([4000, 128])
    assert said.getvalue() == "5 s: slack 3,200, fixed_chunk 64 of 19,366 requests simulated\n"


def test_on_a_terminal_each_run_has_a_bar_with_its_count() -> None:
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=120)
    shown = display(console, ["slack"], 19_366, "requests simulated")
    assert isinstance(shown, Bars)
    with shown as far:
        far([3200])
    assert "3200/19366" in drawn.getvalue()
    assert "requests simulated" in drawn.getvalue()


def test_where_there_is_no_terminal_there_are_lines() -> None:
    assert isinstance(display(Console(file=io.StringIO()), [], 1, ""), Lines)
