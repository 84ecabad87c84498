"""What holds for every test: how hypothesis searches, and the one browser of those that look at a page.

Playwright's objects belong to an event loop, and a browser takes a second to start: so those tests run in one loop, and
each is given a profile of its own, as `new_page` gives one.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from playwright.async_api import Browser, async_playwright

# The machine may be busy: how long an example takes says nothing about whether it is right.
settings.register_profile("rota", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("rota")

CHROMIUM = Path("/usr/bin/chromium")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test that is given the browser runs in the browser's loop."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def chromium() -> Path:
    if not CHROMIUM.exists():
        sentence = f"These tests look at the page in {CHROMIUM}, which is missing: apt-get install chromium"
        pytest.fail(sentence, pytrace=False)
    return CHROMIUM


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: Path) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()
