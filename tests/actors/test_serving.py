"""What the person at the terminal is told when the server is ready."""

import pytest

from actors import serving
from tests.actors.recorders import model_ready


@pytest.mark.parametrize("trace", [None, "/var/log/rota [1].jsonl"])
def test_it_says_where_the_page_is_and_where_it_traces_to(
    trace: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    serving._print_ready("127.0.0.1:8000", model_ready(), trace)
    said = capsys.readouterr().out.splitlines()
    assert "  chat     http://127.0.0.1:8000/" in said
    assert [line for line in said if "trace" in line] == ([] if trace is None else [f"  trace    {trace}"])
