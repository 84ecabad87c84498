"""Whatever a model writes stays text: nothing runs, nothing is loaded, and the page stays with its reader."""

import random
from collections.abc import AsyncIterator

import pytest_asyncio
from playwright.async_api import Page

from tests.web.markdown_page import open_markdown
from tests.web.scripted_server import ScriptedServer

ELEMENTS = {
    "a": {"href", "target", "rel", "referrerpolicy"},
    "blockquote": {"dir"},
    "br": set(),
    "button": {"type", "class"},
    "code": set(),
    "del": set(),
    "div": {"class", "dir", "tabindex", "role", "aria-label"},
    "em": set(),
    **{f"h{level}": {"dir"} for level in range(3, 7)},
    "hr": {"dir"},
    "li": set(),
    "ol": {"dir", "start", "class"},
    "p": {"dir", "class"},
    "pre": {"tabindex", "role", "aria-label"},
    "span": {"class"},
    "strong": set(),
    "table": set(),
    "tbody": set(),
    "td": {"class"},
    "th": {"class", "scope"},
    "thead": set(),
    "tr": set(),
    "ul": {"dir", "class"},
}
CLASSES = {"more", "code", "code-head", "code-language", "code-copy", "table", "centre", "far"}

READ = """(element) => {
  const seen = new Set();
  const addresses = [];
  for (const each of element.querySelectorAll("*")) {
    for (const { name, value } of each.attributes) {
      seen.add(`${each.localName} ${name}`);
      if (name === "class") seen.add(`class=${value}`);
      if (name === "href") addresses.push(value);
    }
    seen.add(each.localName);
  }
  return { seen: [...seen], addresses, text: element.textContent };
}"""

ATTACKS = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>\n<svg onload=alert(1)>",
    "[a](javascript:alert(1)) [b](JaVaScRiPt:alert(1)) [c](java\tscript:alert(1)) [d](java\nscript:alert(1))",
    "[a](&#106;avascript:alert(1)) [b](\u0001javascript:alert(1)) [c](  javascript:alert(1)) [d](<javascript:x>)",
    "[a](data:text/html;base64,PHNjcmlwdD4=) [b](vbscript:x) [c](file:///etc/passwd) [d](blob:x) [e](//a.b)",
    "<javascript:alert(1)> <data:text/html,x> <mailto:a@b.c> javascript:alert(1) ftp://a.b ws://a.b",
    '[x](http://"onmouseover=alert(1)) [y](<http:// onclick=x>) [z](https://\tb:"onclick=x) http://[" onclick=x',
    "![x](javascript:alert(1)) ![y](data:image/svg+xml,<svg>) [![z](javascript:a)](javascript:b)",
    "[x](https:javascript:alert(1)) [y](http:\\\\a.b) [z](https://) <https://> https:// http://@ https://user:key@a.b",
    "[x](http://\u202ec.d) <http://\u200b.c> [y](\uff4aavascript:alert(1)) [z](\u2028javascript:x)",
    "```<img src=x onerror=alert(1)>\n<img src=x onerror=alert(1)>",
    "| <img src=x onerror=alert(1)> | [a](javascript:x) |\n|---|---|\n| <b onclick=x> | `<i>` |",
]

