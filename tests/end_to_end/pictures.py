"""The pictures in the README: `/`, `/embed` and `/turns` of a real server, as a browser shows them.

    .venv/bin/python -m tests.end_to_end.pictures [FOLDER]

Knows what is done on each page before its picture is taken. Twelve people ask beside A, B and C, so that `/turns` is
seen under load; on a slow machine it takes a minute or two. FOLDER is `web/pictures` if none is given.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Browser, Page, async_playwright, expect

from tests.end_to_end.server import Server, serving

HERE = Path(__file__).parents[2] / "web" / "pictures"
PATIENCE_MS = 120_000
QUESTION = "Write a short Python function that adds two numbers, and explain it in one sentence."


async def ask(page: Page, question: str) -> None:
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")


async def answered(page: Page, count: int = 1) -> None:
    await expect(page.locator(".turn[data-phase=finished]")).to_have_count(count, timeout=PATIENCE_MS)


async def chat(browser: Browser, server: Server, folder: Path) -> None:
    page = await browser.new_page(viewport={"width": 1200, "height": 620})
    await page.goto(server.http)
    await ask(page, QUESTION)
    await answered(page)
    await page.screenshot(path=folder / "chat.png")
    await page.close()


async def shop(browser: Browser, server: Server, folder: Path) -> None:
    page = await browser.new_page(viewport={"width": 1200, "height": 780})
    await page.goto(f"{server.http}/embed")
    await page.locator(".suggestions button").first.click()
    await answered(page)
    await page.screenshot(path=folder / "embed.png")
    await page.close()


async def turns(browser: Browser, server: Server, folder: Path) -> None:
    page = await browser.new_page(viewport={"width": 1280, "height": 1130})
    await page.goto(f"{server.http}/turns")
    await expect(page.get_by_role("button", name="Start A")).to_be_enabled(timeout=PATIENCE_MS)
    load = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "actors.cli", "load", server.http.removeprefix("http://")),
        *("--rate", "0.5", "--people", "12", "--max-output-tokens", "96"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    for letter in "ABC":
        await page.get_by_role("button", name=f"Start {letter}").click()
        await page.wait_for_timeout(1500)
    await expect(page.locator("#told")).not_to_contain_text("is told here", timeout=PATIENCE_MS)
    await page.screenshot(path=folder / "turns.png")
    load.terminate()
    await load.wait()
    await page.close()


async def take(server: Server, folder: Path) -> None:
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        await chat(browser, server, folder)
        await shop(browser, server, folder)
        await turns(browser, server, folder)
        await browser.close()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as logs, serving(Path(logs)) as server:
        asyncio.run(take(server, folder))


if __name__ == "__main__":
    main()
