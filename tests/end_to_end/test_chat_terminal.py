"""`rota chat` as a person has it: a process on a terminal, and a real server."""

import asyncio
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Start
from tests.end_to_end.server import Server

PATIENCE_S = 60.0
READY = b"\x1b[?2004h"
"""What a prompt asks of its terminal first: pasted text in brackets."""
LONG = ("--max-output-tokens", "7000", "--temperature", "0")
ESCAPE = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|[=>])")


@pytest.fixture(scope="module")
def talkative(shared: Start, legible_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """Greedy, its model never finds an end."""
    import torch
    from transformers import AutoModelForCausalLM

    from kernels.byte_tokeniser import END_ID

    folder = tmp_path_factory.mktemp("models") / "talkative"
    shutil.copytree(legible_folder, folder)
    loaded: Any = AutoModelForCausalLM
    model = loaded.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        model.lm_head.weight[END_ID] = 0
    model.save_pretrained(folder)
    return shared("--model", str(folder), "--dtype", "float32")


class Terminal:
    """A process on a terminal of its own, 24 lines of 200 columns."""

    def __init__(self, process: Process, master: int, slave: int) -> None:
        self.process = process
        self.written = bytearray()
        self._master, self._slave = master, slave
        self._settings = termios.tcgetattr(slave)
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(master, self._read)

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    async def prompts(self, times: int = 1) -> None:
        await self._until(lambda: self.written.count(READY) >= times)

    async def shows(self, text: str) -> None:
        """Escape codes apart."""
        await self._until(lambda: text.encode() in ESCAPE.sub(b"", self.written))

    @property
    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._slave) == self._settings

    async def _until(self, seen: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not seen():
                    self._more.clear()
                    await self._more.wait()
        except TimeoutError:
            raise AssertionError(f"it is not there: {bytes(self.written[-2000:])!r}") from None

    def _read(self) -> None:
        self.written += os.read(self._master, 65536)
        self._more.set()


@asynccontextmanager
async def rota_chat(folder: Path, *arguments: str) -> AsyncIterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 200, 0, 0))
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "XDG_STATE_HOME": str(folder),
        "PROMPT_TOOLKIT_NO_CPR": "1",  # this terminal answers no questions
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "actors.cli", "chat", *arguments),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    try:
        yield Terminal(process, master, slave)
    finally:
        asyncio.get_running_loop().remove_reader(master)
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)
        os.close(slave)


async def test_ctrl_c_stops_the_answer_frees_its_blocks_and_the_next_question_is_answered(
    talkative: Server, tmp_path: Path
) -> None:
    known = len(talkative.logged("request.finished"))
    async with rota_chat(tmp_path, talkative.url, *LONG) as terminal:
        await terminal.shows(f"Talking to {talkative.model}.")
        await terminal.prompts()
        terminal.press(b"A very long story.\r")
        await terminal.shows("writing")
        await talkative.shows(lambda seen: seen.blocks["used"] > 0)
        terminal.press(b"\x03")
        await terminal.shows("Stopped by you")
        await talkative.empty()

        terminal.press(b"/tokens 5\r")
        await terminal.shows("5 tokens")
        terminal.press(b"And then?\r")
        await terminal.prompts(4)

        terminal.press(b"\x04")
        assert await asyncio.wait_for(terminal.process.wait(), PATIENCE_S) == 0
        assert terminal.is_as_before
    first, second = await talkative.finished_since(known, 2)
    assert first["finish_reason"] == "cancelled"
    assert second["finish_reason"] == "length"
    assert second["input_tokens"] > first["input_tokens"] + first["output_tokens"], "it did not continue"
    assert "A very long story." in (tmp_path / "rota" / "chat-history").read_text("utf-8")


async def test_an_interrupt_from_outside_stops_the_answer_as_the_key_does(talkative: Server, tmp_path: Path) -> None:
    async with rota_chat(tmp_path, talkative.url, *LONG) as terminal:
        await terminal.prompts()
        terminal.press(b"A very long story.\r")
        await terminal.shows("writing")
        terminal.process.send_signal(signal.SIGINT)
        await terminal.shows("Stopped by you")
        await terminal.prompts(2)
        terminal.press(b"/quit\r")
        assert await asyncio.wait_for(terminal.process.wait(), PATIENCE_S) == 0
        assert terminal.is_as_before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("answering", [True, False], ids=["in an answer", "at the prompt"])
async def test_who_is_told_to_leave_gives_the_terminal_back(
    talkative: Server, tmp_path: Path, number: signal.Signals, answering: bool
) -> None:
    async with rota_chat(tmp_path, talkative.url, *LONG) as terminal:
        await terminal.prompts()
        if answering:
            terminal.press(b"A very long story.\r")
            await terminal.shows("writing")
        terminal.process.send_signal(number)
        assert await asyncio.wait_for(terminal.process.wait(), PATIENCE_S) == 143
        assert terminal.is_as_before
        assert b"Traceback" not in terminal.written
    await talkative.empty()


async def test_piped_questions_are_answered_in_plain_text(talkative: Server) -> None:
    command = [sys.executable, "-m", "actors.cli", "chat", talkative.url, "--max-output-tokens", "20"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, errors = await process.communicate(b"One?\nTwo?\n")
    assert process.returncode == 0, errors
    assert errors.count(b"tokens in") == 2
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", out + errors)
