"""The plots of a report but for the timeline: how waits are distributed, rates over time, goodput against rate.

Knows what to draw of a run, and in which words to say that there is nothing to draw. Knows neither the page nor how
figures are computed.
"""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from loadgen.exchange import Exchange
from loadgen.report_runs import Floats, Run, array, due_s, first_text_s, gaps_s, over_s
from loadgen.report_style import BLUE, FAINT, GREEN, LATE, ORANGE, SERIES, WAITING, figure, logarithmic, ordered
from loadgen.tables import rate, short_span
from protocol.timeline import percent

CURVE_POINTS, TAIL_POINTS = 1000, 500
"""Of a distribution with more samples: evenly over all ranks, and again over the highest hundredth."""
LEAST_GAP_MS = 0.1
"""Where gaps below are drawn: these chunks were in one read of the socket."""
SPREAD = 20.0
"""A wait's axis is logarithmic when the 99th percentile is more than so many times the median."""
FAR = 4.0
"""A target so many times beyond the longest wait is told and not drawn."""
WINDOWS = 40
GONE_WRONG = ("refused", "failed", "dropped")
LEAST_WINDOWS, LEAST_IN_A_WINDOW = 4, 5


class Plot(NamedTuple):
    title: str
    caption: str
    """What to know to read it, or, without a figure, why there is none."""
    figure: go.Figure | None
    height: int = 360


class Curve(NamedTuple):
    name: str
    samples: Floats
    """In the unit of the axis, in any order."""
    colour: str
    dash: str = "solid"


# -- distributions


def first_texts(runs: Sequence[Run]) -> Plot:
    title = "How long people waited for the first text"
    longest_ms = max((each.ttft_ms or 0.0 for run in runs for each in run.exchanges), default=0.0)
    unit, per_s = ("ms", 1e3) if longest_ms < 1e3 else ("s", 1.0)
    curves = _curves(runs, lambda exchanges: array(each.ttft_ms for each in exchanges) * per_s / 1e3)
    if not any(len(curve.samples) for curve in curves):
        return Plot(title, "No request got any text, so there is no wait for it to show.", None)
    captions = ["The share of requests whose first text had come after so long, counted from when they were due."]
    if len(runs) == 1:
        own = _curves(runs, lambda exchanges: array(each.server_ttft_ms for each in exchanges) * per_s / 1e3)
        theirs = [
            Curve(f"{curve.name}, server says", curve.samples, curve.colour if own[1:] else ORANGE, "dash")
            for curve in own
            if len(curve.samples)
        ]
        if theirs:
            curves = [curve._replace(name=f"{curve.name}, client's clock") for curve in curves] + theirs
            captions.append("Dashed: what the server says of itself, from receiving the request.")
        without = sum(not each.texts_s for each in runs[0].exchanges)
        if without:
            captions.append(f"{without:,} of {len(runs[0].exchanges):,} requests got no text and are in no curve.")
    targets = [target * per_s for target in _targets(runs, lambda each: each.ttft_target_s)]
    made, more = _distribution(curves, targets, f"first text after, {unit}", 0.0)
    return Plot(title, " ".join([*captions, *more]), made)


def gaps(runs: Sequence[Run]) -> Plot:
    title = "How long people waited between two pieces of text"
    curves = _curves(runs, lambda exchanges: gaps_s(exchanges) * 1e3)
    if not any(len(curve.samples) for curve in curves):
        return Plot(title, "No request got two pieces of text, so there is no gap between them to show.", None)
    caption = "The share of all gaps between chunks that were no longer than this, by the client's clock."
    made, more = _distribution(
        curves, [target * 1e3 for target in _targets(runs, lambda each: each.itl_target_s)], "gap, ms", LEAST_GAP_MS
    )
    return Plot(title, " ".join([caption, *more]), made)


def _curves(runs: Sequence[Run], of: Callable[[Sequence[Exchange]], Floats]) -> list[Curve]:
    """One a run of several; of one run one a group, as far as there are colours for them."""
    if len(runs) > 1:
        colours = ordered(len(runs))
        return [
            Curve(rate(run.report.offered_per_s), of(run.exchanges), colour)
            for run, colour in zip(runs, colours, strict=True)
        ]
    groups = runs[0].groups
    if 1 < len(groups) <= len(SERIES):
        return [
            Curve(escape(name) or "others", of(exchanges), colour)
            for (name, exchanges), colour in zip(groups.items(), SERIES, strict=False)
        ]
    return [Curve("all requests", of(runs[0].exchanges), BLUE)]


def _targets(runs: Sequence[Run], of: Callable[[Exchange], float]) -> list[float]:
    return sorted({target for run in runs for target in run.targets_s(of)})


