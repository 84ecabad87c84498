"""What holds for every test: how hypothesis searches, in which order files are tried where several are at once, and the
one browser of those that look at a page.

Playwright's objects belong to an event loop, and a browser takes a second to start: so those tests run in one loop, and
each is given a profile of its own, as `new_page` gives one.
"""

import os
import signal
from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, settings
from playwright.async_api import Browser, async_playwright, expect

# Both before torch, the first because it imports Triton.
import tests.interpreted
import tests.waiting_threads  # noqa: F401
from tests.side_by_side import place

# The machine may be busy: how long an example takes says nothing about whether it is right. Every run tries other
# examples, but for CI's (`CI` is set): it says the same of a commit whenever it is asked, and so whose fault it is.
settings.register_profile(
    "rota",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("rota")

# In the background of a script nobody listens to Ctrl-C, and whoever is started from there does not either.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
CHROMIUM = Path("/usr/bin/chromium")
PATIENCE_MS = 30_000
"""For what a page is to show: the machine may be busy with other tests."""


LONGEST = ("end_to_end", "soak", "kernels/triton", "simulation", "gpu", "web")
"""Folders whose files take longest: begun last, one of them would keep a single core busy at the end."""

FROM_OUTSIDE = ("end_to_end", "web")
"""Folders whose tests watch other processes, which a busy machine may keep waiting: in CI, one that fails is tried once
more, and how it failed is told at the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: much of the time a test waits for servers to start and for pages to be drawn."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `alone` has the machine to itself, as far as suites that run side by side go."""
    if not hasattr(item.config, "workerinput"):
        return (yield)
    with place(alone=item.get_closest_marker("alone") is not None):
        return (yield)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Every test that is given the browser runs in the browser's loop. Side by side, long files come first, and last
    those with tests that want to be alone: in between, everybody would wait for whatever is longest just then."""
    if hasattr(config, "workerinput"):
        alone = {item.path for item in items if item.get_closest_marker("alone") is not None}
        items.sort(key=lambda item: (item.path in alone, _turn(item.path.relative_to(TESTS))))
    for item in items:
        if "CI" in os.environ and item.path.relative_to(TESTS).parts[0] in FROM_OUTSIDE:
            item.add_marker(pytest.mark.flaky(reruns=1))
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What passed only when it was tried once more has a race in it, or what it tests has."""
    for report in terminalreporter.getreports("rerun"):
        terminalreporter.section(f"tried once more: {report.nodeid}", sep="_")
        terminalreporter.line(report.longreprtext)


def _turn(file: Path) -> int:
    return next((turn for turn, folder in enumerate(LONGEST) if file.is_relative_to(folder)), len(LONGEST))


@pytest.fixture(scope="session")
def chromium() -> Path:
    if not CHROMIUM.exists():
        sentence = f"These tests look at the page in {CHROMIUM}, which is missing: apt-get install chromium"
        pytest.fail(sentence, pytrace=False)
    return CHROMIUM


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium: Path) -> AsyncIterator[Browser]:
    expect.set_options(timeout=PATIENCE_MS)
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        try:
            yield browser
        finally:
            await browser.close()
