"""Keys typed as a flag do not stay where everyone on the machine can read them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.keys_on_the_line import keys_out_of_sight, parted


@pytest.mark.parametrize(
    ("line", "rest", "keys"),
    [
        (["--port", "1", "--api-keys", "a=b", "--host", "x"], ["--port", "1", "--host", "x"], ["a=b"]),
        (["--api-keys=a=b,c=d", "--api-key", "e=f", "--ap=g=h"], [], ["a=b,c=d", "e=f", "g=h"]),
        (["--api-keys"], ["--api-keys"], []),
        (["--allow-no-key", "--apart", "x"], ["--allow-no-key", "--apart", "x"], []),
    ],
)
def test_the_keys_are_parted_from_the_rest(line: list[str], rest: list[str], keys: list[str]) -> None:
    assert parted(line) == (rest, keys)


def test_a_line_without_keys_and_another_command_go_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[object] = []
    monkeypatch.setattr(os, "execve", lambda *given: begun.append(given))
    keys_out_of_sight(["python", "rota", "serve", "--port", "1"], {})
    keys_out_of_sight(["python", "rota", "load", "--api-keys", "a=b"], {})
    assert begun == []


def test_a_server_begins_again_without_them_and_has_them_still(tmp_path: Path) -> None:
    """It stops at a setting that cannot be used; the line it was then started with is what a listing would show."""
    probe = tmp_path / "probe.py"
    probe.write_text(
        "import sys\n"
        "from actors import cli, config\n"
        "def load(flags, environment, folder):\n"
        "    print(sys.orig_argv, flags.get('api_keys'), environment['ROTA_API_KEYS'])\n"
        "    raise config.ConfigError('enough')\n"
        "config.load = load\n"
        "cli.main()\n"
    )
    line = [sys.executable, str(probe), "serve", "--api-keys", "anna=hush", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    shown, _, kept = ended.stdout.strip().rpartition(" None ")
    assert kept == "anna=hush", ended
    assert "hush" not in shown
    assert "'serve', '--port', '0'" in shown