def _distribution(
    curves: Sequence[Curve], targets: Sequence[float], axis: str, least: float
) -> tuple[go.Figure, list[str]]:
    """The curves with a line at each target, and what the caption has to tell of them.

    `least` above 0: the axis is logarithmic, and what is below is drawn there. 0: it is linear while that can be read.
    """
    together = np.concatenate([curve.samples for curve in curves])
    high, told = float(together.max()), []
    unit = axis.rpartition(" ")[2]
    spread = least > 0 or float(np.percentile(together, 99)) > SPREAD * max(float(np.median(together)), 1e-9)
    low = max(least or 1e-3, min(float(together.min()), high / 10))
    drawn = 0
    if spread and (below := int((together < low).sum())):
        told.append(f"{below:,} shorter than {low:g} {unit} are drawn there.")
    made = figure()
    for curve in curves:
        if len(curve.samples):
            x, y = ecdf(np.maximum(curve.samples, low) if spread else curve.samples)
            drawn += min(len(x), len(curve.samples))
            line = {"color": curve.colour, "width": 2, "dash": curve.dash, "shape": "hv"}
            told_at = f"%{{y:.1f}} % within %{{x:.4~g}} {unit}<extra>{curve.name}</extra>"
            made.add_trace(go.Scatter(x=x, y=y, name=curve.name, mode="lines", line=line, hovertemplate=told_at))
    for target in targets:
        words = f"target {short_span(target / 1e3 if unit == 'ms' else target)}"
        if target > FAR * high and not spread:
            told.append(f"The {words} is far to the right of all.")
            continue
        high = max(high, target)
        line = {"color": LATE, "width": 2, "dash": "dot"}
        made.add_trace(
            go.Scatter(x=[target, target], y=[0, 100], name=words, mode="lines", line=line, hoverinfo="name")
        )
    if drawn < len(together):
        told.append(
            f"Drawn are {drawn:,} of {len(together):,} samples, evenly by rank: no curve is off by a thousandth."
        )
    x_axis = logarithmic(low, high * 1.1) if spread else {"range": [0, high * 1.04]}
    made.update_xaxes(title_text=axis, **x_axis)
    made.update_yaxes(title_text="share, %", range=[0, 101], tickvals=[0, 25, 50, 75, 90, 100])
    return made, told


def ecdf(samples: Floats) -> tuple[Floats, Floats]:
    """The empirical distribution, samples against per cent of them that are no larger.

    Of many samples it leaves out most, and none that would move the curve by a thousandth.
    """
    ordered = np.sort(samples)
    count = len(ordered)
    ranks = np.arange(count)
    if count > CURVE_POINTS + TAIL_POINTS:
        body = np.linspace(0, count - 1, CURVE_POINTS)
        tail = np.linspace(count * 0.99, count - 1, TAIL_POINTS)
        ranks = np.unique(np.concatenate([body, tail]).round().astype(np.int64))
    x, y = ordered[ranks], (ranks + 1) * 100.0 / count
    return np.concatenate([x[:1], x]), np.concatenate([[0.0], y])


# -- rates


def rates(run: Run) -> Plot:
    title = "What came in, what came out, and how many were there"
    if run.length_s <= 0:
        return Plot(title, "No request was under way for any time, so there are no rates to show.", None)
    window_s = round_step(run.length_s / WINDOWS)
    edges = np.arange(math.ceil(run.length_s / window_s) + 1) * window_s
    # What is over sooner than the eye can part would leave the lower panel empty.
    step_s = run.length_s / 600
    lasting = any(over_s(each) - due_s(each) > step_s for each in run.exchanges)
    made = figure(rows=2 if lasting else 1)
    targets = run.report.goodput is not None
    for name, times, colour, dash in (
        ("arrivals", run.times(due_s), FAINT, "dot"),
        ("finished", run.times(lambda each: each.ended_s if each.outcome == "finished" else None), BLUE, "solid"),
        (
            "refused or failed",
            run.times(lambda each: over_s(each) if each.outcome in GONE_WRONG else None),
            LATE,
            "dashdot",
        ),
        ("met targets", run.times(lambda each: over_s(each) if each.met else None) if targets else None, GREEN, "dash"),
    ):
        if times is not None and len(times):
            counted = np.histogram(times, edges)[0] / window_s
            line = {"color": colour, "width": 2, "dash": dash, "shape": "hv"}
            told = f"%{{y:.3~g}} {name} a second<extra></extra>"
            y = np.append(counted, counted[-1])
            made.add_trace(
                go.Scatter(x=edges, y=y, name=name, mode="lines", line=line, hovertemplate=told), row=1, col=1
            )
    caption = f"Above: how many a second, in windows of {short_span(window_s)}. "
    if lasting:
        _under_way(made, run, np.linspace(0, run.length_s, 601))
        caption += "Below: how many were under way, and doing what."
    else:
        caption = caption.replace("Above: how", "How") + "All were over at once, so none is seen under way."
    made.update_xaxes(range=[0, run.length_s])
    made.update_xaxes(title_text="since the first was due, s", row=2 if lasting else 1, col=1)
    made.update_yaxes(title_text="requests/s", rangemode="tozero", row=1, col=1)
    return Plot(title, caption, made, 460 if lasting else 300)


