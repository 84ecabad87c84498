import asyncio
import io
import re

from rich.console import Console

from loadgen.chat_screen import PlainScreen, TerminalScreen
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
