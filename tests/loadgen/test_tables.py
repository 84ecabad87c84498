import io
import re
from typing import Any

import pytest
from rich.console import Console

from loadgen.figures import Exchange, Load, Report, report
from loadgen.tables import (
    group_rows,
    heading,
    milliseconds,
    print_report,
    print_sweep,
    sentences,
    sweep_rows,
    targets_in_words,
)
from protocol.timeline import percent
from tests.loadgen.made_runs import all_refused, open_run


def made(*exchanges: Exchange, load: dict[str, Any] | None = None, **changes: Any) -> Report:
    asked: dict[str, Any] = {
        "url": "ws://127.0.0.1:8000/v1/responses",
        "model": "m",
        "sockets": 2,
        "requests_per_socket": 1,
        "max_output_tokens": 5,
        "ignore_eos": True,
        "temperature": 0.0,
        "prompt_tokens": 140,
        "warmup": 0,
        "seed": 1,
        "timeout_s": 300.0,
    }
    rest: dict[str, Any] = {"stopped_by": "finished", "opened": 2, "not_opened": [], "client_lag_worst_s": 0.0}
    return report(Load(**asked | (load or {})), exchanges, **rest | changes)


def finished(**fields: Any) -> Exchange:
    one: dict[str, Any] = {"socket": 0, "number": 0, "outcome": "finished", "status": "incomplete"}
    return Exchange(**one | {"finish_reason": "length", "sent_s": 0.0, "texts_s": [1.0, 1.5], "ended_s": 2.0} | fields)


def printed(*reports: Report, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    if len(reports) == 1:
        print_report(reports[0], console)
    else:
        print_sweep(reports, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def rows_of(text: str) -> dict[str, list[str]]:
    """The cells of each row by the name before them, which two spaces part from the cells."""
    rows = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in text.splitlines() if line.startswith(" "))
    return {row[0]: row[1].split() for row in rows if len(row) == 2}


def test_the_clients_clock_and_the_servers_word_stand_side_by_side() -> None:
    text = printed(
        made(finished(due_s=0.0, server_ttft_ms=985.5, queue_ms=3.25, output_tokens=5, input_tokens=1200)), width=100
    )
    rows = rows_of(text)
    assert rows["first text (TTFT)"] == ["1,000"] * 4 + ["986"] * 4 + ["1"]
    assert rows["queue"] == ["3.25"] * 4 + ["1"]
    assert rows["gap of chunks"] == ["500"] * 4 + ["1"]
    assert "2.5 tokens/s: 5 tokens out in 2.00 s; 1,200 in, 0 of them from the server's cache." in text


def test_a_server_that_says_nothing_has_no_columns() -> None:
    text = printed(made(finished()))
    assert "server:" not in text
    assert rows_of(text)["first text (TTFT)"] == ["1,000"] * 4 + ["1"]


def test_the_tables_fit_eighty_columns() -> None:
    figures, _ = open_run(4.0, requests=200, groups=("laptops", "rush", "long-documents"))
    sweep = [open_run(per_s, requests=int(20 * per_s))[0] for per_s in (0.5, 4.0, 16.0)]
    for text in (printed(figures), printed(*sweep)):
        table = [line for line in text.splitlines() if line.startswith(" ")]
        assert max(map(len, table)) <= 80
        assert not any("…" in line for line in table)


def test_each_group_has_a_row() -> None:
    figures, exchanges = open_run(4.0, requests=30, groups=("laptops", "rush"))
    assert [row[:2] for row in group_rows(figures)] == [["laptops", "15"], ["rush", "15"]]
    rows = rows_of(printed(figures))
    met = sum(each.met is True for each in exchanges if each.group == "rush")
    counted = sum(each.met is not None for each in exchanges if each.group == "rush")
    assert rows["rush"][:2] == ["15", percent(met / counted)]
    assert "group" not in printed(open_run(4.0)[0])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (9.994, "9.99"),
        (9.996, "10.0"),
        (99.94, "99.9"),
        (99.96, "100"),
        (1234.5, "1,234"),
        (99_999.4, "99,999"),
        (213_000.0, "213 s"),
    ],
)
def test_a_wait_takes_six_characters_at_most(value: float | None, words: str) -> None:
    assert milliseconds(value) == words