def _under_way(made: go.Figure, run: Run, at_s: Floats) -> None:
    """In the lower panel, one upon the other."""

    def gone_by(times: Floats) -> Floats:
        return np.searchsorted(times, at_s, side="right").astype(np.float64)

    due, over = gone_by(run.times(due_s)), gone_by(run.times(over_s))
    begun = gone_by(run.times(first_text_s))
    answered = gone_by(run.times(lambda each: over_s(each) if each.texts_s else None))
    for name, there, colour in (
        ("being answered", begun - answered, BLUE),
        ("waiting for first text", (due - over) - (begun - answered), WAITING),
    ):
        made.add_trace(
            go.Scatter(
                x=at_s,
                y=there,
                name=name,
                mode="lines",
                stackgroup="there",
                line={"width": 0, "color": colour, "shape": "hv"},
                fillcolor=colour,
                hovertemplate=f"%{{y}} {name}<extra></extra>",
            ),
            row=2,
            col=1,
        )
    made.update_yaxes(title_text="requests", rangemode="tozero", row=2, col=1)


def round_step(about: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(about))
    return next((power * step for step in (1, 2, 5) if power * step >= about), power * 10)


# -- goodput against rate


def goodput(runs: Sequence[Run]) -> Plot:
    title = "How much of what is asked is answered in time"
    if all(run.report.goodput is None for run in runs):
        return Plot(title, "No request has a target, so none met or missed it; --targets sets them.", None)
    return _of_sweep(title, runs) if len(runs) > 1 else _of_windows(title, runs[0])


def _of_sweep(title: str, runs: Sequence[Run]) -> Plot:
    points = [
        (run.report.offered_per_s, run.report.offered_per_s * each.share, each.share)
        for run in runs
        if (each := run.report.goodput) is not None and each.share is not None and run.report.offered_per_s is not None
    ]
    if not points:
        return Plot(title, "The runs were not offered at a rate, so there is none to hold their goodput against.", None)
    points.sort()
    made = figure()
    _all_met(made, max(offered for offered, _, _ in points))
    shares = [percent(share) for _, _, share in points]
    made.add_trace(
        go.Scatter(
            x=[offered for offered, _, _ in points],
            y=[per_s for _, per_s, _ in points],
            name="goodput",
            mode="lines+markers+text",
            text=shares,
            textposition="top center",
            cliponaxis=False,
            line={"color": GREEN, "width": 2},
            marker={"size": 9},
            hovertemplate="%{x:.4~g}/s offered: %{y:.3~g}/s met, %{text}<extra></extra>",
        )
    )
    _rate_axes(made)
    caption = (
        "A point a run: how many requests came a second, and how many of those met their targets. On the dotted line "
        "all did."
    )
    return Plot(title, caption, made)


def _of_windows(title: str, run: Run) -> Plot:
    """Each stretch of the run as if it were a run of its own: what arrived in it, and how much of that met targets."""
    if run.report.offered_per_s is None:
        sentence = "Requests did not come at a rate of their own, so there is none to hold the goodput against."
        return Plot(title, f"{sentence} A sweep (--rates) measures it at several.", None)
    arrivals = run.times(due_s)
    spread_s = float(arrivals[-1]) if len(arrivals) else 0.0
    windows = min(20, len(arrivals) // LEAST_IN_A_WINDOW)
    if windows < LEAST_WINDOWS or spread_s <= 0:
        least = LEAST_WINDOWS * LEAST_IN_A_WINDOW
        sentence = (
            f"{len(arrivals):,} requests are too few to tell how goodput depends on their rate ({least} are not)."
        )
        return Plot(title, f"{sentence} A sweep (--rates) measures it at several.", None)
    if not any(each.met for each in run.exchanges):
        return Plot(title, f"None of {len(arrivals):,} requests met its targets: there is no goodput to show.", None)
    edges = np.linspace(0, spread_s, windows + 1)
    width_s = spread_s / windows
    offered = np.histogram(arrivals, edges)[0] / width_s
    met = np.histogram(run.times(lambda each: due_s(each) if each.met else None), edges)[0] / width_s
    made = figure()
    _all_met(made, float(offered.max()))
    made.add_trace(
        go.Scatter(
            x=offered,
            y=met,
            name="a stretch of the run",
            mode="markers",
            marker={"size": 10, "color": GREEN, "opacity": 0.8},
            cliponaxis=False,
            customdata=edges[:-1],
            hovertemplate="from %{customdata:.1f} s: %{x:.3~g}/s came, %{y:.3~g}/s of them met<extra></extra>",
        )
    )
    _rate_axes(made)
    caption = (
        f"A point for each {width_s:.3g} s of this run: how many arrived a second, and how many of those met their "
        "targets. On the dotted line all did. Stretches bear on each other: a sweep (--rates) is the cleaner measure."
    )
    return Plot(title, caption, made)


def _all_met(made: go.Figure, highest: float) -> None:
    line = {"color": FAINT, "width": 1, "dash": "dot"}
    made.add_trace(
        go.Scatter(x=[0, highest], y=[0, highest], name="all met", mode="lines", line=line, hoverinfo="skip")
    )


def _rate_axes(made: go.Figure) -> None:
    both: dict[str, Any] = {"rangemode": "tozero"}
    made.update_xaxes(title_text="offered, requests/s", **both)
    made.update_yaxes(title_text="met their targets, requests/s", **both)
