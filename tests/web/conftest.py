"""The page in a real browser, opposite a scripted server.

Each test has a browser of its own, because pytest-asyncio gives it a loop of its own and playwright's objects belong to
a loop.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from tests.web.scripted_server import ScriptedServer, Socket, running

CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture
def chromium() -> Path:
    if not CHROMIUM.exists():
        sentence = f"These tests look at the page in {CHROMIUM}, which is missing: apt-get install chromium"
        pytest.fail(sentence, pytrace=False)
    return CHROMIUM


@pytest.fixture
async def browser(chromium: Path) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with running() as server:
        yield server


@asynccontextmanager
async def watched_page(browser: Browser, **options: Any) -> AsyncIterator[Page]:
    """A page on which nothing may go wrong unseen: an uncaught error or a breach of the content policy is a failure."""
    page = await browser.new_page(**options)
    page.set_default_timeout(10_000)
    problems: list[str] = []

    def hear(message: ConsoleMessage) -> None:
        # That a server was away or asked for a key is what some tests are about; the browser logs it all the same.
        if (
            message.type == "error"
            and "Failed to load resource" not in message.text
            and "WebSocket" not in message.text
        ):
            problems.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    await page.close()
    assert problems == []


@pytest.fixture
async def page(browser: Browser) -> AsyncIterator[Page]:
    async with watched_page(browser) as page:
        yield page


@pytest.fixture
async def phone(browser: Browser) -> AsyncIterator[Page]:
    """A small one, held upright."""
    async with watched_page(browser, viewport={"width": 360, "height": 640}, is_mobile=True, has_touch=True) as page:
        yield page


@dataclass(frozen=True)
class Chat:
    """A page that is connected, and the server's end of its socket."""

    page: Page
    server: ScriptedServer
    socket: Socket

    async def ask(self, question: str) -> None:
        await self.page.get_by_label("Your message").fill(question)
        await self.page.keyboard.press("Enter")


@pytest.fixture
async def chat(page: Page, server: ScriptedServer) -> Chat:
    await page.goto(server.origin)
    return Chat(page, server, await server.socket())
