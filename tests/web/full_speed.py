"""How the page bears 20,000 tokens as fast as a socket brings them: its longest task, and what it keeps.

`python -m tests.web.full_speed` prints both, for prose, for Markdown of every kind and for one block of code. Knows the
scripted server and a browser; the tests ask it for the same figures.
"""

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from math import inf

from msgspec import Struct
from playwright.async_api import Browser, Page, async_playwright, expect

from tests.web.scripted_server import ScriptedServer, running
from tests.web.tasks import TASKS, longest_task_ms

TOKENS = 20_000
ENOUGH = 200
"""Bytes a token. Whoever is found to keep no more is not looked at again."""


# The page itself looks for it: a look from outside has it lay out all that it holds, and is a long task of its own.
FINISHED = """() => new Promise((finished) => {
    const turns = document.querySelector("rota-chat").shadowRoot;
    const look = () => turns.querySelector(".turn[data-phase=finished]") && finished();
    new MutationObserver(look).observe(turns, { subtree: true, attributeFilter: ["data-phase"] });
})"""


class Figures(Struct, frozen=True):
    longest_task_ms: float
    """Of processor time on the page's main thread."""
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


async def stream(browser: Browser, page: Page, server: ScriptedServer, tokens: Iterator[str]) -> Figures:
    """Asks on a fresh page, streams, and says how the page bore it."""
    await page.goto(server.origin)
    socket = await server.socket()
    await page.get_by_label("Your message").fill("Everything, please.")
    await page.keyboard.press("Enter")
    answer = await socket.asked()
    await answer.begin(next(tokens))
    await expect(page.locator(".answer")).to_be_visible()
    before = await heap_bytes(page)
    finished = asyncio.ensure_future(page.evaluate(FINISHED))
    await browser.start_tracing(page=page, categories=TASKS)
    for token in itertools.islice(tokens, TOKENS - 2):
        await answer.write(token)
    await answer.write("\n```\n\nthe-end")
    await answer.complete()
    await finished
    longest_ms = longest_task_ms(await browser.stop_tracing())
    await expect(page.locator(".answer")).to_contain_text("the-end", timeout=60_000)
    await expect(page.locator(".turn[data-phase=finished] .copy")).to_be_visible(timeout=60_000)
    return Figures(longest_ms, (await heap_bytes(page, before + ENOUGH * TOKENS) - before) / TOKENS)


async def heap_bytes(page: Page, until: float = inf) -> int:
    """With everything collected that can be. What is still to be done holds some of it: looks again, up to two seconds,
    for as long as there is more than `until`."""
    devtools = await page.context.new_cdp_session(page)
    for _ in range(4):
        await devtools.send("HeapProfiler.collectGarbage")
        used: int = (await devtools.send("Runtime.getHeapUsage"))["usedSize"]
        if used <= until:
            break
        await page.evaluate("new Promise((later) => setTimeout(later, 500))")
    await devtools.detach()
    return used


async def main() -> None:
    async with async_playwright() as playwright, running() as server:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        for name, tokens in KINDS.items():
            page = await browser.new_page()
            figures = await stream(browser, page, server, tokens())
            longest = f"{figures.longest_task_ms:.0f} ms of processor time"
            print(f"{name:12} longest task: {longest}; kept: {figures.kept_bytes_a_token:.0f} bytes a token")
            await page.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(main())
