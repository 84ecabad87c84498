"""Programs that stand in place of `rota serve`."""

import sys

READY = '{"event": "engine.ready", "url": "ws://127.0.0.1:9/v1/responses", "model": "m"}'


def stand_in(script: str) -> tuple[str, ...]:
    """In place of `rota serve`: Python that says something and lives until it is told to end."""
    prelude = "import signal, sys\ndef say(line): print(line, file=sys.stderr, flush=True)\n"
    return sys.executable, "-c", prelude + script
