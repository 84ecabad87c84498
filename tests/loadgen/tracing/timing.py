"""How long a trace takes to be read: `python -m tests.loadgen.tracing.timing [MESSAGES]`, by default 100,000.

Writes one as a busy server would (sixteen answers at a time, prompts of 200 tokens) and runs `rota trace` on it, in a
process of its own.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.loadgen.tracing.scenes import Scene

AT_ONCE = 16


def busy(messages: int) -> Scene:
    """So many messages, or a few more."""
    scene, chance, at = Scene(), random.Random(1), 1.0
    running: list[str] = []
    while scene.messages < messages:
        while len(running) < AT_ONCE:
            request = f"resp_{chance.getrandbits(128):032x}"
            scene.ask(request, at - 0.05, tokens=200, connection=chance.randrange(200))
            at = scene.prefill(request, at, 200, beside=tuple(running))
            running.append(request)
        at = scene.decode(at + 0.001, 1, *running)
        if chance.random() < 0.3:
            scene.end(running.pop(chance.randrange(AT_ONCE)), at)
    return scene


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        file = busy(messages).write(Path(folder) / "trace.jsonl")
        print(f"{file.stat().st_size / 2**20:.1f} MiB")
        for arguments in ((), ("--slowest", "10"), ("--around", "+10"), ("--perfetto", f"{folder}/out.json")):
            began = time.monotonic()
            command = [sys.executable, "-m", "actors.cli", "trace", str(file), *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            print(f"rota trace {' '.join(arguments[:1])}: {time.monotonic() - began:.2f} s")


if __name__ == "__main__":
    main()
