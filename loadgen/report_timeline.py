"""The timeline of a report: a bar a request, from when it was due to its end, in the order of arrival.

Knows which stretches of a request are which, and how to keep them few enough to see and to load. Knows no page.
"""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import plotly.graph_objects as go

from loadgen.comparison import span
from loadgen.exchange import Exchange
from loadgen.report_plots import Plot, round_step
from loadgen.report_runs import Floats, Run, due_s, over_s
from loadgen.report_style import BLUE, FAINT, INK, LATE, PURPLE, WAITING, figure

MOST_ROWS = 600
"""More would lie upon each other: of more requests every so many-th is drawn."""
MOST_NAMED = 30
"""Rows up to which there is room for a name at each."""
MOST_LATE_GAPS = 30_000
NAME_LETTERS = 12
MARKS = (
    ("refused", "x", INK, ("refused",)),
    ("left by its person", "triangle-left", PURPLE, ("left",)),
    ("failed or lost", "diamond", INK, ("failed", "dropped")),
    ("cut off, or never sent", "circle-open", FAINT, ("unfinished", "not_sent")),
)

Stretch = tuple[float, float, int]
"""Seconds from and to, and the row."""


def timeline(run: Run) -> Plot:
    title = "What each request went through"
    if not run.exchanges:
        return Plot(title, "No request came to be due, so there is nothing to show of any.", None)
    every = -(-len(run.exchanges) // MOST_ROWS)
    rows = run.exchanges[::every]
    made = figure()
    width = max(1.2, min(12.0, 420 / len(rows)))
    waits, late, answers = _stretches(run, rows)
    late_gaps = _late_gaps(run, rows)
    for name, stretches, colour in (
        ("waits for its first text", waits, WAITING),
        ("is being answered", answers, BLUE),
        ("waits longer than its target", [*late, *late_gaps], LATE),
    ):
        if stretches:
            x, y = _broken_line(stretches)
            line = {"color": colour, "width": width}
            made.add_trace(go.Scatter(x=x, y=y, name=name, mode="lines", line=line, hoverinfo="skip"))
    for name, symbol, colour, outcomes in MARKS:
        marked = [(number, each) for number, each in enumerate(rows, 1) if each.outcome in outcomes]
        if marked:
            made.add_trace(
                go.Scatter(
                    x=[over_s(each) - run.zero_s for _, each in marked],
                    y=[number for number, _ in marked],
                    name=name,
                    mode="markers",
                    marker={"symbol": symbol, "size": max(6.0, min(9.0, width)), "color": colour},
                    hoverinfo="skip",
                    cliponaxis=False,
                )
            )
    _hover(made, run, rows, every)
    height = 110 + (22 * len(rows) if len(rows) <= MOST_NAMED else max(420, min(760, 3 * len(rows))))
    made.update_layout(hovermode="y")
    made.update_xaxes(title_text="since the first was due, s", range=[0, run.length_s * 1.01 or 1.0])
    made.update_yaxes(title_text="requests, by arrival", range=[len(rows) + 0.7, 0.3], showgrid=False)
    if len(rows) <= MOST_NAMED and any(each.person for each in rows):
        names = [escape(_short(each.person or str(number))) for number, each in enumerate(rows, 1)]
        made.update_yaxes(tickvals=list(range(1, len(rows) + 1)), ticktext=names, title_text="")
    elif every > 1:
        step = round(round_step(len(run.exchanges) / 8))
        shown = range(step, len(run.exchanges) + 1, step)
        made.update_yaxes(
            tickvals=[(number - 1) / every + 1 for number in shown], ticktext=[f"{number:,}" for number in shown]
        )
    caption = ["A bar from when a request was due to its end; orange marks what was later than its target."]
    if every > 1:
        caption.append(f"Drawn is one request in {every} of {len(run.exchanges):,}, evenly by arrival.")
    never = run.report.requests.planned - len(run.exchanges)
    if never > 0:
        caption.append(f"{never:,} more never came to be due.")
    return Plot(title, " ".join(caption), made, height)


def _stretches(run: Run, rows: Sequence[Exchange]) -> tuple[list[Stretch], list[Stretch], list[Stretch]]:
    """Waits for first texts within their target, what they were longer, and answers."""
    waits, late, answers = [], [], []
    for number, each in enumerate(rows, 1):
        from_s, end_s = due_s(each) - run.zero_s, over_s(each) - run.zero_s
        first_s = each.texts_s[0] - run.zero_s if each.texts_s else end_s
        target_s = min(first_s, from_s + each.ttft_target_s)
        waits.append((from_s, target_s, number))
        if first_s > target_s:
            late.append((target_s, first_s, number))
        if each.texts_s:
            answers.append((first_s, end_s, number))
    return waits, late, answers


def _late_gaps(run: Run, rows: Sequence[Exchange]) -> list[Stretch]:
    """Gaps above their target, those closer than can be seen made one."""
    least_s = run.length_s / 600
    found = [_late_of(each, run.zero_s) for each in rows]
    closest_s = least_s / 2
    while True:
        merged = [_merged(spans, closest_s) for spans in found]
        if sum(map(len, merged)) <= MOST_LATE_GAPS:
            break
        closest_s *= 2
    return [
        (float(low), float(max(high, low + least_s)), number)
        for number, spans in enumerate(merged, 1)
        for low, high in spans
    ]


def _late_of(exchange: Exchange, zero_s: float) -> Floats:
    """[gaps, 2], from and to."""
    if exchange.slow_reader or len(exchange.texts_s) < 2:
        return np.empty((0, 2))
    times = np.array(exchange.texts_s) - zero_s
    is_late = np.diff(times) > exchange.itl_target_s
    return np.stack([times[:-1][is_late], times[1:][is_late]], axis=1)


def _merged(spans: Floats, closest_s: float) -> Floats:
    if len(spans) < 2:
        return spans
    apart = spans[1:, 0] - spans[:-1, 1] > closest_s
    return np.stack([spans[np.r_[True, apart], 0], spans[np.r_[apart, True], 1]], axis=1)


def _broken_line(stretches: Iterable[Stretch]) -> tuple[Floats, Floats]:
    """One line for all: it breaks where a number is missing."""
    x = [value for low, high, _ in stretches for value in (low, high, np.nan)]
    y = [value for _, _, number in stretches for value in (number, number, np.nan)]
    return np.array(x), np.array(y)


def _hover(made: go.Figure, run: Run, rows: Sequence[Exchange], every: int) -> None:
    """What a pointer anywhere in a row is told."""
    made.add_trace(
        go.Scatter(
            x=[due_s(each) - run.zero_s for each in rows],
            y=list(range(1, len(rows) + 1)),
            mode="markers",
            marker={"opacity": 0},
            showlegend=False,
            text=[_told(each, number * every + 1, run.zero_s) for number, each in enumerate(rows)],
            hovertemplate="%{text}<extra></extra>",
        )
    )


def _told(exchange: Exchange, number: int, zero_s: float) -> str:
    said = [f"{escape(exchange.person) or 'request'}, {number:,}. to arrive, due at {due_s(exchange) - zero_s:.2f} s"]
    first_ms = exchange.ttft_ms
    said.append("no text" if first_ms is None else f"first text after {span(first_ms / 1e3)}")
    if len(exchange.texts_s) > 1:
        said.append(f"{len(exchange.texts_s):,} pieces, longest gap {span(float(np.diff(exchange.texts_s).max()))}")
    ended = exchange.outcome.replace("_", " ")
    why = exchange.code or exchange.finish_reason
    said.append(f"{ended} ({escape(why)})" if why else ended)
    if exchange.has_targets and exchange.met is not None:
        said.append("met its targets" if exchange.met else "missed its targets")
    return "<br>".join(said)


def _short(name: str) -> str:
    """Without its middle, for its end is what tells it from others."""
    return name if len(name) <= NAME_LETTERS else f"{name[: NAME_LETTERS - 5]}…{name[-4:]}"
