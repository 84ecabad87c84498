"""How the Markdown of an answer looks, as a whole and while it grows."""

import os
from pathlib import Path

import pytest_asyncio
from playwright.async_api import Page, expect

from tests.web.markdown_page import open_markdown
from tests.web.scripted_server import ScriptedServer

TEXT_AND_WHAT_IT_BECOMES = {
    # --- inside a paragraph ---
    "*a* **b** ***c*** ~~d~~ _e_ __f__": (
        "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del> <em>e</em> <strong>f</strong></p>"
    ),
    "**a *b* c** and *d **e***": "<p><strong>a <em>b</em> c</strong> and <em>d <strong>e</strong></em></p>",
    "2 * 3 * 4, snake_case_name, ~5 and ~6, **open": "<p>2 * 3 * 4, snake_case_name, ~5 and ~6, **open</p>",
    "**重要：**这是": "<p><strong>重要：</strong>这是</p>",
    "a\nb  \nc\\\nd": "<p>a<br>b  <br>c<br>d</p>",
    "\\*a\\* \\# \\[b\\](c) \\d &amp; &lt; <b>x</b>": (
        "<p>*a* # [b](c) \\d &amp;amp; &amp;lt; &lt;b&gt;x&lt;/b&gt;</p>"
    ),
    "`a*b*` `` ` `` `open": "<p><code>a*b*</code> <code>`</code> `open</p>",
    "*a `b* c`": "<p>*a <code>b* c</code></p>",
    "****a**** and ********": "<p>****a**** and ********</p>",
    # --- links ---
    "[a *b*](https://c.example/d_(e)?f=1&g 'h')": (
        '<p><a href="https://c.example/d_(e)?f=1&amp;g">a <em>b</em></a></p>'
    ),
    "See https://a.example/b_c_d?e=f. (http://g.example) <https://h.example> xhttps://i.example": (
        '<p>See <a href="https://a.example/b_c_d?e=f">https://a.example/b_c_d?e=f</a>. ('
        '<a href="http://g.example/">http://g.example</a>) '
        '<a href="https://h.example/">https://h.example</a> xhttps://i.example</p>'
    ),
    "请看https://a.example/b。**https://c.example**": (
        '<p>请看https://a.example/b。<strong><a href="https://c.example/">https://c.example</a></strong></p>'
    ),
    "[https://a.example](https://b.example) [](https://c.example)": (
        '<p><a href="https://b.example/">https://a.example (b.example)</a> <a href="https://c.example/">https://c.example/</a></p>'
    ),
    "![a picture](https://a.example/b.png)": '<p><a href="https://a.example/b.png">a picture</a></p>',
    "[a](javascript:alert(1)) [b](/c) [d][e] [f] [g](https://user@h.example)": (
        "<p>[a](javascript:alert(1)) [b](/c) [d][e] [f] [g](https://user@h.example)</p>"
    ),
    "[a [b](https://c.example)](https://d.example)": (
        '<p>[a <a href="https://c.example/">b</a>](<a href="https://d.example/">https://d.example</a>)</p>'
    ),
    # --- blocks ---
    "# a\n## b ##\n### C#\n###### d\n####### e\n#f": (
        "<h3>a</h3><h4>b</h4><h5>C#</h5><h6>d</h6><p>####### e<br>#f</p>"
    ),
    "## a\n# b\n#### c\n## d": "<h3>a</h3><h3>b</h3><h4>c</h4><h4>d</h4>",
    "a\n\n\nb\n---\nc\n***\n* * *": "<p>a</p><p>b</p><hr><p>c</p><hr><hr>",
    "- a\n- b\n\n* c\n+ [ ] d": "<ul><li><p>a</p></li><li><p>b</p></li><li><p>c</p></li><li><p>[ ] d</p></li></ul>",
    "- a\n  - b\n    - c\n- d": (
        "<ul><li><p>a</p><ul><li><p>b</p><ul><li><p>c</p></li></ul></li></ul></li><li><p>d</p></li></ul>"
    ),
    "1. a\n   more\n\n   second\n2. b\n   - c\n10. d": (
        "<ol><li><p>a<br>more</p><p>second</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li><li><p>d</p></li></ol>"
    ),
    "3) a\n4) b\n\nand\n\n5) c": (
        '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol><p>and</p><ol start="5"><li><p>c</p></li></ol>'
    ),
    "In\n1998. It was\n-\n1. a": "<p>In<br>1998. It was<br>-</p><ol><li><p>a</p></li></ol>",
    "> a\nb\n> > c\n\nd": "<blockquote><p>a<br>b</p><blockquote><p>c</p></blockquote></blockquote><p>d</p>",
    "- > a\n  > - b\n-": "<ul><li><blockquote><p>a</p><ul><li><p>b</p></li></ul></blockquote></li><li></li></ul>",
    # --- tables ---
    "| a | b | c |\n|---|:-:|--:|\n| 1 | `2` | *3* |\n| 4 \\| 5 |\n| 6 | 7 | 8 | 9 |\nd": (
        '<div class="table"><table><thead><tr><th>a</th><th class="centre">b</th>'
        '<th class="far">c</th></tr></thead><tbody><tr><td>1</td><td class="centre">'
        '<code>2</code></td><td class="far"><em>3</em></td></tr><tr><td>4 | 5</td></tr><tr><td>6</td>'
        '<td class="centre">7</td><td class="far">8 | 9</td></tr></tbody></table></div><p>d</p>'
    ),
    "x\n| a |\n|---|": (
        '<p>x</p><div class="table"><table><thead><tr><th>a</th></tr></thead><tbody></tbody></table></div>'
    ),
    "a | b\n-|-\n1 | 2\n\nc": (
        '<div class="table"><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td>'
        "<td>2</td></tr></tbody></table></div><p>c</p>"
    ),
    "|a| is no *table*\n|nor| this\n\n| b | c |\n|---|": (
        "<p>|a| is no <em>table</em><br>|nor| this</p><p>| b | c |<br>|---|</p>"
    ),
}