_PIECES_IN_A_ROW = (
    "*¦**¦***¦_¦__¦~~¦`¦``¦```¦~~~¦\n¦\n\n¦\n¦ ¦  ¦    ¦\t¦\r\n¦\\¦\\*¦\\\n¦- ¦* ¦+ ¦1. ¦7) ¦\n- ¦\n  - ¦"
    "\n   1. ¦> ¦\n> ¦\n> > ¦# ¦\n## ¦ ##¦---¦\n---\n¦***\n¦===\n¦|¦ | ¦\n|¦|\n¦|---|¦\n|---|---|\n¦"
    "\n| a | b |\n|:-:|--:|\n| c |¦\\|¦:¦-|-¦[¦]¦](¦](http://a.b/c)¦](https://a.b/(c)¦(¦)¦![¦<¦>¦<http://a.b>¦"
    "http://¦https://a.b/c_d*e*¦HTTPS://A.B¦](javascript:alert(1))¦](java\tscript:x)¦<javascript:x>¦"
    '](http://a"onmouseover=x)¦](data:text/html,x)¦](vbscript:x)¦<img src=x onerror=alert(1)>¦<script>¦</p>¦'
    "<!--¦&lt;¦&#106;¦\"¦'¦!¦h¦ht¦http¦https:¦https:/¦\u202e¦\u2066¦\u200b¦\u200d¦\ufeff¦\u2028¦\u00a0¦\u0000¦"
    "\u0001¦😀¦👩\u200d👧¦é¦字¦。¦שלום¦مرحبا¦\n```py\n¦\n```\n¦\n~~~\n¦```a``` ¦\n    ¦\n\t- ¦]\n(¦\n\n\n¦**a**¦"
    "*b*¦`c`"
)
PIECES = _PIECES_IN_A_ROW.split("¦")


@pytest_asyncio.fixture(loop_scope="session")
async def markdown(page: Page, server: ScriptedServer) -> AsyncIterator[Page]:
    """A page that may ask for nothing, and in which no script may speak."""
    opened = await open_markdown(page, server)
    happened: list[str] = []
    opened.on("request", lambda request: happened.append(request.url))
    opened.on("dialog", lambda dialog: happened.append(dialog.message))
    yield opened
    assert happened == []


def check(found: dict[str, list[str]], text: str) -> None:
    allowed = (
        set(ELEMENTS)
        | {f"{name} {attribute}" for name, attributes in ELEMENTS.items() for attribute in attributes}
        | {f"class={name}" for name in CLASSES}
    )
    assert set(found["seen"]) <= allowed, text
    for address in found["addresses"]:
        assert address.startswith(("http://", "https://")), text
        assert not set(address) & set('"<>\\ \n\t\u202e\u200b'), text


def nasty(count: int) -> list[str]:
    """Texts of up to 40 of the pieces, with words of their own between them."""
    choose = random.Random(6)
    texts = []
    for number in range(count):
        pieces = choose.choices(PIECES, k=choose.randint(1, 40))
        texts.append(
            "".join(
                f"{piece}word{number}w{place}" if choose.random() < 0.3 else piece for place, piece in enumerate(pieces)
            )
        )
    return texts


async def test_known_attacks_stay_text(markdown: Page) -> None:
    found = await markdown.evaluate(f"(texts) => texts.map((text) => ({READ})(write(make(), [text]).element))", ATTACKS)
    for text, each in zip(ATTACKS, found, strict=True):
        check(each, text)
        assert each["addresses"] == [], text
    for place in (0, 1, 2, 5):
        assert found[place]["text"] == ATTACKS[place].replace("\n", "" if place else "\n")


async def test_of_any_text_come_known_elements_only_with_every_word_in_them(markdown: Page) -> None:
    texts = nasty(4000)
    found = await markdown.evaluate(f"(texts) => texts.map((text) => ({READ})(write(make(), [text]).element))", texts)
    for text, each in zip(texts, found, strict=True):
        check(each, text)
        shown = each["text"] + "".join(each["addresses"])
        lost = [word for word in text.split("word")[1:] if "word" + word.split("w")[0] not in shown]
        assert lost == [], text


async def test_an_answer_looks_the_same_in_the_end_whatever_pieces_it_came_in(markdown: Page) -> None:
    different = await markdown.evaluate(
        """([texts, seed]) => {
          let state = seed;
          const draw = () => ((state = (state * 1664525 + 1013904223) >>> 0) / 2 ** 32);
          const cut = (text, longest) => {
            const pieces = [];
            for (let at = 0; at < text.length; ) pieces.push(text.slice(at, (at += 1 + Math.floor(draw() * longest))));
            return pieces;
          };
          const whole = (pieces) => new XMLSerializer().serializeToString(write(make(), pieces).element);
          return texts.filter((text) => {
            const expected = whole([text]);
            return [1, 3, 20].some((longest) => whole(cut(text, longest)) !== expected);
          });
        }""",
        [nasty(2000), 6],
    )
    assert different == []


