"""A real server's trace, read by `rota trace`: it names who was in the way, and is right."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors import cli
from loadgen.tracing.report import LifeReport
from tests.end_to_end.client import connected
from tests.end_to_end.conftest import Start
from tests.loadgen.tracing.test_perfetto import check

Trace = Callable[..., str]
BETWEEN_MS = 50.0
"""Two times that one handler took may have another process in between."""


@pytest.fixture
def rota_trace(capsys: pytest.CaptureFixture[str]) -> Trace:
    def run(*arguments: object) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(["trace", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        return out

    return run


async def test_a_long_prompt_is_named_by_those_it_kept_waiting(
    own: Start, legible_folder: Path, tmp_path: Path, rota_trace: Trace
) -> None:
    """A writes, B's long prompt comes, C's short one waits behind it, and D behind B's answer on B's own lane."""
    trace = tmp_path / "trace.jsonl"
    model = ("--model", str(legible_folder), "--dtype", "float32")
    server = own(*model, "--policy", "prefill_first", "--chunk-tokens", "128", "--trace", str(trace))
    async with connected(server) as a, connected(server) as b, connected(server) as c:
        await a.create("Write. " * 10, max_output_tokens=4000, ignore_eos=True)
        await a.until("response.output_text.delta")
        await b.create("word " * 1500, max_output_tokens=4, ignore_eos=True)
        await b.until("response.in_progress")
        await c.create("Short.", max_output_tokens=4, ignore_eos=True)
        await b.create("Next.", max_output_tokens=2, ignore_eos=True)
        answers = [await lane.answer() for lane in (b, c, b)]
        await a.cancel()
        first = (await a.answer()).id
    server.terminate()
    await server.exit_code()

    reports = msgspec.json.decode(rota_trace(trace, "--json"), type=list[LifeReport])
    found = {each.request: each for each in reports}
    of_a, (of_b, of_c, of_d) = found[first], (found[answer.id] for answer in answers)
    for answer, told in zip(answers, (of_b, of_c, of_d), strict=True):
        agrees(told, answer.response)
    long = of_b.request[: len("resp_") + 4]
    assert of_b.causes[0].kind == "own"
    assert of_c.causes[0].kind == "prefills"
    assert f"{long}'s prefill (" in of_c.sentences[0]
    assert of_d.causes[0].kind == "lane"
    assert f"behind {long}" in of_d.sentences[0]
    assert of_a.reason == "cancelled"
    assert f"of it {long}" in of_a.sentences[1], "its longest gap was as long as it took to read B"

    slowest = rota_trace(trace, "--slowest", 1)
    assert f"{of_b.request}: finished" in slowest or f"{of_d.request}: finished" in slowest
    assert long in rota_trace(trace)
    assert "prefill chunk 1 of" in rota_trace(trace, "--request", of_b.request[5:20])
    out = tmp_path / "perfetto.json"
    rota_trace(trace, "--perfetto", out)
    check(out.read_text())


def agrees(told: LifeReport, response: dict[str, Any]) -> None:
    """What the trace says of a request is what its client was told."""
    rota = response["rota"]
    assert told.whole
    assert told.reason == rota["finish_reason"]
    assert told.input_tokens == response["usage"]["input_tokens"]
    assert told.output_tokens == response["usage"]["output_tokens"]
    assert told.ttft_ms == pytest.approx(rota["ttft_ms"], abs=BETWEEN_MS), (
        "to its handler's end, and not to the frame's making"
    )
    assert sum(told.parts_ms.values()) == pytest.approx(told.ttft_ms, abs=0.1)
    assert told.longest_gap is not None
    assert told.longest_gap.ms == pytest.approx(rota["itl_ms"]["max"], abs=BETWEEN_MS)
