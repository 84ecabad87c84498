import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.command_line import Misuse
from loadgen.figures import Exchange, report
from loadgen.report_page import asked, page, write_report
from loadgen.report_plots import Plot, ecdf, first_texts, gaps, goodput, rates
from loadgen.report_runs import Run
from loadgen.report_timeline import MOST_LATE_GAPS, MOST_ROWS, timeline
from loadgen.tables import figure_rows, milliseconds
from tests.loadgen.made_runs import Made, Server, all_refused, load, nothing, open_run, together


def run_of(*exchanges: Exchange, offered_per_s: float | None = 1.0) -> Run:
    rest: dict[str, Any] = {"stopped_by": "finished", "opened": 1, "not_opened": [], "client_lag_worst_s": 0.0}
    return Run.of(report(load(), exchanges, **rest, scenario="made", offered_per_s=offered_per_s), exchanges)


def answered(due_s: float, *texts_s: float, **fields: Any) -> Exchange:
    one: dict[str, Any] = {"socket": 0, "number": 0, "outcome": "finished", "ended_s": texts_s[-1]}
    return Exchange(**one | {"due_s": due_s, "sent_s": due_s, "texts_s": list(texts_s)} | fields)


def lines(plot: Plot) -> dict[str, tuple[list[float], list[float]]]:
    """What is drawn under each name."""
    assert plot.figure is not None
    return {each.name: (list(each.x), list(each.y)) for each in plot.figure.data if each.name}


def stretches(plot: Plot, name: str) -> list[tuple[float, float, int]]:
    x, y = lines(plot)[name]
    return [(round(x[at], 6), round(x[at + 1], 6), round(y[at])) for at in range(0, len(x), 3)]


def written(tmp_path: Path, *runs: Made) -> str:
    write_report(tmp_path / "report.html", runs, "a title")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


# -- the page


def test_the_page_needs_nothing_beside_it(tmp_path: Path) -> None:
    html = written(tmp_path, open_run(3.0, requests=40))
    outside_scripts = re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)
    assert not re.search(r"\b(src|href)\s*=\s*[\"'](?!data:)", outside_scripts)
    assert "@import" not in outside_scripts
    assert "default-src 'none'" in html
    assert html.count("plotly.js v") == 1


def test_the_page_holds_what_was_asked_for_and_the_figures_of_the_table(tmp_path: Path) -> None:
    figures, exchanges = open_run(3.0, requests=40)
    html = written(tmp_path, (figures, exchanges))
    for name, value in asked([figures]):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in html
    for row in figure_rows(figures):
        assert f">{row.name}</th>" in html
        if row.client is not None:
            assert f">{milliseconds(row.client.p99)}</td>" in html
    said = dict(asked([figures]))
    assert said["targets"] == "ttft 1 s, itl 100 ms"
    assert (said["arrivals"], said["offered"], said["seed"]) == ("poisson, 3/s", "3/s", "7")


def test_a_sweep_holds_its_runs_against_each_other_first(tmp_path: Path) -> None:
    runs = [open_run(per_s, requests=30) for per_s in (1.0, 4.0)]
    html = written(tmp_path, *runs)
    assert html.count("<details>") == 2
    assert html.index("How much of what is asked") < html.index("<details>") < html.index("What each request went")
    assert dict(asked([figures for figures, _ in runs]))["arrivals"] == "2 rates, one after another"


EVIL = "</script><script>alert(1)</script>"


def test_nothing_that_a_server_says_is_markup(tmp_path: Path) -> None:
    runs = [open_run(2.0, requests=20, groups=(EVIL, "b"), scenario=EVIL, load_changes={"model": EVIL})]
    runs.append(all_refused(message=EVIL, code=EVIL))
    for html in (written(tmp_path, runs[0]), written(tmp_path, runs[1]), written(tmp_path, *runs), page(runs, EVIL)):
        assert "<script>alert" not in html
        assert "alert(1)" in html


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="cannot be written"):
        write_report(tmp_path, [together()], "a title")


@pytest.mark.parametrize(
    "runs", [[nothing()], [all_refused()], [together(sockets=1, chunks=1)], [nothing(), nothing()]]
)
def test_where_there_is_nothing_to_draw_a_sentence_says_why(runs: list[Made]) -> None:
    html = page(runs, "a title")
    captions = re.findall(r"<figcaption><h2>.*?</h2><p>(.*?)</p></figcaption>\s*(<div class=\"plot\")?", html)
    assert captions
    for caption, _ in captions:
        assert caption.endswith(".")
    assert all(
        json.loads(text)["data"] for text in re.findall(r"<script type=\"application/json\">(.*?)</script>", html)
    )