async def test_a_long_text_too_looks_the_same_whatever_pieces_it_came_in(markdown: Page) -> None:
    choose = random.Random(7)
    texts = [
        "word " * 6000,
        "字" * 20_000,
        "😀" * 12_000,
        "a *b [c " * 4000,
        "**" + "bold " * 3000 + "** and *" + "x" * 1990 + "* *" + "y" * 2010 + "*",
        "line\n" * 4000,
        "- item\n" * 350,
        "4) item\n" * 250,
        "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 500,
        "```\n" + "code\n" * 3000,
        "".join(choose.choices([piece for piece in PIECES if "\n" not in piece], k=9000)),
        "".join(choose.choices(PIECES, k=9000)),
    ]
    different = await markdown.evaluate(
        """(texts) => {
          const whole = (pieces) => new XMLSerializer().serializeToString(write(make(), pieces).element);
          return texts.map((text) => {
            const cuts = [/[^]{1,97}/g, /[^]{1,4001}/g];
            return cuts.every((cut) => whole(text.match(cut)) === whole([text]));
          });
        }""",
        texts,
    )
    assert different == [True] * len(texts)


async def test_no_text_keeps_the_page_busy_and_none_nests_deeply(markdown: Page) -> None:
    # Seconds would be minutes if any of these cost the square of its length: the bound is generous for slow machines.
    texts = {
        **{
            f"{mark} over and over": mark * 50_000
            for mark in ("*", "_", "~", "`", "[", "]", "![", "<", "\\", "|", "#", "-", "=", " ", "\n")
        },
        **{
            f"{mark} a word each": f"{mark}a " * 30_000
            for mark in ("*", "**", "_", "`", "[", "~~", "<http://", "http://a", "[](a", "![")
        },
        "code of every length": " ".join("`" * length for length in range(300)),
        "half links": "[a](http://b" * 20_000,
        "links in brackets": "[" * 2000 + "[a](http://b.c)" * 4000,
        "opened and closed": "*a _b **c " * 5000 + "** _ *" * 5000,
        "quotes": ">" * 10_000,
        "quotes on lines": "> " * 10_000 + "\n" + ">\n" * 10_000,
        "lists in lists": "".join("  " * depth + "- x\n" for depth in range(300)),
        "lists on a line": "- " * 3000 + "x",
        "a line without spaces": "x" * 50_000,
        "an address": "https://a.b/" + "x" * 50_000,
        "many rows": "| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 10_000,
        "many columns": "|a" * 1999 + "|\n" + "|-" * 1999 + "|\n" + "||\n" * 5000,
        "a megabyte": "Lorem *ipsum* dolor `sit` amet.\n\n" * 31_000,
        "a megabyte in one line": "Lorem *ipsum* dolor [sit] amet. " * 31_000,
        "a fence never closed": "```\n" + "code " * 50_000,
        "a fence of spaces": "```\n" + " " * 50_000,
    }
    for name, text in texts.items():
        found = await markdown.evaluate(
            f"""(text) => {{
              const markdown = make();
              markdown.element.remove();
              const begun = performance.now();
              markdown.append(text.slice(0, text.length - 50));
              for (const last of ["", ...text.slice(-50)]) {{
                markdown.append(last);
                drawAll(markdown);
              }}
              write(markdown, []);
              const took = performance.now() - begun;
              let depth = 0;
              for (const each of markdown.element.querySelectorAll("*")) {{
                let up = 0;
                for (let node = each; node !== markdown.element; node = node.parentElement) up += 1;
                depth = Math.max(depth, up);
              }}
              const {{ seen, addresses }} = ({READ})(markdown.element);
              const nodes = markdown.element.querySelectorAll("*").length;
              return {{ took, depth, seen, addresses, nodes }};
            }}""",
            text,
        )
        check(found, name)
        assert found["took"] < 5000, name
        assert found["depth"] <= 40, name
        assert found["nodes"] <= len(text) + 100, name
