"""A `Report` as people read it: a table with the client's clock beside the server's word, and a few sentences.

Knows how to lay out figures and which of them deserve a sentence. Computes none of them. The HTML report takes its rows
and sentences from here.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadgen.chat_wire import harmless_line
from loadgen.comparison import span
from loadgen.distributions import Distribution
from loadgen.figures import Report
from protocol.timeline import percent

LAG_WORTH_SAYING_MS = 20.0
OFF_WORTH_SAYING = 1
"""Tokens: a server may count one more for the beginning of a prompt."""


def print_report(report: Report, console: Console) -> None:
    """Print the tables and the sentences under them. What the server said is no markup, and nothing in it
    moves the terminal."""
    say = _sayer(console)
    say(heading(report))
    console.print(_table(report), highlight=False)
    if report.groups:
        console.print(_group_table(report), highlight=False)
    for sentence in sentences(report):
        say(sentence)


def print_sweep(reports: Sequence[Report], console: Console) -> None:
    """Print a row for each rate. What holds for all of them is taken from the first."""
    say = _sayer(console)
    say(heading(reports[0], sweep=True))
    console.print(_grid(SWEEP_COLUMNS, sweep_rows(reports)), highlight=False)
    if targets := targets_in_words(reports):
        say(f"Met: {targets}.")
    for report in reports:
        if wrong := _went_wrong(report):
            say(f"At {rate(report.offered_per_s)}: {' '.join(wrong)}")
    for sentence in [said for report in reports for said in _first_message(report)][:1]:
        say(sentence)
    say(omission(reports))


def _sayer(console: Console) -> Callable[[str], None]:
    return lambda sentence: console.print(harmless_line(sentence), markup=False, highlight=False, soft_wrap=True)


def heading(report: Report, *, sweep: bool = False) -> str:
    """What was asked for, in a line. `sweep`: the rate differs from run to run, and is not told."""
    load = report.load
    to = "actors alone, every token made up at once" if load.null_executor else f"{load.model} at {load.url}"
    if report.scenario is not None:
        arrivals = "" if sweep else f", arrivals {report.arrivals}"
        return f"{report.scenario}{arrivals} to {to}: {report.requests.planned:,} requests, seed {load.seed}"
    prompt = "one prompt for all" if load.prompt_tokens is None else f"prompts of ~{load.prompt_tokens} tokens"
    length = "" if load.ignore_eos else "at most "
    return (
        f"{load.sockets} sockets x {load.requests_per_socket} requests to {to}: "
        f"{prompt}, {length}{load.max_output_tokens} output tokens, seed {load.seed}"
    )


# -- the tables


class Row(NamedTuple):
    """One kind of wait, by both clocks; None where one of them cannot know it. Milliseconds."""

    name: str
    client: Distribution | None
    server: Distribution | None = None


def figure_rows(report: Report) -> list[Row]:
    """In the order in which they happen. The three that every run is about are always there."""
    client, server = report.client, report.server
    rows = [
        Row("connect", client.connect_ms),
        Row("sent late", client.late_ms),
        Row("first byte", client.ttfb_ms),
        Row("queue", None, server.queue_ms),
        Row("prefill", None, server.prefill_ms),
        Row("first text (TTFT)", client.ttft_ms, server.ttft_ms),
        Row("gap of chunks", client.gap_ms),
        Row("gap a token, mean", client.token_gap_ms),
        Row("gap, p99 an answer", None, server.itl_p99_ms),
        Row("whole request", client.request_ms),
    ]
    always = ("first text (TTFT)", "gap of chunks", "whole request")
    return [row for row in rows if row.name in always or row.client or row.server]


def samples(row: Row) -> str:
    """The client's, or else the server's; both where they differ."""
    client, server = row.client, row.server
    if client and server and client.count != server.count:
        return f"{client.count:,}/{server.count:,}"  # not every answer had the end at which a server tells
    figures = client or server
    return f"{figures.count:,}" if figures else "0"


def server_spoke(rows: Iterable[Row]) -> bool:
    return any(row.server for row in rows)


def _table(report: Report) -> Table:
    rows = figure_rows(report)
    both = server_spoke(rows)
    columns = ["ms", "client:\np50", "p90", "p99", "worst"] + ["server:\np50", "p90", "p99", "worst"] * both + ["n"]
    return _grid(
        columns,
        [
            [
                row.name,
                *_four(row.client),
                *(_four(row.server) if both else ()),
                samples(row),
            ]
            for row in rows
        ],
    )


def _four(figures: Distribution | None) -> list[str]:
    return (
        [milliseconds(value) for value in (figures.p50, figures.p90, figures.p99, figures.worst)]
        if figures
        else ([""] * 4)
    )


GROUP_COLUMNS = ("group", "requests", "met", "TTFT p50", "p90", "p99", "worst", "gap p50", "p90", "p99", "worst")


def group_rows(report: Report) -> list[list[str]]:
    """As `GROUP_COLUMNS`, milliseconds."""
    return [
        [
            each.group or "-",
            f"{each.requests:,}",
            "-" if each.met_share is None else percent(each.met_share),
            *_four(each.ttft_ms),
            *_four(each.gap_ms),
        ]
        for each in report.groups
    ]


def _group_table(report: Report) -> Table:
    columns = [name.replace(" ", ":\n") if " " in name else name for name in GROUP_COLUMNS]
    return _grid(columns, group_rows(report))


SWEEP_COLUMNS = (
    "offered\n/s",
    "requests",
    "goodput\n/s",
    "met",
    "TTFT ms:\np50",
    "p99",
    "gap ms:\np50",
    "p99",
    "tokens\n/s",
    "refused",
)


def sweep_rows(reports: Iterable[Report]) -> list[list[str]]:
    """As `SWEEP_COLUMNS`."""
    return [
        [
            "-" if report.offered_per_s is None else f"{report.offered_per_s:,.3g}",
            f"{report.requests.planned:,}",
            "-" if report.goodput is None or report.goodput.per_s is None else f"{report.goodput.per_s:,.3g}",
            "-" if report.goodput is None or report.goodput.share is None else percent(report.goodput.share),
            *(
                milliseconds(value)
                for figures in (report.client.ttft_ms, report.client.gap_ms)
                for value in ((figures.p50, figures.p99) if figures else (None, None))
            ),
            "-" if report.tokens.output_per_s is None else f"{report.tokens.output_per_s:,.0f}",
            f"{report.requests.refused:,}",
        ]
        for report in reports
    ]


def _grid(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """The first column on the left and folded where it must be, the others on the right and never cut."""
    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(
            name, justify="right" if number else "left", no_wrap=bool(number), overflow="fold", vertical="bottom"
        )
    for row in rows:
        table.add_row(*(escape(harmless_line(cell)) for cell in row))
    return table


def milliseconds(value: float | None) -> str:
    """At most six characters, whatever it is: `0.42`, `8.31`, `31.2`, `310`, `99,999`, `213 s`."""
    if value is None:
        return "-"
    for below, form in ((9.995, "{:.2f}"), (99.95, "{:.1f}"), (99_999.5, "{:,.0f}")):
        if value < below:
            return form.format(value)
    return f"{value / 1e3:,.0f} s"


def rate(per_s: float | None) -> str:
    return "-" if per_s is None else f"{per_s:,.3g}/s"


# -- the sentences


def sentences(report: Report) -> list[str]:
    """What the table does not say: goodput, throughput, how requests ended, what went wrong and what to beware of."""
    tokens, requests = report.tokens, report.requests
    lines = []
    if report.goodput is not None:
        lines.append(goodput(report))
    if report.wall_s is not None and tokens.output_per_s:
        lines.append(
            f"{tokens.output_per_s:,.1f} tokens/s: {tokens.output:,} tokens out in {report.wall_s:,.2f} s; "
            f"{tokens.input:,} in, {tokens.cached_input:,} of them from the server's cache."
        )
    without_end = requests.unfinished + requests.left - requests.never_asked + requests.dropped
    if without_end and report.client.ttft_ms is not None:
        lines.append(f"Tokens out are counted at the end of an answer: not those of {without_end:,} that had none.")
    if tokens.output_from_chunks:
        lines.append(f"{tokens.output_from_chunks:,} of the tokens out are chunks: the server did not count tokens.")
    lines.append(f"{requests.finished:,} of {requests.planned:,} requests finished{_by(requests.by_finish_reason)}.")
    lines += [*_went_wrong(report), *_first_message(report)]
    if report.excluded_warm_up:
        lines.append(f"In no figure: {report.excluded_warm_up:,} of the warm-up.")
    if report.slow_readers:
        lines.append(f"In no gap: {report.slow_readers:,} of slow readers, whose own doing those are.")
    if report.idle_sockets:
        lines.append(f"Open and silent beside them: {report.idle_sockets:,} sockets.")
    if report.prompt_tokens_off is not None and report.prompt_tokens_off > OFF_WORTH_SAYING:
        lines.append(f"Prompts were up to {report.prompt_tokens_off:,} tokens off the length that was asked for.")
    lines.append(omission([report]))
    if report.client_lag_worst_ms >= LAG_WORTH_SAYING_MS:
        lines.append(
            f"This client was late by up to {report.client_lag_worst_ms:,.0f} ms itself: "
            "waits of that size may be its own."
        )
    return lines


def goodput(report: Report) -> str:
    """For example `47 of 60 met ttft 1 s, itl 100 ms (78%): 0.9/s.`; `report.goodput` is there."""
    counted = report.goodput
    assert counted is not None
    said = f"{counted.met:,} of {counted.met + counted.missed:,} met {targets_in_words([report])}"
    if counted.share is not None:
        said += f" ({percent(counted.share)})"
    if counted.per_s is not None:
        said += f": {rate(counted.per_s)}"
    if counted.neither:
        said += f"; {counted.neither:,} did neither, left or cut off before it could be told"
    return f"{said}."


def targets_in_words(reports: Iterable[Report]) -> str:
    """For example `ttft 1 s, itl 100 ms`, or `ttft 1 s to 4 s` where they differ; empty where there are none."""
    asked = [request for report in reports for request in report.per_request]
    said = []
    for name, values_ms in (
        ("ttft", {request.ttft_target_ms for request in asked if request.ttft_target_ms is not None}),
        ("itl", {request.itl_target_ms for request in asked if request.itl_target_ms is not None}),
    ):
        there = sorted(value for value in values_ms if value < math.inf)
        if there:
            low, high = short_span(there[0] / 1e3), short_span(there[-1] / 1e3)
            said.append(f"{name} {low}" if low == high else f"{name} {low} to {high}")
    return ", ".join(said)


def short_span(seconds: float) -> str:
    """A time that somebody chose: `1 s`, `100 ms`, `2.5 s`."""
    return f"{seconds * 1e3:.4g} ms" if seconds < 1 else f"{seconds:.4g} s"


def omission(reports: Sequence[Report]) -> str:
    """Whether waits can have been left out because the client waited as well, and how far it was late itself."""
    if any(report.scenario is None and report.load.requests_per_socket > 1 for report in reports):
        return (
            "Each socket sends its next request when the answer before has ended: a slow server is asked less. "
            "A scenario with arrivals of its own does not wait for it."
        )
    said = "Waits count from when a request was due, not from when it was sent, so that a late server or client hides "
    said += "none (no coordinated omission)"
    late = [report.client.late_ms for report in reports if report.client.late_ms is not None]
    if not late:
        return f"{said}."
    p99, worst = max(each.p99 for each in late), max(each.worst for each in late)
    return f"{said}; this client sent p99 {span(p99 / 1e3)} late, at worst {span(worst / 1e3)}."


def _went_wrong(report: Report) -> list[str]:
    requests, sockets = report.requests, report.sockets
    lines = [
        f"{count:,} {what}{_by(codes)}."
        for count, what, codes in (
            (requests.failed, "failed", requests.failed_by_code),
            (requests.refused, "refused", requests.refused_by_code),
            (requests.dropped, "lost with their socket", requests.dropped_by_code),
            (requests.left - requests.never_asked, "left by their people", {}),
            (requests.never_asked, "never asked, as their people had left", {}),
            (requests.unfinished, "still running at the end", {}),
            (requests.not_sent, "never sent", {}),
        )
        if count
    ]
    if not requests.planned and report.excluded_warm_up:
        lines.append(f"No request is left to count: --warmup-s {report.load.warmup_s:g} is longer than the run.")
    if sockets.not_opened:
        lines.append(f"{sockets.not_opened} of {sockets.asked} sockets did not open{_by(sockets.not_opened_by_code)}.")
    if report.stopped_by == "timeout":
        lines.append(f"Stopped after {report.load.timeout_s:g} s (--timeout-s).")
    elif report.stopped_by == "interrupt":
        lines.append("Stopped by hand.")
    return lines


def _first_message(report: Report) -> list[str]:
    """One sentence, if there is one: the others say the same as a rule."""
    return [f"The first that went wrong: {request.message}" for request in report.per_request if request.message][:1]


def _by(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{count:,} {name}' for name, count in counts.items())})" if counts else ""
