"""A `Report` as people read it: one table and a few sentences on stdout.

Knows how to draw and which figures deserve a warning. Computes none of them.
"""

from rich.console import Console
from rich.table import Table

from loadgen.figures import Distribution, Report

LAG_WORTH_SAYING_MS = 20.0


def print_report(report: Report, console: Console) -> None:
    """Print the table and the sentences under it. What the server said is printed as it came, never as markup."""

    def say(sentence: str) -> None:
        console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    say(heading(report))
    console.print(_table(report), highlight=False)
    for sentence in sentences(report):
        say(sentence)


def heading(report: Report) -> str:
    """What was asked for, in a line."""
    load = report.load
    prompt = "one prompt for all" if load.prompt_tokens is None else f"prompts of ~{load.prompt_tokens} tokens"
    length = "" if load.ignore_eos else "at most "
    to = "actors alone, every token made up at once" if load.null_executor else f"{load.model} at {load.url}"
    return (
        f"{load.sockets} sockets x {load.requests_per_socket} requests to {to}: "
        f"{prompt}, {length}{load.max_output_tokens} output tokens, seed {load.seed}"
    )


def _table(report: Report) -> Table:
    table = Table("milliseconds", title=None)
    for name in ("n", "p50", "p90", "p99", "worst"):
        table.add_column(name, justify="right")

    def row(name: str, figures: Distribution | None) -> None:
        if figures is None:
            table.add_row(name, "0", "-", "-", "-", "-")
        else:
            of = (figures.p50, figures.p90, figures.p99, figures.worst)
            table.add_row(name, f"{figures.count:,}", *(f"{value:,.1f}" for value in of))

    row("time to first token", report.client.ttft_ms)
    row("  server says: in the queue", report.server.queue_ms)
    row("  server says: prefill", report.server.prefill_ms)
    row("  server says: first token", report.server.ttft_ms)
    row("gap between chunks", report.client.gap_ms)
    row("gap per token (mean)", report.client.token_gap_ms)
    row("whole request", report.client.request_ms)
    return table


def sentences(report: Report) -> list[str]:
    """What the table does not say: tokens per second, how requests ended, what went wrong and what to beware of."""
    tokens, requests, sockets = report.tokens, report.requests, report.sockets
    lines = []
    if report.wall_s is not None and tokens.output_per_s is not None:
        lines.append(
            f"{tokens.output_per_s:,.1f} tokens/s: {tokens.output:,} tokens out in {report.wall_s:,.2f} s; "
            f"{tokens.input:,} in, {tokens.cached_input:,} of them from the server's cache."
        )
    if tokens.output_from_chunks:
        lines.append(f"{tokens.output_from_chunks:,} of the tokens out are chunks: the server did not count tokens.")
    lines.append(f"{requests.finished} of {requests.planned} requests finished{_by(requests.by_finish_reason)}.")
    for count, what, codes in (
        (requests.failed, "failed", requests.failed_by_code),
        (requests.refused, "refused", requests.refused_by_code),
        (requests.dropped, "lost with their socket", requests.dropped_by_code),
        (requests.unfinished, "still running at the end", {}),
        (requests.not_sent, "never sent", {}),
    ):
        if count:
            lines.append(f"{count} {what}{_by(codes)}.")
    if sockets.not_opened:
        lines.append(f"{sockets.not_opened} of {sockets.asked} sockets did not open{_by(sockets.not_opened_by_code)}.")
    said = next((request for request in report.per_request if request.message), None)
    if said is not None:
        lines.append(f"The first that went wrong: {said.message}")
    if report.stopped_by == "timeout":
        lines.append(f"Stopped after {report.load.timeout_s:g} s (--timeout-s).")
    elif report.stopped_by == "interrupt":
        lines.append("Stopped by hand.")
    if report.client_lag_worst_ms >= LAG_WORTH_SAYING_MS:
        lines.append(
            f"This client was late by up to {report.client_lag_worst_ms:,.0f} ms itself: "
            "waits of that size may be its own."
        )
    return lines


def _by(counts: dict[str, int]) -> str:
    return f" ({', '.join(f'{count} {name}' for name, count in counts.items())})" if counts else ""
