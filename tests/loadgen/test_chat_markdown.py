import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from loadgen.chat_markdown import Rendered, finished

ESCAPE = re.compile(r"\x1b\[[\d;]*m")
"""What rich itself writes: colours."""


def drawn(text: str, last_lines: int | None = None, *, width: int = 40) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=width)
    console.print(Rendered(text, last_lines), end="")
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain(text: str, last_lines: int | None = None) -> list[str]:
    return [line.rstrip() for line in ESCAPE.sub("", drawn(text, last_lines)).splitlines()]


# -- which blocks are finished


@pytest.mark.parametrize(
    ("done", "open_"),
    [
        ("", ""),
        ("", "One"),
        ("", "One\n\n"),
        ("", "# One\n\nTw"),
        ("# One\n\n", "Two\n"),
        ("One\n\n", "Two\n\n"),
        ("One\n\n- a\n- b\n\n", "Three\n"),
        ("", "- a\n\n- b\n"),
        ("", "1. a\n\n2"),
        ("", "```\nOne\n\nTwo\n\n# Three\n"),
        ("```\nOne\n```\n", "Two\n"),
        ("One\n", "- a\n- b\n"),
        ("", "| a |\n|---|\n| 1 |\n"),
        ("One\n\n", "> a\n>\n> b\n"),
    ],
)
def test_all_but_the_last_block_is_finished(done: str, open_: str) -> None:
    assert finished(done + open_) == len(done)


@given(st.text(alphabet="ab \n\n#->`1.|*_[]():", max_size=200), st.data())
def test_what_is_finished_stays_finished(text: str, data: st.DataObject) -> None:
    """Block by block as it grows, or all at once: the same text is printed, whole and in order."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    printed, rest, at = "", "", 0
    for cut in (*cuts, len(text)):
        rest += text[at:cut]
        at = cut
        done = finished(rest)
        printed, rest = printed + rest[:done], rest[done:]
    assert printed + rest == text


# -- how it is drawn


def test_a_block_is_drawn_without_blanks_around_it() -> None:
    assert plain("\n\nOne *two*.\n\n") == ["One two."]
    assert plain("- a\n- b\n\n") == [" • a", " • b"]
    assert drawn("word\n") == "word\n"


def test_of_a_block_longer_than_the_screen_the_end_is_drawn() -> None:
    listed = "".join(f"- item {number}\n" for number in range(1000))
    assert plain(listed, last_lines=3) == [f" • item {number}" for number in (997, 998, 999)]
    code = "```\n" + "".join(f"line {number}\n" for number in range(1000))
    assert [line.strip() for line in plain(code, last_lines=3)] == ["line 998", "line 999", ""]


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;title\x07 and \x1b[2J",
        "\x9b2J \x9d0;title\x9c",
        "<http://x/%1b]0;title%07>",
        "<http://x/%C2%9B2J>",
        "[a](http://x/%1b[2J) ![b](http://y/%1b[2J)",
        "&#27;[2J &#x9b;2J &#13; &#8;",
        "```\x1b[2J\n\x1b[2J\n```",
        "`\x1b[2J`",
        "a\rb\bc\x7f",
    ],
)
def test_no_text_can_speak_to_the_terminal(text: str) -> None:
    left = ESCAPE.sub("", drawn(text, width=200))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", left)


@given(st.text(alphabet=st.sampled_from("\x1b\x07\x9b\r%1b&#27;[]()<>!`*_\n-| a:/h"), max_size=80))
def test_nor_can_any_other(text: str) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", ESCAPE.sub("", drawn(text)))


def test_a_link_says_where_it_leads() -> None:
    assert plain("[home](http://x.org/)") == ["home (http://x.org/)"]
