"""`rota chat`: a person at a terminal, talking to a server.

Knows the command line, its exit codes, and the round of a conversation: a line, what it asks for, the answer. What is
typed comes from `chat_input`, what is shown goes to `chat_screen`, what is asked goes through `chat_dialogue`.
"""

import argparse
import asyncio
import os
import signal
import sys
from urllib.parse import urlsplit

from rich.console import Console

from loadgen.chat_commands import LEAVE, BadValue, obey, targets_of
from loadgen.chat_conversation import Conversation
from loadgen.chat_dialogue import Dialogue
from loadgen.chat_input import Lines, Questions, Terminal, history_file, history_in
from loadgen.chat_screen import PlainScreen, Screen, TerminalScreen
from loadgen.chat_socket import Session
from loadgen.chat_wire import Settings, harmless_line
from loadgen.client import CONNECT_TIMEOUT_S, NotOpened, Unreachable, first_model
from loadgen.command_line import DEFAULT_SERVER, Misuse, add_key, is_loopback, server_url
from protocol.responses import Targets
from protocol.scenario_arguments import number, whole

ALL_ANSWERED, SOME_FAILED, NO_TALK, NOBODY_READS, TOLD_TO_LEAVE = 0, 1, 2, 128 + 13, 128 + 15
"""Exit codes: every question was answered, or stopped by who asked it; some answer failed, and the questions came from
a pipe (a person has seen it); usage or connection error; what its answers go to was closed; ended by a signal."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `rota chat`."""
    add = parser.add_argument
    add(
        "url",
        nargs="?",
        default=DEFAULT_SERVER,
        metavar="URL",
        help="the server, as ws:// or http:// URL or host:port (default: %(default)s)",
    )
    add("--model", metavar="NAME", help="the model to ask for (default: the first the server lists)")
    add("--system", metavar="TEXT", help="instructions, sent with every question")
    add("--targets", type=_targets, metavar="ttft=1s,itl=100ms", help="how soon tokens should come")
    add("--max-output-tokens", type=whole(1), metavar="N", help="the longest answer (default: the server's)")
    add("--temperature", type=number(0.0, 2.0), metavar="T", help="0 to 2; 0 is greedy (default: the model's)")
    add("--seed", type=whole(0), metavar="N", help="the same number gives the same answers (default: none)")
    add_key(parser)
    add("--anywhere", action="store_true", help="allow a server on another machine")


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed and return the exit code. What keeps it from talking at all is one sentence on
    stderr."""
    try:
        url = _url(args)
        settings = Settings(
            model=args.model or first_model(url, args.key, CONNECT_TIMEOUT_S),
            instructions=args.system,
            targets=args.targets,
            seed=args.seed,
            max_output_tokens=args.max_output_tokens,
            temperature=args.temperature,
        )
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
        return asyncio.run(_talk_until_told(Session(url, args.key), settings))
    except BrokenPipeError:
        # `rota chat | head`: nobody reads on, and the interpreter must not try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS
    except (Misuse, Unreachable, NotOpened) as wrong:
        print(harmless_line(str(wrong)), file=sys.stderr)
        return NO_TALK


async def _talk_until_told(session: Session, settings: Settings) -> int:
    """Talk until the questions end, or the program is to end: then the terminal is given back as it was."""
    this, told = asyncio.current_task(), False
    assert this is not None, "this runs in a task"

    def leave() -> None:
        nonlocal told
        told = True
        this.cancel()

    loop = asyncio.get_running_loop()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(ending, leave)
    try:
        return await talk(session, settings, _questions(), _screen())
    except asyncio.CancelledError:
        if told:
            return TOLD_TO_LEAVE
        raise


async def talk(session: Session, settings: Settings, questions: Questions, screen: Screen) -> int:
    """Answer one line after another until there are no more, and return the exit code.

    Raises `NotOpened` when the server cannot be reached at the start. Later that is told, and tried again with the next
    question. A cancel drops the socket, and with it an answer that was coming in.
    """
    dialogue = Dialogue(Conversation(settings), session, screen)
    code = ALL_ANSWERED
    try:
        await session.open()
        hint = "" if questions.alone else f" /help lists the commands. {LEAVE}"
        screen.note(f"Talking to {harmless_line(settings.model)}.{hint}")
        while True:
            try:
                line = await questions.next()
            except KeyboardInterrupt:
                screen.note(LEAVE)
                continue
            if line is None:
                return code
            typed = obey(line, dialogue.conversation)
            if typed.leave:
                return code
            if typed.say is not None:
                screen.note(typed.say)
            if typed.ask is not None:
                with questions.stoppable(dialogue.stop):
                    answered = await dialogue.ask(typed.ask)
                if not answered and questions.alone:
                    code = SOME_FAILED
    finally:
        await session.close()


def _url(args: argparse.Namespace) -> str:
    url = server_url(args.url)
    if not (args.anywhere or is_loopback(url)):
        host = urlsplit(url).hostname
        raise Misuse(f"{host} is not this machine, and all you type would go there: add --anywhere if it may.")
    return url


def _targets(text: str) -> Targets | None:
    try:
        return targets_of(text)
    except BadValue as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None


def _questions() -> Questions:
    if not sys.stdin.isatty():
        return Lines(sys.stdin.fileno())
    from prompt_toolkit.input import create_input
    from prompt_toolkit.output import create_output

    # The line one types on belongs to who types: it stays visible when the answers go to a file.
    shown = sys.stdout if sys.stdout.isatty() else sys.stderr
    return Terminal(create_input(sys.stdin), create_output(shown), history_in(history_file(os.environ)))


def _screen() -> Screen:
    console = Console()
    return TerminalScreen(console) if console.is_terminal else PlainScreen(sys.stdout, sys.stderr)
