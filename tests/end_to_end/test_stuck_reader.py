"""A client that asks for fifty answers and reads nothing: it costs little, delays nobody, and is let go."""

from pathlib import Path

from tests.end_to_end.conftest import Start
from tests.end_to_end.stuck_reader import watched

ANSWERS = 50
PATIENCE_S = 3.0
MOST_BYTES = 32 * 2**20
"""Far above what was seen, 8 MiB, and far below what the answers would take: 170 MiB."""


async def test_fifty_answers_that_nobody_reads_cost_little_and_are_let_go(own: Start, legible_folder: Path) -> None:
    server = own("--model", str(legible_folder), "--dtype", "float32", "--reader-patience-s", str(PATIENCE_S))
    seen = await watched(server, answers=ANSWERS, tokens=4_000, within_s=60)
    assert seen.paused == ANSWERS, "all of them are kept off the device, and nobody else"
    assert seen.most_bytes - seen.before_bytes < MOST_BYTES
    assert set(seen.others) == {"length"}
    assert PATIENCE_S <= seen.let_go_s < 60
    [closed] = {line["finish_reason"] for line in server.logged("request.finished") if line["output_tokens"] > 8}
    assert closed == "cancelled"