CODE = {
    "```py\na = 1\n\n  b\n```\nc": ("py", "a = 1\n\n  b", "<p>c</p>"),
    "~~~~ sh  echo \n```\n~~~\n~~~~~": ("sh  echo", "```\n~~~", ""),
    "```\n<b>*a*</b>\n\tb": ("", "<b>*a*</b>\n\tb", ""),
    "- ```c\n  int a;\nint b;\n    int c;\n  ```": ("c", "int a;\nint b;\n  int c;", ""),
    "> ```\n> a\nb": ("", "a", "<p>b</p>"),
}


@pytest_asyncio.fixture(loop_scope="session")
async def markdown(page: Page, server: ScriptedServer) -> Page:
    return await open_markdown(page, server)


async def test_what_is_written_becomes_these_blocks_and_no_others(markdown: Page) -> None:
    texts = list(TEXT_AND_WHAT_IT_BECOMES)
    seen = await markdown.evaluate("(texts) => texts.map((text) => markup(write(make(), [text]).element))", texts)
    assert dict(zip(texts, seen, strict=True)) == TEXT_AND_WHAT_IT_BECOMES


async def test_code_is_shown_as_it_was_written_under_the_name_of_its_language(markdown: Page) -> None:
    read = """(texts) => texts.map((text) => {
      const { element } = write(make(), [text]);
      const [code] = element.querySelectorAll(".code");
      const found = [code.querySelector(".code-language").textContent, code.querySelector("code").textContent];
      code.closest(".markdown > div > *").remove();
      return [...found, markup(element)];
    })"""
    seen = await markdown.evaluate(read, list(CODE))
    assert dict(zip(CODE, map(tuple, seen), strict=True)) == CODE


async def test_a_link_tells_the_other_side_nothing_and_opens_beside_the_page(markdown: Page) -> None:
    await markdown.evaluate("write(make(), ['[a](https://b.example) https://c.example'])")
    for link in await markdown.get_by_role("link").all():
        await expect(link).to_have_attribute("rel", "noopener noreferrer nofollow ugc")
        await expect(link).to_have_attribute("referrerpolicy", "no-referrer")
        await expect(link).to_have_attribute("target", "_blank")


# --- while it grows ---------------------------------------------------------------------------------------------------


async def looks(page: Page, text: str, look: str) -> list[str]:
    """How the look of an answer changes as `text` comes a character at a time; `look` is a function of its element."""
    script = """(text) => {
      const markdown = make();
      const seen = [];
      for (const character of text) {
        markdown.append(character);
        drawAll(markdown);
        const now = (LOOK)(markdown.element);
        if (seen.at(-1) !== now) seen.push(now);
      }
      return seen;
    }"""
    found: list[str] = await page.evaluate(script.replace("LOOK", look), text)
    return found


LAST_BLOCK = "(element) => [...element.querySelectorAll(':scope > div > *')].at(-1)?.tagName ?? ''"
FIRST_PARAGRAPH = "(element) => element.querySelector('p')?.innerHTML ?? ''"


