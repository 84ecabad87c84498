"""20,000 tokens as fast as a socket brings them, and what a model may write to break the page."""

import random

import pytest
from playwright.async_api import Browser, Page, expect

from tests.web.conftest import Chat, watched_page
from tests.web.full_speed import KINDS, stream
from tests.web.scripted_server import ScriptedServer
from tests.web.tasks import TASKS, longest_task_ms

TRIES = 3


@pytest.mark.alone
@pytest.mark.parametrize("kind", KINDS)
async def test_20000_tokens_at_full_speed_make_no_long_task_and_leave_little(
    browser: Browser, server: ScriptedServer, kind: str
) -> None:
    """Of a busy machine's page the heap shrinks late: one of three tries is enough to show how small it gets."""
    tries = []
    for _ in range(TRIES):
        async with watched_page(browser) as page:
            tries.append(await stream(browser, page, server, KINDS[kind]()))
        if tries[-1].longest_task_ms < 50 and tries[-1].kept_bytes_a_token < 400:
            break
    assert min(figures.longest_task_ms for figures in tries) < 50, tries
    assert min(figures.kept_bytes_a_token for figures in tries) < 1_500, tries


HOSTILE = {
    "markup": '<img src=x onerror="window.pwned = 1"><script>window.pwned = 1</script><svg onload=window.pwned=1>',
    "links": "[a](javascript:window.pwned=1) [b](JaVa\tScRiPt:window.pwned=1) <javascript:window.pwned=1> "
    "[c](data:text/html,<script>window.pwned=1</script>) ![d](http://127.0.0.1:9/d.png)",
    "a long line": "x" * 50_000,
    "lists in lists": "".join(f"{'  ' * depth}- {depth}\n" for depth in range(300)),
    "quotes in quotes": ">" * 5_000 + " deep",
    "an open fence": "```html\n<img src=x onerror='window.pwned = 1'>\n" * 50,
    "overrides": "\u202egnp.exe\u202c and [\u202emoc.live](https://example.org) `\u2066code\u2069`",
    "stars": "*" * 20_000 + "a" + "_" * 20_000,
    "brackets": "[" * 20_000 + "](" * 5_000,
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_whatever_a_model_writes_is_shown_and_nothing_of_it_runs(browser: Browser, chat: Chat, name: str) -> None:
    page = chat.page
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await chat.ask("Break it.")
    answer = await chat.socket.asked()
    await answer.begin("Here: ")
    await browser.start_tracing(page=page, categories=TASKS)
    cut = random.Random(name)
    text = HOSTILE[name] + "\n\nthe-end"
    while text:
        size = cut.randint(1, 400)
        await answer.write(text[:size])
        text = text[size:]
    await answer.complete()
    await expect(page.locator(".answer")).to_contain_text("the-end")
    await expect(page.locator(".copy")).to_be_visible()
    assert longest_task_ms(await browser.stop_tracing()) < 500
    assert await page.evaluate("window.pwned") is None
    assert set(requests) <= {f"{chat.server.origin}/favicon.svg"}, "the browser asks for it when it likes"
    hrefs = await page.locator(".answer a").evaluate_all("links => links.map(link => link.protocol)")
    assert set(hrefs) <= {"http:", "https:"}
    await expect(page.locator(".answer").locator("script, img, svg:not(.icon), iframe")).to_have_count(0)
    await expect_responsive(page)


async def expect_responsive(page: Page) -> None:
    """It takes the next question, and is not too wide."""
    await page.get_by_label("Your message").fill("Still there?")
    await expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
