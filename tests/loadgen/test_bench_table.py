import io

from rich.console import Console

from loadgen.bench_table import Measured, best, print_table, sentences
from loadgen.figures import Exchange, Load, Outcome, report


def measured(
    engine: str,
    seconds: float,
    *,
    streams: int = 1,
    turn: int = 0,
    chunks: int = 4,
    tokens: int = 4,
    outcome: Outcome = "finished",
    input_tokens: int = 100,
    cached_tokens: int = 0,
) -> Measured:
    """One answer of `chunks` chunks, evenly over so many seconds."""
    load = Load(
        url="",
        model="m",
        sockets=streams,
        requests_per_socket=1,
        max_output_tokens=4,
        ignore_eos=True,
        temperature=0.0,
        prompt_tokens=100,
        warmup=0,
        seed=0,
        timeout_s=1.0,
    )
    exchange = Exchange(0, 0, outcome=outcome, code="abort" if outcome != "finished" else None)
    exchange.sent_s, exchange.ended_s = 0.0, seconds
    exchange.texts_s = [seconds * (number + 1) / chunks for number in range(chunks)]
    exchange.input_tokens, exchange.output_tokens, exchange.cached_tokens = input_tokens, tokens, cached_tokens
    done = report(load, [exchange], stopped_by="finished", opened=1, not_opened=[], client_lag_worst_s=0.0)
    return Measured(engine, streams, turn, done)


def shown(*rows: Measured) -> list[list[str]]:
    console = Console(file=io.StringIO(), width=120)
    print_table(rows, console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def test_the_best_round_is_shown_with_all_its_figures() -> None:
    slow, fast = measured("vLLM", 4.0), measured("vLLM", 2.0, turn=1)
    assert best([slow, fast], "vLLM", 1) is fast
    assert best([slow, fast], "vLLM", 16) is None


def test_a_round_that_was_not_whole_is_shown_only_where_no_other_is() -> None:
    whole, broken = measured("vLLM", 4.0), measured("vLLM", 2.0, turn=1, outcome="failed")
    assert best([whole, broken], "vLLM", 1) is whole
    assert best([broken], "vLLM", 1) is broken


def test_each_row_says_how_many_times_its_figure_ours_is() -> None:
    rows = [measured("rota", 2.0), measured("vLLM", 4.0), measured("rota", 1.0, streams=16)]
    assert shown(*rows) == [
        ["1", "rota", "2.0", "500.0", "500.0", "500.0"],
        ["", "vLLM", "1.0 (2.00 x)", "1,000.0 (0.50 x)", "1,000.0 (0.50 x)", "1,000.0 (0.50 x)"],
        ["16", "rota", "4.0", "250.0", "250.0", "250.0"],
    ]


def test_without_ours_there_is_no_ratio_and_without_figures_a_dash() -> None:
    assert shown(measured("vLLM", 4.0, chunks=1)) == [["1", "vLLM", "1.0", "-", "-", "4,000.0"]]


def test_what_makes_figures_hard_to_compare_is_said() -> None:
    assert sentences([measured("rota", 1.0), measured("vLLM", 1.0)]) == []
    rota = measured("rota", 1.0)
    assert sentences([rota, measured("A", 1.0, chunks=2)]) == [
        "A: 2.00 tokens came in a chunk of text; its gaps are between chunks."
    ]
    assert sentences([rota, measured("B", 1.0, tokens=3, chunks=3)]) == [
        "B: answers ended early, after 3 tokens in the mean."
    ]
    assert sentences([rota, measured("C", 1.0, input_tokens=120)]) == [
        "C: its prompts are 120 tokens in the mean, ours 100."
    ]
    assert sentences([rota, measured("D", 1.0, cached_tokens=50)]) == [
        "D: 50 of 100 tokens of prompts came from its cache."
    ]
    assert sentences([rota, measured("E", 1.0, outcome="failed")]) == [
        "E, 1 streams: 0 of 1 requests finished (abort)."
    ]
