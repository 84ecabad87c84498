"""What tracing costs: one server that traces and one that does not, under the same load in turn.

    .venv/bin/python -m tests.actors.tracing_cost
    .venv/bin/python -m tests.actors.tracing_cost --kernels none --sockets 64 --max-output-tokens 600

Prints tokens per second and the server's processor time per token for each run, and the medians of the ratios of the
pairs. Asserts nothing: a busy machine shows in how far the pairs are apart.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import psutil

from tests.end_to_end.server import Server, serving


def measure(server: Server, sockets: int, tokens: int, folder: Path) -> tuple[float, float]:
    """Tokens per second, and microseconds of the server's processor time per token."""
    figures = folder / "figures.json"
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    asked = ("--sockets", str(sockets), "--max-output-tokens", str(tokens), "--json", str(figures), "--quiet")
    subprocess.run(
        [sys.executable, "-m", "actors.cli", "load", f"127.0.0.1:{server.port}", *asked],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = process.cpu_times()
    count = json.loads(figures.read_text("utf-8"))["tokens"]
    busy_s = after.user + after.system - before.user - before.system
    return count["output_per_s"], busy_s / count["output"] * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--sockets", type=int, default=16)
    parser.add_argument("--max-output-tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = ("--kernels", args.kernels)
        trace = folder / "trace.jsonl"
        with (
            serving(folder / "off", *settings) as off,
            serving(folder / "on", *settings, "--trace", str(trace)) as on,
        ):
            off.wait_until_ready()
            on.wait_until_ready()
            for server in (off, on):  # what is only slow once
                measure(server, args.sockets, args.max_output_tokens, folder)
            speeds, costs, control = [], [], []
            for pair in range(args.pairs):
                # Each in turn is the first: a machine that slows down slows both.
                order = (off, on) if pair % 2 else (on, off)
                taken = {server.port: measure(server, args.sockets, args.max_output_tokens, folder) for server in order}
                (off_speed, off_cost), (on_speed, on_cost) = taken[off.port], taken[on.port]
                speeds.append(on_speed / off_speed)
                costs.append(on_cost / off_cost)
                control.append(off_speed)
                print(
                    f"off {off_speed:9,.1f} tokens/s {off_cost:6.1f} µs a token   "
                    f"on {on_speed:9,.1f} tokens/s {on_cost:6.1f} µs a token   ratio {speeds[-1]:.3f}",
                    flush=True,
                )
        lines = sum(1 for _ in trace.open("rb"))
    print(
        f"tokens per second, on / off: median {median(speeds):.3f} ({min(speeds):.3f} to {max(speeds):.3f})   "
        f"processor time: median {median(costs):.3f} ({min(costs):.3f} to {max(costs):.3f})   "
        f"off against its own median: {min(control) / median(control):.3f} to {max(control) / median(control):.3f}   "
        f"{lines:,} lines"
    )


if __name__ == "__main__":
    main()