async def test_a_block_looks_from_its_beginning_like_what_it_will_be(markdown: Page) -> None:
    for text, blocks in {
        "```py\na = `1`\n```\n": ["DIV"],
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n": ["DIV"],
        "a | b\n--|--\n1 | 2\n": ["P", "DIV"],
        "|a| is no table\nnor this": ["DIV", "P"],
        "```a``` is code": ["DIV", "P"],
        "- a\n- b": ["UL"],
        "1. a\n2. b": ["OL"],
        "**a** b": ["P"],
        "---\n": ["HR"],
        "## a": ["H3"],
    }.items():
        assert [look for look in await looks(markdown, text, LAST_BLOCK) if look] == blocks


async def test_emphasis_is_shown_as_written_until_it_closes_and_then_as_what_it_is(markdown: Page) -> None:
    assert (
        await looks(markdown, "x **bo** `c` y", FIRST_PARAGRAPH)
        == [
            "",
            *("x", "x ", "x *", "x **", "x **b", "x **bo", "x **bo*", "x **bo**"),
            "x <strong>bo</strong> ",
            *(f"x <strong>bo</strong> {code}" for code in ("`", "`c", "`c`", "<code>c</code> ", "<code>c</code> y")),
        ][1:]
    )


async def test_a_fence_is_a_code_block_from_its_third_mark_on(markdown: Page) -> None:
    states = """(pieces) => {
      const markdown = make();
      return pieces.map((piece) => {
        markdown.append(piece);
        drawAll(markdown);
        return markdown.element.innerText;
      });
    }"""
    seen = await markdown.evaluate(states, ["Look:\n", "``", "`", "p", "y", "\n", "a", " = 1\n", "`", "``"])
    assert [text.split("\n")[-1] for text in seen] == [
        "Look:", "Look:", "Copy", "Copy", "Copy", "Copy", "a", "a = 1", "a = 1", "a = 1",
    ]  # fmt: skip
    assert "`" not in "".join(seen)


async def test_what_is_settled_is_not_touched_again(markdown: Page) -> None:
    text = (
        "# A\n\nWith **bold** and [link](https://a.example).\n\n- one\n- two\n\n```py\na = 1\nb = 2\n```\n\n"
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 3 | 4 |\n\n> quote\n\nThe end, *so far*."
    )
    touched = await markdown.evaluate(
        """(text) => {
          const markdown = make();
          const watcher = new MutationObserver(() => {});
          watcher.observe(markdown.element, { subtree: true, childList: true, characterData: true, attributes: true });
          const touched = [];
          for (const character of text) {
            const settled = [...markdown.element.querySelectorAll(":scope > div > *")].slice(0, -1);
            markdown.append(character);
            drawAll(markdown);
            const now = [...markdown.element.querySelectorAll(":scope > div > *")];
            if (settled.some((block, index) => now[index] !== block)) touched.push(`moved at ${character}`);
            for (const { target } of watcher.takeRecords()) {
              if (settled.some((block) => block.contains(target))) touched.push(target.nodeName);
            }
          }
          return touched;
        }""",
        text,
    )
    assert touched == []


async def test_a_selection_in_the_text_that_still_grows_stays(markdown: Page) -> None:
    for before, after in (("Some words ", "and more of them. "), ("```\nSome words\n", "and more of them\n")):
        kept = await markdown.evaluate(
            """([before, after]) => {
              const markdown = make();
              markdown.append(before);
              drawAll(markdown);
              const walker = document.createTreeWalker(markdown.element, NodeFilter.SHOW_TEXT);
              while (walker.nextNode() && !walker.currentNode.data.startsWith("Some"));
              const text = walker.currentNode;
              getSelection().setBaseAndExtent(text, 0, text, 4);
              for (let time = 0; time < 50; time++) {
                markdown.append(after);
                drawAll(markdown);
              }
              return [getSelection().toString(), text.isConnected, text.length > 800];
            }""",
            [before, after],
        )
        assert kept == ["Some", True, True]


async def test_the_text_is_kept_as_it_came_and_clear_forgets_it(markdown: Page) -> None:
    seen = await markdown.evaluate(
        """() => {
          const markdown = write(make(), ["a\\r", "\\nb *c*\\n"]);
          const before = [markdown.text, markup(markdown.element), markdown.draw()];
          markdown.clear();
          const between = [markdown.text, markup(markdown.element), markdown.draw()];
          write(markdown, ["d"]);
          return [before, between, [markdown.text, markup(markdown.element), markdown.draw()]];
        }"""
    )
    assert seen == [["a\r\nb *c*\n", "<p>a<br>b <em>c</em></p>", True], ["", "", True], ["d", "<p>d</p>", True]]