# -- distributions


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 60))
def test_a_thinned_curve_is_nowhere_off_by_a_thousandth(values: list[float], times: int) -> None:
    samples = np.array(values * times)
    x, y = ecdf(samples)
    assert y[0] == 0
    assert y[-1] == 100
    assert len(x) <= 1502 + 1
    everything = np.sort(samples)
    true = np.searchsorted(everything, x[1:], side="right") * 100 / len(everything)
    at_points = np.array([y[1:][x[1:] == value].max() for value in x[1:]])
    assert np.abs(at_points - true).max() <= 0.11
    assert np.diff(y).max() <= 0.11 or len(everything) < 1500


def test_first_texts_are_drawn_by_both_clocks_and_counted_from_when_they_were_due() -> None:
    run = run_of(
        answered(10.0, 10.5, 11.0, server_ttft_ms=480.0, ttft_target_s=1.0),
        answered(10.0, 12.0, sent_s=11.0, server_ttft_ms=990.0, ttft_target_s=1.0),
        Exchange(0, 0, outcome="refused", due_s=10.0, sent_s=10.0, ended_s=10.1, ttft_target_s=1.0),
    )
    drawn = lines(first_texts([run]))
    assert drawn["all requests, client's clock"] == ([0.5, 0.5, 2.0], [0, 50, 100])
    assert drawn["all requests, server says"] == ([0.48, 0.48, 0.99], [0, 50, 100])
    assert drawn["target 1 s"] == ([1.0, 1.0], [0, 100])
    assert "1 of 3 requests got no text" in first_texts([run]).caption


def test_first_texts_that_all_came_within_a_second_are_drawn_in_milliseconds() -> None:
    drawn = first_texts([run_of(answered(0.0, 0.25, ttft_target_s=0.5))])
    assert drawn.figure is not None
    assert drawn.figure.layout.xaxis.title.text == "first text after, ms"
    assert lines(drawn)["all requests"][0] == pytest.approx([250.0, 250.0])
    assert lines(drawn)["target 500 ms"][0] == pytest.approx([500.0, 500.0])


def test_each_group_has_a_curve_and_each_run_of_a_sweep() -> None:
    figures, exchanges = open_run(3.0, requests=60, groups=("laptops", "rush"))
    assert {"laptops", "rush", "target 100 ms"} == set(lines(gaps([Run.of(figures, exchanges)])))
    sweep = [Run.of(*open_run(per_s, requests=40)) for per_s in (1.0, 2.5)]
    assert {"1/s", "2.5/s", "target 1 s"} == set(lines(first_texts(sweep)))
    many = open_run(3.0, requests=60, groups=[f"g{number}" for number in range(7)])
    assert {"all requests", "target 100 ms"} == set(lines(gaps([Run.of(*many)])))


def test_gaps_leave_out_slow_readers_and_the_warm_up() -> None:
    run = run_of(
        answered(0.0, 1.0, 1.1, 1.2),
        answered(0.0, 1.0, 9.0, slow_reader=True),
        answered(0.0, 1.0, 9.0, warm_up=True),
    )
    x, _ = lines(gaps([run]))["all requests"]
    assert x == pytest.approx([100.0] * 3)


def test_gaps_too_short_for_the_axis_are_drawn_at_its_end_and_told() -> None:
    plot = gaps([run_of(answered(0.0, 1.0, 1.0, 1.05))])
    x, _ = lines(plot)["all requests"]
    assert x == pytest.approx([0.1, 0.1, 50.0])
    assert "1 shorter than 0.1 ms are drawn there." in plot.caption


def test_a_target_far_away_does_not_squeeze_the_curve() -> None:
    plot = first_texts([run_of(answered(0.0, 0.1, ttft_target_s=10.0))])
    assert "target 10 s" not in lines(plot)
    assert "The target 10 s is far to the right of all." in plot.caption


# -- the timeline


def test_a_bar_tells_waiting_from_being_answered_and_marks_what_was_late() -> None:
    run = run_of(
        answered(102.0, 102.5, 102.6, 103.6, 103.7, ttft_target_s=1.0, itl_target_s=0.5),
        answered(100.0, 103.0, 104.0, ttft_target_s=1.0, itl_target_s=2.0),
    )
    plot = timeline(run)
    assert stretches(plot, "waits for its first text") == [(0.0, 1.0, 1), (2.0, 2.5, 2)]
    assert stretches(plot, "is being answered") == [(3.0, 4.0, 1), (2.5, 3.7, 2)]
    assert stretches(plot, "waits longer than its target") == [(1.0, 3.0, 1), (2.6, 3.6, 2)]


