"""A scenario on real servers: `rota replay` starts them, plays, and leaves none behind."""

from pathlib import Path

import msgspec
import psutil
import pytest

from actors import cli
from loadgen.comparison import Comparison


def test_a_scenario_runs_under_two_policies_on_two_servers(
    legible_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "two.toml"
    scenario.write_text(
        '[[arrivals]]\nname = "A"\nprompt_tokens = 200\noutput_tokens = 30\nclient = "same"\n'
        '[[arrivals]]\nname = "B"\nprompt_tokens = 3000\noutput_tokens = 10\nafter = ["A"]\nclient = "same"\n'
    )
    figures = tmp_path / "figures.json"
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    with pytest.raises(SystemExit) as ended:
        cli.main(
            [
                *("replay", str(scenario), "--policies", "decode_first,prefill_first", "--seed", "7", "--alone", "B"),
                *("--model", str(legible_folder), "--serve-args", "--device cpu --dtype float32 --kv-memory 64MiB"),
                *("--json", str(figures), "--quiet"),
            ]
        )
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    assert out.count("B alone has its first token after") == 2
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    comparison = msgspec.json.decode(figures.read_bytes(), type=Comparison)
    assert [each.policy for each in comparison.policies] == ["decode_first", "prefill_first"]
    for policy in comparison.policies:
        a, b = policy.per_request
        assert (a.outcome, b.outcome) == ("length", "length")
        assert a.prompt_tokens == pytest.approx(200, rel=0.3), "in bytes, words differ more than in tokens"
        assert b.prompt_tokens == pytest.approx(3000, rel=0.05)
        assert b.arrived_s >= (a.ttft_s or 0)
