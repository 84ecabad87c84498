"""What is counted of timelines, and the tables of it."""

import io
import json

import msgspec
import pytest
from rich.console import Console

from loadgen.comparison import Comparison, compare, print_comparison, span
from protocol.timeline import Life, Timeline, Turn
from tests.loadgen.timelines import as_seen_outside, crowd, laptops


def life(name: str = "A", **more: object) -> Life:
    """Arrives at 10 s, has its tokens at 11, 11.5 and 12 s, and meets its targets."""
    fields: dict[str, object] = {
        "name": name,
        "prompt_tokens": 100,
        "arrived_s": 10.0,
        "ttft_target_s": 1.0,
        "itl_target_s": 0.5,
        "token_times": (11.0, 11.5, 12.0),
        "ended_s": 12.0,
        "finished": True,
        "outcome": "length",
    }
    return msgspec.convert(fields | more, Life)


def refused(name: str, code: str = "server_overloaded", **more: object) -> Life:
    return life(name, token_times=(), finished=False, outcome=code, **more)


def printed(timelines: list[Timeline], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_comparison(timelines, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(text: str, row: str) -> list[str]:
    """The cells of the first row that begins so."""
    line = next(line.strip() for line in text.splitlines() if line.strip().startswith(row))
    return [cell.strip() for cell in line.removeprefix(row).split("  ") if cell.strip()]


def test_goodput_is_those_that_met_their_targets_over_the_whole_span() -> None:
    late = life("late", arrived_s=9.0, ended_s=13.0)
    [figures] = compare([Timeline("slack", (life(), late, refused("no")))]).policies
    assert (figures.requests, figures.finished, figures.met) == (3, 2, 1)
    assert figures.span_s == 4.0, "from the first arrival to the last end"
    assert figures.goodput_per_s == 0.25
    assert (figures.tokens, figures.tokens_per_s) == (6, 1.5)
    assert figures.not_finished == {"server_overloaded": 1}


def test_waits_are_of_every_request_that_had_them() -> None:
    [figures] = compare([Timeline("slack", (life(), life("B", arrived_s=8.0), refused("no")))]).policies
    assert figures.ttft_s is not None
    assert (figures.ttft_s.count, figures.ttft_s.p50, figures.ttft_s.worst) == (2, 1.0, 3.0)
    assert figures.gap_s is not None
    assert (figures.gap_s.count, figures.gap_s.worst) == (4, 0.5)
    assert [one.met for one in figures.per_request] == [True, False, False]


def test_a_pause_of_the_others_counts_as_far_as_it_fell_into_the_wait() -> None:
    reader = life("A", arrived_s=0.0, token_times=(1.0, 11.0, 12.0, 30.0))
    waiting = life("B", arrived_s=8.0, token_times=(11.5, 20.0))
    alone = life("C", arrived_s=50.0, token_times=(51.0,))
    [figures] = compare([Timeline("slack", (reader, waiting, alone))]).policies
    assert [one.others_worst_gap_s for one in figures.per_request] == [None, 3.0, None]
    assert [(one.worst_gap_s, one.worst_gap_at_s) for one in figures.per_request] == [
        (18.0, 12.0),
        (8.5, 11.5),
        (None, None),
    ]


def test_a_request_without_a_first_token_waited_until_its_end() -> None:
    reader = life("A", arrived_s=0.0, token_times=(1.0, 2.0, 9.0))
    waiting = refused("B", "deadline", arrived_s=1.5, ended_s=6.0)
    [figures] = compare([Timeline("slack", (reader, waiting))]).policies
    assert figures.per_request[1].others_worst_gap_s == 4.0


def test_nothing_and_nobody_are_counted_as_well() -> None:
    assert compare([]).policies == []
    assert printed([]) == ""
    [figures] = compare([Timeline("slack", ())]).policies
    assert (figures.requests, figures.goodput_per_s, figures.ttft_s) == (0, None, None)
    assert "slack" in printed([Timeline("slack", ())])
    [figures] = compare([Timeline("slack", (refused("A", ended_s=None),))]).policies
    assert (figures.span_s, figures.goodput_per_s, figures.tokens_per_s) == (0.0, None, None)


def test_the_json_is_as_its_shape_says() -> None:
    encoded = msgspec.json.encode(compare(laptops(), "laptops"))
    again = msgspec.json.decode(encoded, type=Comparison)
    assert msgspec.to_builtins(again) == json.loads(encoded)
    assert (again.format, again.scenario) == (1, "laptops")
    assert [each.policy for each in again.policies] == ["slack", "fixed_chunk", "decode_first", "prefill_first"]


# -- the tables


def test_the_pause_that_a_policy_makes_stands_out_in_its_column() -> None:
    text = printed(laptops())
    assert cells(text, "A: longest pause") == ["420 ms", "late 532 ms", "20 ms", "late 24.0 s"]
    assert cells(text, "B: first token") == ["25.2 s", "24.9 s", "27.5 s", "24.0 s"]
    assert cells(text, "B waits: others pause") == ["420 ms", "532 ms", "20 ms", "24.0 s"]


def test_a_late_pause_of_an_answer_that_met_its_targets_is_explained_and_no_other() -> None:
    even = tuple(11.0 + n / 2 for n in range(300))
    hiccup = life(token_times=(*even, even[-1] + 0.8), ended_s=even[-1] + 0.8)
    pause = life(token_times=(*even, even[-1] + 1.1), ended_s=even[-1] + 1.1)
    assert (hiccup.met, pause.met) == (True, False)
    rule = "met all the same where 99% of the gaps keep theirs and none is over 2 times as long."
    for one, explained in ((hiccup, True), (pause, False), (life(), False)):
        text = printed([Timeline("slack", (one,))])
        assert cells(text, "A: longest pause")[0].startswith("late") == (one.gaps_s[-1] > 0.5)
        assert (rule in text) == explained


def test_a_row_a_policy_tells_who_met_the_targets() -> None:
    good = Timeline("slack", (life(), life("B")), (Turn(0.0, 1.0),))
    bad = Timeline("prefill_first", (life(arrived_s=9.0, preemptions=2), refused("B")), (Turn(0.0, 1.0),))
    text = printed([good, bad])
    assert cells(text, "slack") == ["2 of 2 (100%)", "1/s", "3.0", "0", "0"]
    assert cells(text, "prefill_first") == ["0 of 2 (0%)", "0/s", "1.0", "2", "1"]
    assert "prefill_first: 1 did not finish (1 server_overloaded)." in text


def test_many_requests_are_told_in_percentiles() -> None:
    text = printed([crowd(9), crowd(9, "prefill_first")])
    assert "longest pause" not in text
    assert "TTFT p50" in text
    assert all(len(line) <= 80 for line in printed([crowd(300)], width=80).splitlines())


def test_what_a_client_counts_is_called_chunks() -> None:
    assert "tokens/s" in printed(laptops())
    outside = printed([as_seen_outside(timeline) for timeline in laptops()])
    assert "chunks/s" in outside
    assert "tokens/s" not in outside


def test_names_are_no_markup() -> None:
    text = printed([Timeline("[bold]", (life("[red]A[/red]"),))])
    assert "[red]A[/red]: longest pause" in text
    assert text.count("[bold]") == 2, "in both tables"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0.0 ms"),
        (0.00834, "8.3 ms"),
        (0.48, "480 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (31.24, "31.2 s"),
        (1204.0, "1,204 s"),
    ],
)
def test_a_time_is_shown_in_the_unit_that_suits_it(seconds: float | None, text: str) -> None:
    assert span(seconds) == text
