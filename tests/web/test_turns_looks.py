"""How `/turns` looks and reads: by axe, on a phone, in the light and in the dark. Leaves pictures as artefacts."""

import time
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import structs
from playwright.async_api import Browser, Page, expect

from protocol.turns import Frame, Hello, Life
from tests.web.conftest import watched_page
from tests.web.turns_page import WIDER_THAN_THE_SCREEN, Turns, artefact, centre, hatched, hello, opened, rects
from tests.web.turns_play import HELLO, Play, crowd
from tests.web.turns_server import TurnsServer, minute, running

AXE = """async () => {
  const found = await axe.run(document, { resultTypes: ["violations"] });
  return found.violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html.slice(0, 120)).join(" | ")}`);
}"""

BELOW_THE_END = """() => {
  const { scrollHeight } = document.documentElement;
  return scrollHeight - scrollY - document.querySelector("main").getBoundingClientRect().bottom;
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def turns_server() -> AsyncIterator[TurnsServer]:
    async with running() as server:
        yield server


async def violations(page: Page) -> list[str]:
    """What axe-core finds. Its script is put in by the browser itself, which asks no content policy."""
    axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
    await page.evaluate(axe)
    found: list[str] = await page.evaluate(AXE)
    return found


async def story(turns: Turns, until: float, seconds: float = 60.0) -> None:
    """A busy server, and A, B and C among the others."""
    play = Play(until - seconds)
    await turns.say(structs.replace(HELLO, at=play.now), *crowd(play, play.now + 0.55 * seconds, every_s=1.2))
    asking = None
    answers = []
    for letter, tokens, output in (("A", 203, 300), ("B", 12_040, 200), ("C", 305, 200)):
        await turns.page.get_by_role("button", name=f"Start {letter}").click()
        asking = asking or await turns.server.socket()
        answer = await asking.asked()
        await answer.begin("For college I would take the Maple: it is light,")
        answers.append(answer)
        target_ms = 60_000 if letter == "B" else 5_000
        play.ask(tokens, output, response_id=answer.response_id, ttft_ms=target_ms)
        await turns.say(*play.frames(play.now + 0.5))
    await turns.say(*crowd(play, until, every_s=2.0))
    for answer in answers:
        await answer.cut_off()
    await expect(turns.page.locator("#told")).to_contain_text("B’s 12,040 tokens")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_nothing_busy_or_pinned_or_away(
    browser: Browser, turns_server: TurnsServer, scheme: str, tmp_path: Path
) -> None:
    async with watched_page(browser, color_scheme=scheme, viewport={"width": 1360, "height": 1120}) as page:
        turns = await opened(page, turns_server, tall=False)
        assert await violations(page) == []
        await story(turns, time.time())
        await expect(page.locator(".life-name", has_text="B")).to_be_visible()
        await page.get_by_role("button", name="Pause").click()
        columns = map(rects, (await turns.saved()).groups("Step"))
        beside = [column for column in columns if {*map(hatched, column)} == {True, False}]
        await turns.point(*centre(beside[len(beside) // 2][-1]))
        await page.mouse.down()
        await page.mouse.up()
        await page.get_by_role("button", name="Back to live").click()
        await expect(page.get_by_role("button", name="Unpin")).to_be_visible()
        await page.screenshot(path=artefact(tmp_path, f"turns-{scheme}.png"))
        await page.get_by_text("What the words mean").click()
        assert await violations(page) == []
        turns_server.key = "secret"
        await turns.watcher.drop()
        await expect(page.locator("#state")).to_have_text("Key needed")
        assert await violations(page) == []


async def test_a_phone_shows_all_of_it_without_scrolling_sideways_and_a_tap_pins(
    phone: Page, turns_server: TurnsServer, tmp_path: Path
) -> None:
    turns = await opened(phone, turns_server, tall=False)
    feed = minute(time.time())
    await turns.say(*feed)
    assert await phone.evaluate(WIDER_THAN_THE_SCREEN) <= 0
    assert await phone.evaluate(BELOW_THE_END) <= 1
    await phone.evaluate("document.getElementById('picture').scrollIntoView({ block: 'start' })")
    box = await turns.box()
    await phone.touchscreen.tap(box["x"] + box["width"] - 40, box["y"] + 150)
    await expect(phone.get_by_role("button", name="Unpin")).to_be_visible()
    await expect(phone.locator("#readout")).to_be_in_viewport()
    assert (await turns.readout())["title"].startswith("Step ")
    await phone.screenshot(path=artefact(tmp_path, "turns-phone.png"))
    assert await phone.evaluate(WIDER_THAN_THE_SCREEN) <= 0
    assert await violations(phone) == []
    small = await phone.evaluate(
        """() => [...document.querySelectorAll("button")].filter((each) => each.offsetParent !== null)
        .filter((each) => each.getBoundingClientRect().height < 43.5).map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert small == []


async def test_words_as_long_as_a_feed_may_send_do_not_widen_the_page(phone: Page, turns_server: TurnsServer) -> None:
    turns = await opened(phone, turns_server, tall=False)
    at = time.time()
    long = "x" * 3_000
    greeting: Hello = hello(at, model=long, policy=long, device=long, kernels=long)
    await turns.say(greeting, Frame(at, lives=(Life(1, "finished", at - 1, ended_at=at, reason=long),)))
    await phone.get_by_role("button", name="request 1").click()
    assert await phone.evaluate(WIDER_THAN_THE_SCREEN) <= 0
