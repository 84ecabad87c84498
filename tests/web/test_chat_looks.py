"""How `/` looks: light, dark and on a phone. Leaves pictures where `ROTA_TEST_ARTEFACTS` says."""

import os
import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from actors.pages import read_pages
from tests.web.conftest import Chat
from tests.web.reading import expect_no_sideways_scroll
from tests.web.scripted_server import ScriptedServer

ANSWER = """Two of them stand out:

1. **Aspire 5**: light, and *quiet*
2. `IdeaPad`, for code

| Model | Memory | Price |
|:--|--:|--:|
| Aspire 5 | 16 GB | ₹52,990 |
| IdeaPad | 8 GB | ₹47,500 |

```python
best = min(laptops, key=price)
```

> Prices change: see https://example.org.
"""


def artefact(tmp_path: Path, name: str) -> Path:
    folder = Path(os.environ.get("ROTA_TEST_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"chat-{name}.png"


async def seen(page: Page, server: ScriptedServer, picture: Path) -> None:
    await page.goto(server.origin)
    chat = Chat(page, server, await server.socket())
    await chat.ask("Which laptop should I buy for college?")
    answer = await chat.socket.asked()
    await answer.begin(ANSWER)
    await answer.complete()
    await expect(page.locator(".answer table td")).to_have_count(6)
    columns = (
        await page.locator(".answer tbody tr")
        .first.locator("td")
        .evaluate_all("cells => cells.map((cell) => [cell.offsetTop, getComputedStyle(cell).textAlign])")
    )
    assert columns == [[columns[0][0], "start"], [columns[0][0], "end"], [columns[0][0], "end"]]  # in one row
    await chat.ask("And for video?")
    await (await chat.socket.asked()).begin("For video, look for")
    await expect(page.locator(".answer").last).to_have_text("For video, look for")
    await expect_no_sideways_scroll(page)
    assert len(await page.screenshot(path=picture)) > 10_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_wide_screen_in_the_light_and_in_the_dark(
    page: Page, server: ScriptedServer, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    await page.emulate_media(color_scheme=scheme)
    await page.set_viewport_size({"width": 1200, "height": 900})
    await seen(page, server, artefact(tmp_path, scheme))
    background = await page.locator("rota-chat").evaluate("widget => getComputedStyle(widget).backgroundColor")
    assert background == ("rgb(248, 248, 245)" if scheme == "light" else "rgb(19, 21, 28)")


async def test_a_phone(phone: Page, server: ScriptedServer, tmp_path: Path) -> None:
    await seen(phone, server, artefact(tmp_path, "phone"))


async def test_every_rule_of_the_sheets_is_understood(page: Page, server: ScriptedServer) -> None:
    """A browser drops what it cannot read, without a word: what it kept is compared with what was sent."""
    await page.goto(server.origin)
    await server.socket()
    kept = await page.locator("rota-chat").evaluate(
        """widget => widget.shadowRoot.adoptedStyleSheets.flatMap((sheet) => {
            const rules = (list) =>
                [...list].flatMap((rule) => [rule.cssText.split("{")[0], ...rules(rule.cssRules ?? [])]);
            return rules(sheet.cssRules);
        }).join(" ")"""
    )
    for name in (".remove", ".round", ".edit", ".facts", ".meter", ".talk", ".latest", ".code-copy", ".table", "th"):
        assert name in kept
    script = read_pages()["/rota-chat.js"].body.decode()
    classes = set(re.findall(r"^(?:[^{}]*[ ,>(])?\.([a-z][a-z-]+)(?=[^{};]*\{)", script, re.MULTILINE))
    assert len(classes) > 20
    assert {name for name in classes if f".{name}" not in kept} == set()
