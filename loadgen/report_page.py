"""`rota load --html`: one file with the figures of a run, or of a sweep, and the plots of its requests.

Knows the page: what stands where, that it needs nothing beside it, and that nothing a server said is markup. What is
drawn is in `report_plots` and `report_timeline`, what is said of figures in `tables`.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment
from plotly.offline import get_plotlyjs

from loadgen.command_line import write_file
from loadgen.exchange import Exchange
from loadgen.figures import Report
from loadgen.picture_rows import printable
from loadgen.report_plots import Plot, first_texts, gaps, goodput, rates
from loadgen.report_runs import Run
from loadgen.report_style import IN_THE_DARK
from loadgen.report_timeline import timeline
from loadgen.tables import (
    GROUP_COLUMNS,
    SWEEP_COLUMNS,
    figure_rows,
    group_rows,
    milliseconds,
    rate,
    samples,
    sentences,
    server_spoke,
    short_span,
    sweep_rows,
    targets_in_words,
)

LEGEND_LINE, FEW_ENTRIES = 19, 3


class Drawn(msgspec.Struct, frozen=True):
    """A plot as the template takes it."""

    title: str
    caption: str
    height: int
    legend: int
    """Pixels that its entries take more where each has a line of its own."""
    json: str | None


def write_report(file: Path, runs: Sequence[tuple[Report, Sequence[Exchange]]], title: str) -> None:
    """Write the report of these runs: of one with all that was seen of it, of several held against each other first.

    There is at least one. Raises `Misuse` when `file` cannot be written.
    """
    write_file(file, page(runs, title).encode())


def page(runs: Sequence[tuple[Report, Sequence[Exchange]]], title: str) -> str:
    taken = [Run.of(report, exchanges) for report, exchanges in runs]
    reports = [run.report for run in taken]
    sweep = len(taken) > 1
    template = resources.files("loadgen").joinpath("report.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["printable"] = printable
    return environment.from_string(template).render(
        title=title,
        asked=asked(reports),
        sweep_columns=SWEEP_COLUMNS if sweep else None,
        sweep_rows=sweep_rows(reports),
        plots=[_drawn(plot) for plot in (goodput(taken), first_texts(taken), gaps(taken))] if sweep else [],
        runs=[_section(run, sweep) for run in taken],
        group_columns=GROUP_COLUMNS,
        plotly=get_plotlyjs(),
        dark=_json(IN_THE_DARK),
    )


def asked(reports: Sequence[Report]) -> list[tuple[str, str]]:
    """What was asked for: a name and a value each. What holds for all runs is taken from the first."""
    first = reports[0]
    load = first.load
    said = [
        ("server", "one of its own, every token made up at once" if load.null_executor else load.url),
        ("model", load.model),
        ("API", "chat completions over HTTP" if load.api == "chat" else "Responses over WebSockets"),
        ("scenario", first.scenario or "all sockets at once, each with its requests one after another"),
    ]
    if first.scenario is not None:
        said.append(("arrivals", first.arrivals if len(reports) == 1 else f"{len(reports)} rates, one after another"))
    else:
        said.append(("load", f"{load.sockets:,} sockets x {load.requests_per_socket:,} requests"))
    if len(reports) == 1 and first.offered_per_s is not None:
        said.append(("offered", rate(first.offered_per_s)))
    said += [
        ("requests", " + ".join(f"{report.requests.planned:,}" for report in reports)),
        ("targets", targets_in_words(reports) or "none"),
        (
            "answers",
            f"{'' if load.ignore_eos and first.scenario is None else 'at most '}{load.max_output_tokens:,} tokens",
        ),
    ]
    if load.prompt_tokens is not None:
        said.append(("prompts", f"~{load.prompt_tokens:,} tokens"))
    if first.idle_sockets:
        said.append(("idle sockets", f"{first.idle_sockets:,}"))
    warm_up = f"{load.warmup} requests before" if load.warmup else ""
    if load.warmup_s:
        warm_up = f"the first {short_span(load.warmup_s)}, in no figure"
    return [*said, ("warm-up", warm_up or "none"), ("seed", str(load.seed)), ("time limit", short_span(load.timeout_s))]


def _section(run: Run, sweep: bool) -> dict[str, Any]:
    """All there is to tell of one run."""
    report = run.report
    met = report.goodput
    plots = [timeline(run), rates(run)]
    rows = figure_rows(report)
    return {
        "name": rate(report.offered_per_s),
        "share": "" if met is None else f"{met.met:,} of {met.met + met.missed:,} met their targets",
        "sentences": sentences(report),
        "both": server_spoke(rows),
        "rows": [(row.name, _cells(row.client), _cells(row.server), samples(row)) for row in rows],
        "groups": group_rows(report),
        "plots": [_drawn(plot) for plot in (plots if sweep else [*_own(run), *plots, goodput([run])])],
    }


def _own(run: Run) -> list[Plot]:
    return [first_texts([run]), gaps([run])]


def _cells(figures: Any) -> list[str]:
    """p50, p90, p99 and worst."""
    if figures is None:
        return ["-"] * 4
    return [milliseconds(value) for value in (figures.p50, figures.p90, figures.p99, figures.worst)]


def _drawn(plot: Plot) -> Drawn:
    if plot.figure is None:
        return Drawn(plot.title, plot.caption, plot.height, 0, None)
    legend = LEGEND_LINE * max(0, len(plot.figure.data) - FEW_ENTRIES)
    return Drawn(plot.title, plot.caption, plot.height, legend, _json_text(plot.figure.to_json()))


def _json(value: object) -> str:
    return _json_text(msgspec.json.encode(value).decode())


def _json_text(text: str) -> str:
    """JSON that can stand in a `script` element: nothing in it ends the element."""
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