def test_a_sweep_has_a_row_a_rate_and_says_what_went_wrong_at_which() -> None:
    slow, quick = open_run(2.0, requests=40)[0], all_refused()[0]
    text = printed(slow, quick)
    assert [row[0] for row in sweep_rows([slow, quick])] == ["2", "2"]
    row = sweep_rows([slow])[0]
    assert slow.goodput is not None
    assert slow.goodput.share is not None
    assert slow.client.ttft_ms is not None
    assert row[1:6] == [
        "40",
        f"{slow.goodput.per_s:,.3g}",
        percent(slow.goodput.share),
        milliseconds(slow.client.ttft_ms.p50),
        milliseconds(slow.client.ttft_ms.p99),
    ]
    assert sweep_rows([quick])[0][4:] == ["-", "-", "-", "-", "0", "20"]
    assert "At 2/s: 20 refused (20 server_overloaded)." in text
    assert "Met: ttft 1 s, itl 100 ms." in text
    assert "arrivals" not in text.splitlines()[0]


def test_a_clean_run_needs_few_words() -> None:
    assert sentences(made(finished())) == [
        "1 of 1 requests finished (1 length).",
        "Waits count from when a request was due, not from when it was sent, so that a late server or client hides "
        "none (no coordinated omission).",
    ]


def test_goodput_is_said_with_its_targets() -> None:
    targets = {"ttft_target_s": 1.0, "itl_target_s": 0.5}
    run = [finished(**targets), finished(number=1, texts_s=[1.5, 2.0], **targets)]
    cut = Exchange(1, 0, outcome="left", due_s=1.5, sent_s=1.5, ended_s=1.6, ttft_target_s=1.0)
    said = sentences(made(*run, cut))[0]
    assert said == (
        "1 of 2 met ttft 1 s, itl 500 ms (50%): 0.5/s; 1 did neither, left or cut off before it could be told."
    )
    other = targets_in_words([made(*run, finished(ttft_target_s=4.0))])
    assert other == "ttft 1 s to 4 s, itl 500 ms"


def test_how_late_the_client_was_is_said_beside_what_waits_count_from() -> None:
    said = sentences(made(finished(due_s=0.0, sent_s=0.012), finished(number=1, due_s=0.0, sent_s=0.002)))[-1]
    assert said.endswith("hides none (no coordinated omission); this client sent p99 12 ms late, at worst 12 ms.")


def test_a_load_that_waits_for_the_server_says_so() -> None:
    said = sentences(made(finished(), finished(number=1), load={"requests_per_socket": 2}))[-1]
    assert said.startswith("Each socket sends its next request when the answer before has ended: a slow server is")


def test_what_is_in_no_figure_is_said() -> None:
    lines = sentences(
        made(
            finished(),
            finished(number=1, warm_up=True),
            finished(number=2, slow_reader=True, asked_tokens=100, input_tokens=105),
            idle_sockets=2000,
        )
    )
    assert "In no figure: 1 of the warm-up." in lines
    assert "In no gap: 1 of slow readers, whose own doing those are." in lines
    assert "Open and silent beside them: 2,000 sockets." in lines
    assert "Prompts were up to 5 tokens off the length that was asked for." in lines


