import io
from typing import Any

from rich.console import Console

from loadgen.figures import Exchange, Load, Report, report
from loadgen.tables import heading, print_report, sentences


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


def printed(figures: Report) -> str:
    console = Console(file=io.StringIO(), width=100)
    print_report(figures, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_holds_what_the_client_and_the_server_say() -> None:
    text = printed(made(finished(server_ttft_ms=985.5, output_tokens=5, input_tokens=1200)))
    rows = {row.split("│")[1].strip(): row.split("│")[2:7] for row in text.splitlines() if row.count("│") == 7}
    assert [cell.strip() for cell in rows["time to first token"]] == ["1", *["1,000.0"] * 4]
    assert [cell.strip() for cell in rows["server says: first token"]] == ["1", *["985.5"] * 4]
    assert [cell.strip() for cell in rows["server says: in the queue"]] == ["0", *["-"] * 4]
    assert [cell.strip() for cell in rows["gap between chunks"]] == ["1", *["500.0"] * 4]
    assert "2.5 tokens/s: 5 tokens out in 2.00 s; 1,200 in, 0 of them from the server's cache." in text


def test_a_clean_run_needs_few_words() -> None:
    assert sentences(made(finished()))[1:] == ["1 of 1 requests finished (1 length)."]


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
    assert lines == [
        "0 of 4 requests finished.",
        "1 refused (1 server_overloaded).",
        "1 lost with their socket (1 closed_1006).",
        "1 still running at the end.",
        "1 never sent.",
        "1 of 2 sockets did not open (1 http_503).",
        "The first that went wrong: Too many wait.",
        "Stopped after 300 s (--timeout-s).",
        "This client was late by up to 50 ms itself: waits of that size may be its own.",
    ]


def test_an_interrupt_is_said() -> None:
    assert sentences(made(Exchange(0, 0), stopped_by="interrupt"))[-1] == "Stopped by hand."


def test_the_heading_tells_what_was_asked() -> None:
    assert heading(made()) == (
        "2 sockets x 1 requests to m at ws://127.0.0.1:8000/v1/responses: "
        "prompts of ~140 tokens, 5 output tokens, seed 1"
    )
    other = heading(made(load={"prompt_tokens": None, "ignore_eos": False}))
    assert other.endswith(": one prompt for all, at most 5 output tokens, seed 1")
