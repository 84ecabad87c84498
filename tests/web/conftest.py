"""The page in a real browser, opposite a scripted server.

All share one browser and its event loop (`tests/conftest.py`); each has a profile of its own in it, as `new_page` gives
one.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, expect
from playwright.async_api import TimeoutError as PageTimeoutError

from tests.web.scripted_server import ScriptedServer, Socket, running


async def try_now(page: Page) -> None:
    """Click, unless the page has found by itself, before the click is there, that its server is back."""
    button = page.get_by_role("button", name="Try now")
    try:
        await button.click(timeout=5_000)
    except PageTimeoutError:
        assert not await button.is_visible()


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncIterator[ScriptedServer]:
    async with running() as server:
        yield server


@asynccontextmanager
async def watched_page(browser: Browser, **options: Any) -> AsyncIterator[Page]:
    """A page on which nothing may go wrong unseen: an uncaught error or a breach of the content policy is a failure."""
    page = await browser.new_page(**options)
    page.set_default_timeout(30_000)
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
    try:
        yield page
    finally:
        await page.close()
    assert problems == []


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    async with watched_page(browser) as page:
        yield page


@pytest_asyncio.fixture(loop_scope="session")
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
        """As somebody does who waits for their turn: the page may still have to read that the last answer ended."""
        await expect(self.page.get_by_role("button", name="Stop")).to_be_hidden()
        await self.enter(question)

    async def enter(self, text: str) -> None:
        """Whoever's turn it is."""
        await self.page.get_by_label("Your message").fill(text)
        await self.page.keyboard.press("Enter")


@pytest_asyncio.fixture(loop_scope="session")
async def chat(page: Page, server: ScriptedServer) -> Chat:
    await page.goto(server.origin)
    return Chat(page, server, await server.socket())