# --- buttons, keyboard, directions, looks -----------------------------------------------------------------------------


async def test_the_copy_button_gives_the_code_and_where_to_say_so(markdown: Page) -> None:
    await markdown.evaluate("window.shown = write(make(), ['```py\\na = 1\\n  b\\n```\\n'])")
    await markdown.get_by_role("button", name="Copy").click()
    assert await markdown.evaluate("shown.copied") == [["a = 1\n  b", "code", "Copy"]]


async def test_what_is_too_wide_scrolls_by_itself_and_can_be_reached_by_keyboard(markdown: Page) -> None:
    await markdown.set_viewport_size({"width": 360, "height": 640})
    wide = "```py\n" + "x" * 200 + "\n```\n\n| " + " | ".join(["heading" * 2] * 3) + " |\n|" + "---|" * 3
    narrow = "\n\n```\nshort\n```\n\n| a |\n|---|\n| b |\n\n" + "y" * 50_000
    await markdown.evaluate("(text) => void write(make(), [text])", wide + narrow)
    code = markdown.get_by_role("group", name="Code, py", exact=True)
    table = markdown.get_by_role("group", name="Table", exact=True)
    await expect(code).to_have_attribute("tabindex", "0")
    await expect(table).to_have_attribute("tabindex", "0")
    assert await markdown.locator("[tabindex]").count() == 2
    assert await markdown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    await markdown.set_viewport_size({"width": 1200, "height": 640})
    await expect(table).to_have_count(0)


async def test_a_direction_is_found_by_each_block_and_cannot_be_forced_on_another(markdown: Page) -> None:
    hebrew = "שלום"
    blocks = [f"{hebrew} a", "abc", f"- {hebrew}\n- b", "x \u202erst", "def", "[\u202eghi](https://a.example) jkl"]
    text = "\n\n".join([*blocks, f"```\nmno {hebrew}\n```"])
    await markdown.evaluate("(text) => void write(make(), [text])", text)
    directions = await markdown.evaluate(
        "[...document.querySelectorAll('.markdown > div > *')].map((block) => getComputedStyle(block).direction)"
    )
    assert directions == ["rtl", "ltr", "rtl", "ltr", "ltr", "ltr", "ltr"]
    runs_left_to_right = """(word) => {
      const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walker.nextNode() && !walker.currentNode.data.includes(word));
      const at = walker.currentNode.data.indexOf(word);
      const left = (offset) => {
        const range = document.createRange();
        range.setStart(walker.currentNode, at + offset);
        range.setEnd(walker.currentNode, at + offset + 1);
        return range.getBoundingClientRect().left;
      };
      return left(0) < left(2);
    }"""
    assert {
        word: await markdown.evaluate(runs_left_to_right, word) for word in ("rst", "def", "ghi", "jkl", "mno")
    } == {
        "rst": False,
        "def": True,
        "ghi": False,
        "jkl": True,
        "mno": True,
    }


SAMPLE = """# Which laptop suits you?

For **travel** I would take the *Lark 13*: it weighs `1.1 kg` and runs for 14 hours. See
[the list](https://shop.example/laptops) or https://shop.example/faq.

## What to look for

1. Weight, if you carry it every day
   - under 1.3 kg is light
   - over 2 kg stays on the desk
2. ~~Colour~~ Keyboard

> A good keyboard outlives two batteries.

| Model | Weight | Hours | Price |
|:------|-------:|:-----:|------:|
| Lark 13 | 1.1 kg | 14 | € 1,190 |
| Heron 15 | 1.8 kg | 9 | € 980 |

```py
def lightest(laptops, budget):
    \"\"\"The lightest that can be paid.\"\"\"
    return min((each for each in laptops if each.price <= budget), key=lambda each: each.weight_kg)
```

---

שלום, זה *מודגש* עם `code` בפנים.

- [ ] Ask for the *student price*
- [x] Compare
"""


def picture(tmp_path: Path, name: str) -> Path:
    folder = Path(os.environ.get("ROTA_TEST_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"markdown-{name}.png"


async def test_pictures_of_an_answer_fit_their_screens(markdown: Page, tmp_path: Path) -> None:
    await markdown.evaluate("(text) => void write(make(), [text])", SAMPLE)
    for name, width in (("wide", 900), ("phone", 360)):
        await markdown.set_viewport_size({"width": width, "height": 700})
        await markdown.screenshot(path=picture(tmp_path, name), full_page=True)
        assert await markdown.evaluate("document.documentElement.scrollWidth <= innerWidth")
