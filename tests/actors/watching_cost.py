"""What watching costs: one server under the same load in turn, with somebody who watches and with nobody.

    .venv/bin/python -m tests.actors.watching_cost
    .venv/bin/python -m tests.actors.watching_cost --kernels none --sockets 64 --max-output-tokens 600

Prints tokens per second and the server's processor time per token for each run, and the medians of the ratios of the
pairs. Whoever watches is a process of its own, which reads every frame. Asserts nothing: a busy
machine shows in how far the pairs are apart.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import msgspec
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from protocol.turns import Frame, Hello
from tests.actors.tracing_cost import measure
from tests.end_to_end.server import Server, serving


def watch(url: str) -> None:
    """Read frames until the socket is closed; then say how many there were. One line on standard output before."""
    decode = msgspec.json.Decoder(Hello | Frame).decode
    frames = steps = left_out = octets = missed = 0
    with connect(url, max_size=None) as socket:
        decode(socket.recv())
        print("watching", flush=True)
        try:
            for text in socket:
                frames += 1
                octets += len(text)
                if frames % 16 == 0:  # to see that they can be read, and to leave the processor to the server
                    frame = decode(text)
                    assert isinstance(frame, Frame)
                    steps += len(frame.steps)
                    left_out += frame.left_out[0]
                    missed += frame.missed
        except (ConnectionClosed, KeyboardInterrupt):
            pass
    print(f"{frames} frames, {octets / max(1, frames) / 1e3:.1f} KB each; of every sixteenth: {steps} steps shown, "
          f"{left_out} left out, {missed} missed", flush=True)  # fmt: skip


@contextmanager
def watched(server: Server, watchers: int) -> Iterator[None]:
    """While somebody watches."""
    command = [sys.executable, "-m", "tests.actors.watching_cost", "--watch", f"ws://127.0.0.1:{server.port}/v1/turns"]
    people = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(watchers)]
    try:
        for one in people:
            assert one.stdout is not None
            assert one.stdout.readline() == "watching\n"
        yield
    finally:
        for one in people:
            one.send_signal(2)
        for one in people:
            said, _ = one.communicate(timeout=10)
            print(f"    {said.strip()}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--sockets", type=int, default=16)
    parser.add_argument("--max-output-tokens", type=int, default=256)
    parser.add_argument("--watchers", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    if args.watch:
        watch(args.watch)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder / "server", "--kernels", args.kernels) as server:
            server.wait_until_ready()
            measure(server, args.sockets, args.max_output_tokens, folder)  # what is only slow once
            speeds, costs, control = [], [], []
            for pair in range(args.pairs):
                taken = {}
                # Each in turn is the first: a machine that slows down slows both.
                for seen in (False, True) if pair % 2 else (True, False):
                    with watched(server, args.watchers if seen else 0):
                        taken[seen] = measure(server, args.sockets, args.max_output_tokens, folder)
                (off_speed, off_cost), (on_speed, on_cost) = taken[False], taken[True]
                speeds.append(on_speed / off_speed)
                costs.append(on_cost / off_cost)
                control.append(off_speed)
                print(
                    f"unseen {off_speed:9,.1f} tokens/s {off_cost:6.1f} µs a token   "
                    f"watched {on_speed:9,.1f} tokens/s {on_cost:6.1f} µs a token   ratio {speeds[-1]:.3f}",
                    flush=True,
                )
    print(
        f"tokens per second, watched / unseen: median {median(speeds):.3f} ({min(speeds):.3f} to {max(speeds):.3f})   "
        f"processor time: median {median(costs):.3f} ({min(costs):.3f} to {max(costs):.3f})   "
        f"unseen against its own median: {min(control) / median(control):.3f} to {max(control) / median(control):.3f}"
    )


if __name__ == "__main__":
    main()
