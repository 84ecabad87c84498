"""The real page in a real browser, opposite the real server."""

from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect

from tests.end_to_end.server import Server
from tests.web.conftest import browser, chromium, watched_page

__all__ = ["browser", "chromium"]


@pytest.fixture
async def page(browser: Browser, real: Server) -> AsyncIterator[Page]:
    async with watched_page(browser) as page:
        page.set_default_timeout(30_000)
        await page.goto(real.http)
        await expect(page.locator("#state")).to_have_text("Your turn")
        yield page


async def ask(page: Page, question: str) -> None:
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")


async def length_of_answer(page: Page) -> int:
    return len(await page.locator(".answer").last.text_content() or "")


async def test_an_answer_grows_can_be_stopped_and_the_conversation_goes_on(page: Page, real: Server) -> None:
    await expect(page.locator("#model")).to_have_text(real.model)
    await ask(page, "Write a long story about a lighthouse and the sea.")
    answer = page.locator(".answer").last
    await expect(answer).not_to_be_empty()
    first = await length_of_answer(page)
    await page.wait_for_function(
        "least => document.querySelector('.answer').textContent.length > least", arg=first + 20
    )
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".end-text").last).to_have_text("Stopped by you.")
    await real.empty()
    stopped = await answer.text_content()
    await ask(page, "Say only the word yes.")
    await expect(page.locator(".answer")).to_have_count(2)
    await expect(page.locator(".answer").last).not_to_be_empty()
    await page.keyboard.press("Escape")
    await expect(page.locator("#state")).to_have_text("Your turn")
    assert await page.locator(".answer").first.text_content() == stopped
    # The second question came with the whole conversation, the stopped answer included.
    figures = [line["input_tokens"] for line in real.logged("request.finished")[-2:]]
    assert figures[1] > figures[0] + 10


async def test_closing_the_page_gives_every_block_back(page: Page, real: Server) -> None:
    await ask(page, "Write a long story about a lighthouse and the sea.")
    await expect(page.locator(".answer").last).not_to_be_empty()
    assert (await real.metrics()).blocks["used"] > 0
    before = await real.metrics()
    await real.lets_go_in_time(before, page.close)
    assert real.logged("request.finished")[-1]["finish_reason"] == "cancelled"
