"""Sixty-four people at once, on whatever machine this is."""

import asyncio
import json
import sys
from pathlib import Path

from tests.end_to_end.server import Server


async def test_64_sockets_at_once_all_finish(server: Server, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = ["-m", "actors.cli", "load", server.url, "--sockets", "64", "--requests", "2", "--quiet"]
    command += ["--prompt-tokens", "20", "--max-output-tokens", "8", "--timeout-s", "120", "--json", str(figures)]
    pipe = asyncio.subprocess.PIPE
    load = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=pipe, stderr=pipe)
    out, errors = await load.communicate()
    assert load.returncode == 0, (out, errors)
    report = json.loads(figures.read_bytes())
    print(out.decode())
    assert report["requests"]["finished"] == 128
    await server.empty()
