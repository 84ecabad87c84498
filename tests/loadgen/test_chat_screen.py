import asyncio
import io
import re

import pytest
from rich.console import Console

from loadgen import chat_screen
from loadgen.chat_markdown import Rendered, finished
from loadgen.chat_screen import PlainScreen, TerminalScreen
from loadgen.chat_wire import harmless
from tests.loadgen.chat_person import Written

ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def terminal(out: io.StringIO, *, height: int = 10) -> TerminalScreen:
    return TerminalScreen(Console(file=out, force_terminal=True, color_system="truecolor", width=60, height=height))


def plain(written: str) -> str:
    return "\n".join(line.rstrip() for line in ESCAPE.sub("", written).replace("\r", "\n").split("\n"))


async def test_finished_blocks_are_written_for_good_while_the_last_is_still_drawn() -> None:
    out = Written()
    screen = terminal(out)
    with screen.answering():
        screen.text("One.\n\nTwo.\n\nThree\n")
        assert "One.\n\nTwo.\n" in plain(out.getvalue())
        assert "Three" not in plain(out.getvalue())
        await out.shows("Three")
        screen.text("times.")
    assert plain(out.getvalue()).endswith("\n\nThree times.\n")


async def test_of_a_block_longer_than_the_screen_nothing_is_lost() -> None:
    out = Written()
    screen = terminal(out)
    items = [f" • item {number}" for number in range(100)]
    with screen.answering():
        screen.text("".join(f"- item {number}\n" for number in range(100)))
        await out.shows("item 99")
        drawn = plain(out.getvalue())
        assert "item 50" not in drawn, "it does not fit, and is not drawn"
    assert "\n".join(items) in plain(out.getvalue())


async def test_where_the_question_stands_is_below_until_the_answer_has_ended() -> None:
    out = Written()
    screen = terminal(out)
    with screen.answering():
        screen.standing("next in the queue")
        await out.shows("next in the queue")
        screen.text("Hello")
        await out.shows("writing")
    screen.ended("End of answer")
    assert plain(out.getvalue()).endswith("Hello\nEnd of answer\n\n")


async def test_the_spinner_turns_while_one_waits() -> None:
    out = Written()
    screen = terminal(out)
    with screen.answering():
        for frame in "\u280b\u2819\u2839":  # the first three of rich's dots
            await out.shows(frame)


async def test_the_cursor_comes_back_when_an_answer_breaks_off() -> None:
    out = Written()
    screen = terminal(out)
    try:
        with screen.answering():
            screen.text("Half")
            raise asyncio.CancelledError
    except asyncio.CancelledError:
        pass
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")
    assert "Half" in out.getvalue()


def test_plain_text_ends_with_a_line_and_holds_no_control_characters() -> None:
    out, aside = io.StringIO(), io.StringIO()
    screen = PlainScreen(out, aside)
    with screen.answering():
        screen.standing("waiting")
        screen.text("a\x1b[2J\r\n")
        screen.text("\x9b")
        screen.text("b\tc")
    with screen.answering():
        screen.text("d\n")
    screen.problem("no\x07")
    assert out.getvalue() == "a[2J\nb\tc\nd\n"
    assert aside.getvalue() == "no\n"


async def test_a_long_block_is_not_looked_through_for_each_of_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []

    def counted(text: str) -> int:
        parsed.append(len(text))
        return finished(text)

    monkeypatch.setattr(chat_screen, "finished", counted)
    screen = terminal(Written())
    lines = [f"line {number} of a block that is still being written\n" for number in range(4000)]
    with screen.answering():
        screen.text("```\n")
        for line in lines:
            screen.text(line)
        screen.text("```\n\nAnd then.\n\nThe end.")
    assert sum(parsed) < 12 * sum(map(len, lines))


def test_one_endless_line_is_drawn_from_its_end_only() -> None:
    out = io.StringIO()
    Console(file=out, width=60, height=10).print(Rendered("word " * 100_000 + "last", last_lines=5))
    assert out.getvalue().rstrip().endswith("last")
    assert out.getvalue().count("word") < 100


def test_what_would_disguise_a_text_is_left_out_and_what_joins_an_emoji_stays() -> None:
    assert harmless("pay \u202eevil\u202c \u2066x\u2069 a\u200bb\xadc\ufeff") == "pay evil x abc"
    assert harmless("\U0001f469\u200d\U0001f52c \u2764\ufe0f") == "\U0001f469\u200d\U0001f52c \u2764\ufe0f"
