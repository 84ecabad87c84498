"""How the page bears 20,000 tokens as fast as a socket brings them: its longest task, and what it keeps.

`python -m tests.web.full_speed` prints both, for prose, for Markdown of every kind and for one block of code. Knows the
scripted server and a browser; the tests ask it for the same figures.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator

from msgspec import Struct
from playwright.async_api import Page, async_playwright, expect

from tests.web.scripted_server import ScriptedServer, running

TOKENS = 20_000

# Tasks over 50 ms are what the performance API calls long, and reports.
WATCH = """() => {
    window.longTasks = [];
    new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map(({ duration }) => duration)))
        .observe({ type: "longtask" });
}"""


class Figures(Struct, frozen=True):
    longest_task_ms: float
    """0 when none was over 50 ms."""
    kept_bytes_a_token: float
    """By the heap of scripts, with everything collected that can be, from before the first token to after the last."""


def prose(seed: int = 0) -> Iterator[str]:
    """One paragraph without end, a token a word."""
    chance = random.Random(seed)
    while True:
        yield chance.choice([" laptop", " screen", " light", " and", " the", " battery", " lasts", " long", ",", "."])


def everything(seed: int = 0) -> Iterator[str]:
    """Headings, lists, tables, code and emphasis, cut where tokens are cut."""
    text = (
        "## Two laptops\n\nHere are **two** of them, *both* under `60000`:\n\n1. Aspire 5, light\n   - 16 GB\n"
        "2. IdeaPad\n\n| Model | Price |\n|---|---:|\n| Aspire | 52,990 |\n| IdeaPad | 47,500 |\n\n```python\n"
        "for laptop in laptops:\n    print(laptop.price)\n```\n\n> See https://example.org for more.\n\n"
    )
    chance = random.Random(seed)
    for _ in itertools.count():
        start = 0
        while start < len(text):
            end = start + chance.randint(1, 7)
            yield text[start:end]
            start = end


def code(seed: int = 0) -> Iterator[str]:
    """One block of code without end."""
    chance = random.Random(seed)
    yield "```python\n"
    while True:
        yield chance.choice(["    print", "(laptop", ".price", ")\n", " = ", "None", "\n"])


KINDS: dict[str, Callable[[], Iterator[str]]] = {"prose": prose, "everything": everything, "code": code}


async def stream(page: Page, server: ScriptedServer, tokens: Iterator[str]) -> Figures:
    """Asks on a fresh page, streams, and says how the page bore it."""
    await page.goto(server.origin)
    socket = await server.socket()
    await page.get_by_label("Your message").fill("Everything, please.")
    await page.keyboard.press("Enter")
    answer = await socket.asked()
    await answer.begin(next(tokens))
    await expect(page.locator(".answer")).to_be_visible()
    before = await heap_bytes(page)
    await page.evaluate(WATCH)
    for token in itertools.islice(tokens, TOKENS - 2):
        await answer.write(token)
    await answer.write("\n```\n\nthe-end")
    await answer.complete()
    await expect(page.locator(".answer")).to_contain_text("the-end", timeout=60_000)
    await expect(page.locator(".turn[data-phase=finished] .copy")).to_be_visible(timeout=60_000)
    longest: float = await page.evaluate("Math.max(0, ...window.longTasks)")
    return Figures(longest, (await heap_bytes(page) - before) / TOKENS)


async def heap_bytes(page: Page) -> int:
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("HeapProfiler.collectGarbage")
    used: int = (await devtools.send("Runtime.getHeapUsage"))["usedSize"]
    await devtools.detach()
    return used


async def main() -> None:
    async with async_playwright() as playwright, running() as server:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        for name, tokens in KINDS.items():
            page = await browser.new_page()
            figures = await stream(page, server, tokens())
            longest = f"{figures.longest_task_ms:.0f} ms" if figures.longest_task_ms else "none over 50 ms"
            print(f"{name:12} longest task: {longest}; kept: {figures.kept_bytes_a_token:.0f} bytes a token")
            await page.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
