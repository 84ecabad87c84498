"""`python -m tests.soak`: twenty minutes of everything at once on a server of its own, and a table of what is left.

Starts a server with a small random model on a free port of this machine alone, and ends it. Exits with 1 when something
was left, lost, or said twice.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.models import make_small_model
from tests.soak.run import Outcome, soak

MOST_S = 24 * 3600.0
MOST_PEOPLE = 200


def table_of(outcome: Outcome) -> Table:
    table = Table(title=f"{outcome.seconds:.0f} s, seed {outcome.seed}", title_justify="left")
    table.add_column("what")
    table.add_column("after the warm-up", justify="right")
    table.add_column("at the end", justify="right")
    warm, end, ledger = outcome.warm, outcome.end, outcome.ledger
    for what, before, after in (
        ("sockets open", warm.connections, end.connections),
        ("blocks used", warm.blocks["used"], end.blocks["used"]),
        ("sequences and waiting requests", sum(warm.requests.values()), sum(end.requests.values())),
        ("objects of sockets and requests", _objects(warm.objects), _objects(end.objects)),
        ("tasks", sum(warm.tasks.values()), sum(end.tasks.values())),
        ("open files", sum(warm.files.values()), sum(end.files.values())),
        ("resident memory, MiB", f"{warm.rss / 2**20:.1f}", f"{end.rss / 2**20:.1f} ({outcome.growth:+.1%})"),
        ("worker restarts", warm.restarts, end.restarts),
    ):
        table.add_row(what, str(before), str(after))
    table.add_section()
    for act, count in sorted(ledger.acts.items()):
        table.add_row(f"one who {act}", "", f"{count:,}")
    for way, count in sorted(outcome.broken.items()):
        table.add_row(f"worker {way}", "", f"{count:,}")
    table.add_section()
    table.add_row("responses that went on upon another socket", "", f"{ledger.resumed:,}")
    table.add_row("requests sent", "", f"{ledger.sent:,}")
    for end_of, count in sorted(ledger.ends.items()):
        if count:
            table.add_row(f"  ended: {end_of}", "", f"{count:,}")
    return table


def _objects(objects: dict[str, int]) -> int:
    return sum(count for kind, count in objects.items() if kind != "Mailbox")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0, help="how long, a quarter of it warm-up [1200]")
    parser.add_argument("--people", type=int, default=24, help="how many at once [24]")
    parser.add_argument("--crash-every-s", type=float, default=25.0, help="about how often the worker is broken [25]")
    parser.add_argument("--seed", type=int, default=1, help="says who does what [1]")
    args = parser.parse_args()
    if not (0 < args.seconds <= MOST_S and 0 < args.people <= MOST_PEOPLE and args.crash_every_s > 0):
        parser.error(f"at most {MOST_S:.0f} seconds and {MOST_PEOPLE} people, and more than none of each")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_small_model(folder / "small", max_position_embeddings=2048)
        how = {"seconds": args.seconds, "seed": args.seed, "people": args.people, "every_s": args.crash_every_s}
        outcome = asyncio.run(soak(folder / "server", model, **how))
    console = Console()
    console.print(table_of(outcome))
    for fault in outcome.faults:
        console.print(f"[red]✗[/red] {fault}", soft_wrap=True, highlight=False)
    if not outcome.faults:
        console.print("Nothing is left, and every request had one end.")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