def test_what_went_wrong_is_said() -> None:
    lines = sentences(
        made(
            Exchange(0, 0, outcome="refused", code="server_overloaded", message="Too many wait."),
            Exchange(0, 1, outcome="dropped", code="closed_1006"),
            Exchange(1, 0, outcome="unfinished"),
            Exchange(1, 1),
            opened=1,
            not_opened=["http_503"],
            stopped_by="timeout",
            client_lag_worst_s=0.05,
        )
    )
    assert lines[:-2] == [
        "0 of 4 requests finished.",
        "1 refused (1 server_overloaded).",
        "1 lost with their socket (1 closed_1006).",
        "1 still running at the end.",
        "1 never sent.",
        "1 of 2 sockets did not open (1 http_503).",
        "Stopped after 300 s (--timeout-s).",
        "The first that went wrong: Too many wait.",
    ]
    assert lines[-1] == "This client was late by up to 50 ms itself: waits of that size may be its own."


def test_what_a_server_says_is_no_markup() -> None:
    text = printed(made(Exchange(0, 0, outcome="refused", message="[red]No[/red]", code="[/]"), finished(group="[b]x")))
    assert "[red]No[/red]" in text
    assert "(1 [/])" in text
    assert "[b]x" in printed(open_run(4.0, groups=("[b]x", "[/]y"))[0])


def test_what_a_server_says_does_nothing_to_the_terminal() -> None:
    evil = "\x1b[2Jx\x9b31m\r\ny\x07"
    refused = Exchange(0, 0, outcome="refused", message=evil, code=evil)
    one = made(refused, finished(group=evil, finish_reason=evil), load={"model": evil}, scenario=evil)
    grouped, _ = open_run(4.0, groups=(evil, "other"), scenario=evil, load_changes={"model": evil})
    for text in (printed(one), printed(grouped), printed(one, grouped)):
        assert "[2Jx" in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)
        assert not any(line.startswith("y") for line in text.splitlines()), "no line begins where a server wants it"


def test_a_warm_up_of_the_whole_run_is_said() -> None:
    nobody = made(finished(warm_up=True), load={"warmup_s": 60.0})
    said = "No request is left to count: --warmup-s 60 is longer than the run."
    assert said in sentences(nobody)
    assert said in printed(nobody, nobody)


def test_an_interrupt_is_said() -> None:
    assert sentences(made(Exchange(0, 0), stopped_by="interrupt"))[-2] == "Stopped by hand."


def test_the_heading_tells_what_was_asked() -> None:
    assert heading(made()) == (
        "2 sockets x 1 requests to m at ws://127.0.0.1:8000/v1/responses: "
        "prompts of ~140 tokens, 5 output tokens, seed 1"
    )
    other = heading(made(load={"prompt_tokens": None, "ignore_eos": False}))
    assert other.endswith(": one prompt for all, at most 5 output tokens, seed 1")


def test_the_heading_of_a_scenario_tells_how_people_come() -> None:
    figures, _ = open_run(4.0, requests=12)
    assert heading(figures) == (
        "chat, arrivals poisson, 4/s to SmolLM2-135M at ws://127.0.0.1:8000/v1/responses: 12 requests, seed 7"
    )


def test_samples_of_both_clocks_are_told_where_they_differ() -> None:
    report = made(finished(server_ttft_ms=900.0), finished(server_ttft_ms=None))
    assert rows_of(printed(report))["first text (TTFT)"][-1] == "2/1"
    assert rows_of(printed(made(finished(server_ttft_ms=900.0))))["first text (TTFT)"][-1] == "1"


def test_whose_tokens_are_not_counted_is_said() -> None:
    report = made(
        finished(output_tokens=5), finished(outcome="unfinished", ended_s=None), finished(outcome="left", left=True)
    )
    said = "Tokens out are counted at the end of an answer: not those of 2 that had none."
    assert said in sentences(report)
    assert not any("Tokens out" in sentence for sentence in sentences(made(finished(output_tokens=5))))


def test_who_left_and_what_they_would_have_asked_are_told_apart() -> None:
    report = made(finished(outcome="left", left=True), finished(outcome="left", left=True, sent_s=None, texts_s=[]))
    assert {"1 left by their people.", "1 never asked, as their people had left."} <= set(sentences(report))
