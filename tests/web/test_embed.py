"""The shop at `/embed`: the chat in a page that is not its own. Leaves pictures where `ROTA_TEST_ARTEFACTS` says."""

import asyncio
import os
import re
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from tests.web.conftest import Chat
from tests.web.reading import expect_no_sideways_scroll
from tests.web.scripted_server import ScriptedServer

COLLEGE = "Which laptop should I buy for college under ₹60,000?"
ANSWER = (
    "The **Campus** is the best laptop for college. It costs ₹54,990 and has 16 GB of memory and 12 hours of battery."
)


def artefact(tmp_path: Path, name: str) -> Path:
    folder = Path(os.environ.get("ROTA_TEST_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"embed-{name}.png"


async def answered(shop: Page, server: ScriptedServer) -> dict[str, object]:
    """Ask by the first suggestion, and hear an answer. Returns what was asked of the server."""
    socket = await server.socket()
    await shop.get_by_role("button", name=COLLEGE).click()
    answer = await socket.asked()
    await answer.begin(ANSWER)
    await answer.complete()
    await expect(shop.locator(".answer strong")).to_have_text("Campus")
    return answer.create


async def test_the_assistant_is_told_the_catalogue_that_the_page_shows(page: Page, server: ScriptedServer) -> None:
    await page.goto(f"{server.origin}/embed")
    asked = await answered(page, server)
    assert asked["input"] == COLLEGE
    instructions = str(asked["instructions"])
    cards = page.locator(".card")
    names, prices = await cards.locator("h3").all_text_contents(), await cards.locator(".price").all_text_contents()
    assert len(names) == 6
    assert re.findall(r"the best laptop is the (\w+)\. It costs (₹[\d,]+\d)", instructions) == [
        (name, price)
        for name, price in sorted(zip(names, prices, strict=True), key=lambda each: instructions.index(each[0]))
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_on_a_wide_screen_the_assistant_stands_beside_the_laptops_and_stays_in_sight(
    page: Page, server: ScriptedServer, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    await page.emulate_media(color_scheme=scheme)
    await page.set_viewport_size({"width": 1280, "height": 800})
    await page.goto(f"{server.origin}/embed")
    await answered(page, server)
    for where in (0, 10_000):
        await page.evaluate("where => window.scrollTo(0, where)", where)
        await expect(page.get_by_label("Your message")).to_be_in_viewport(ratio=1)
        await expect(page.locator(".answer")).to_be_in_viewport(ratio=1)
    await page.evaluate("window.scrollTo(0, 0)")
    await expect(page.locator(".card h3").first).to_be_in_viewport()
    await expect_no_sideways_scroll(page)
    await page.screenshot(path=artefact(tmp_path, scheme))


async def test_on_a_phone_a_link_leads_to_the_assistant_and_another_one_back(
    phone: Page, server: ScriptedServer, tmp_path: Path
) -> None:
    # At once where the link leads: what is tapped while it still moves is scrolled to, and tapped once more.
    await phone.emulate_media(reduced_motion="reduce")
    await phone.goto(f"{server.origin}/embed")
    await expect_no_sideways_scroll(phone)
    await phone.get_by_role("link", name="Ask the shopping assistant").tap()
    message = phone.get_by_label("Your message")
    await expect(message).to_be_in_viewport(ratio=1)
    await answered(phone, server)
    await expect(message).to_be_in_viewport(ratio=1)
    await expect_no_sideways_scroll(phone)
    await phone.screenshot(path=artefact(tmp_path, "phone"))
    await phone.get_by_role("link", name="Back to the laptops").tap()
    await expect(phone.locator(".card h3").first).to_be_in_viewport()


async def test_the_shops_colours_are_the_assistants(page: Page, server: ScriptedServer) -> None:
    await page.goto(f"{server.origin}/embed")
    await Chat(page, server, await server.socket()).ask("Hello?")
    stop = page.get_by_role("button", name="Stop")
    await expect(stop).to_have_css("background-color", "rgb(13, 79, 69)")


async def test_the_example_of_the_readme_works_here(page: Page, server: ScriptedServer) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    example = readme.split("```js\n", 1)[1].split("```", 1)[0]
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    await page.goto(f"{server.origin}/embed")
    socket = await server.socket()
    ended = asyncio.ensure_future(page.evaluate(f"(async () => {{ {example} return [reason, text]; }})()"))
    answer = await socket.asked()
    assert answer.create["input"] == "Which one is the lightest?"
    await answer.begin("The Feather.")
    await answer.complete()
    assert await ended == ["stop", "The Feather."]
    assert said == ["The Feather.", "stop 3"]