def test_ends_that_were_none_are_marked_where_they_happened() -> None:
    run = run_of(
        Exchange(0, 0, outcome="refused", due_s=0.0, sent_s=0.0, ended_s=0.25),
        answered(1.0, 2.0, 2.5, outcome="left", left=True),
        Exchange(0, 0, outcome="dropped", due_s=2.0, sent_s=2.0, ended_s=3.0),
        Exchange(0, 0, outcome="unfinished", due_s=3.0, sent_s=3.0, given_up_s=5.0),
        Exchange(0, 0),
    )
    drawn = lines(timeline(run))
    assert drawn["refused"] == ([0.25], [1])
    assert drawn["left by its person"] == ([2.5], [2])
    assert drawn["failed or lost"] == ([3.0], [3])
    assert drawn["cut off, or never sent"] == ([5.0], [4])
    assert "1 more never came to be due." in timeline(run).caption


def test_of_very_many_requests_some_are_drawn_and_it_says_which() -> None:
    run = Run.of(*open_run(100.0, requests=2000, chunks=4, server=Server(places=100, most_waiting=2000)))
    plot = timeline(run)
    rows = {row for _, _, row in stretches(plot, "waits for its first text")}
    assert rows == set(range(1, 501))
    assert len(rows) <= MOST_ROWS
    assert "one request in 4 of 2,000" in plot.caption


def test_very_many_late_gaps_become_fewer_marks() -> None:
    texts = [at for number in range(400) for at in (number * 1.0, number * 1.0 + 0.5)]
    run = run_of(*(answered(0.0, *texts, itl_target_s=0.49) for _ in range(100)))
    late = stretches(timeline(run), "waits longer than its target")
    assert 100 <= len(late) <= MOST_LATE_GAPS


# -- rates and goodput


def test_rates_count_what_came_ended_and_met_and_who_was_there() -> None:
    run = run_of(
        answered(0.0, 1.0, 2.0, ttft_target_s=2.0),
        answered(0.0, 3.0, 4.0, ttft_target_s=2.0),
        Exchange(0, 0, outcome="refused", due_s=1.0, sent_s=1.0, ended_s=1.0, ttft_target_s=2.0),
    )
    drawn = lines(rates(run))
    width = drawn["arrivals"][0][1]
    totals = {name: sum(y[:-1]) * width for name, (_, y) in drawn.items() if name not in ("being answered",)}
    assert totals["arrivals"] == pytest.approx(3)
    assert totals["finished"] == pytest.approx(2)
    assert totals["met targets"] == pytest.approx(1)
    assert totals["refused or failed"] == pytest.approx(1)
    at, being = drawn["being answered"]
    waiting = drawn["waiting for first text"][1]
    there = {round(second, 3): (being[index], waiting[index]) for index, second in enumerate(at)}
    assert there[0.5] == (0, 2)
    assert there[1.5] == (1, 1)
    assert there[3.5] == (1, 0)
    assert there[4.0] == (0, 0)


def test_when_all_were_over_at_once_there_is_no_panel_of_who_was_there() -> None:
    plot = rates(Run.of(*all_refused()))
    assert set(lines(plot)) == {"arrivals", "refused or failed"}
    assert "none is seen under way" in plot.caption


def test_goodput_of_a_sweep_is_a_point_a_run() -> None:
    runs = [open_run(per_s, requests=60) for per_s in (4.0, 1.0)]
    x, y = lines(goodput([Run.of(*run) for run in runs]))["goodput"]
    assert x == [1.0, 4.0]
    shares = [run[0].goodput.share if run[0].goodput else None for run in runs]
    assert y == pytest.approx([1.0 * (shares[1] or 0.0), 4.0 * (shares[0] or 0.0)]), (
        "of those that came, not of the run"
    )


def test_goodput_of_one_run_is_a_point_a_stretch_of_arrivals() -> None:
    figures, exchanges = open_run(3.0, requests=100)
    x, y = lines(goodput([Run.of(figures, exchanges)]))["a stretch of the run"]
    dues = sorted(each.due_s or 0.0 for each in exchanges)
    width = (dues[-1] - dues[0]) / len(x)
    assert sum(x) * width == pytest.approx(100)
    assert sum(y) * width == pytest.approx(sum(each.met is True for each in exchanges))
    assert all(met <= offered for met, offered in zip(y, x, strict=True))


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (together(), "No request has a target"),
        (nothing(), "No request has a target"),
        (all_refused(), "None of 20 requests met its targets"),
        (open_run(1.0, requests=8), "8 requests are too few"),
    ],
)
def test_goodput_against_rate_is_left_out_where_it_would_not_be_honest(run: Made, words: str) -> None:
    plot = goodput([Run.of(*run)])
    assert plot.figure is None
    assert words in plot.caption


def test_a_load_that_did_not_come_at_a_rate_has_no_goodput_against_it() -> None:
    plot = goodput([run_of(*(answered(0.0, 1.0, ttft_target_s=2.0) for _ in range(50)), offered_per_s=None)])
    assert plot.figure is None
    assert "did not come at a rate" in plot.caption
