"""axe-core, which knows what shuts people out of a page, finds nothing on ours: in any state, light and dark.

`/turns` is looked at beside its other tests.
"""

from importlib import resources
from pathlib import Path
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from tests.web.conftest import Chat
from tests.web.scripted_server import ScriptedServer

AXE = (Path(str(resources.files("axe_playwright_python"))) / "axe.min.js").read_text("utf-8")
RUN = """async () => {
    const found = await axe.run(document, { resultTypes: ["violations"] });
    const where = (node) => node.target.flat().join(" ");
    return found.violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(where).join(" | ")}`);
}"""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
ANSWER = """## Two that fit

Both are *light*, and **under ₹60,000**; see [the list](https://shop.example/laptops).

1. Daily
2. Campus
   - for college
   - and for coding

| name | price |
| --- | ---: |
| Campus | ₹54,990 |

> It is the one I would take.

```python
def best(laptops):
    return min((each for each in laptops if each.memory >= 16 and each.storage >= 512), key=lambda each: each.price)
```
"""


async def expect_nothing_found(page: Page) -> None:
    """In both schemes, where nothing moves."""
    await page.evaluate(AXE)
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert await page.evaluate(RUN) == [], scheme


async def test_nothing_is_found_before_anything_was_asked(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.origin)
    await expect(page.locator(".state")).to_have_text("Your turn")
    await expect_nothing_found(page)


async def test_nothing_is_found_in_a_conversation_at_any_stage_of_an_answer(chat: Chat) -> None:
    await chat.ask("Which laptop should I buy for college?")
    answer = await chat.socket.asked()
    await answer.created("queued")
    await answer.queued(3, 4000.0)
    await expect(chat.page.locator(".progress-text")).to_have_text("3rd in line, about 4 s")
    await expect_nothing_found(chat.page)
    await answer.in_progress()
    await answer.write(ANSWER)
    await expect(chat.page.locator(".answer pre")).to_be_visible()
    await expect_nothing_found(chat.page)
    await answer.cut_off()
    await expect(chat.page.get_by_role("button", name="Continue")).to_be_visible()
    await expect_nothing_found(chat.page)


async def test_nothing_is_found_where_several_conversations_are_listed(chat: Chat) -> None:
    for question in ("What is a rota?", "Who needs one?"):
        await chat.ask(question)
        answer = await chat.socket.asked()
        await answer.begin("A list of turns.")
        await answer.complete()
        await expect(chat.page.locator(".state")).to_have_text("Your turn")
        await chat.page.get_by_role("button", name="New conversation").click()
    await chat.page.locator(".talks-list").or_(chat.page.get_by_role("button", name="Conversations")).first.click()
    await expect(chat.page.locator(".talks-list")).to_be_visible()
    await expect_nothing_found(chat.page)


async def test_nothing_is_found_where_an_answer_was_refused_or_interrupted(chat: Chat) -> None:
    await chat.ask("Anyone?")
    await (await chat.socket.asked()).refuse("server_overloaded", "The waiting room is full. Try again in 9 s.", 9000)
    await expect(chat.page.get_by_role("button", name="Try again in")).to_be_visible()
    await expect_nothing_found(chat.page)
    await chat.ask("And now?")
    lost = await chat.socket.asked()
    await lost.begin("Hel")
    await expect(chat.page.locator(".answer").last).to_have_text("Hel")
    await chat.socket.drop()
    again = await chat.server.socket()
    await again.asked_to_resume(lost)
    await lost.forgotten()
    chat.server.up = False
    await again.drop()
    await expect(chat.page.locator(".state")).to_have_text("Offline")
    await expect(chat.page.locator(".end-text").last).to_contain_text("Interrupted")
    await expect_nothing_found(chat.page)


async def test_nothing_is_found_where_a_key_is_asked_for(page: Page, server: ScriptedServer) -> None:
    server.key = "sk-right"
    await page.goto(server.origin)
    field = page.get_by_label("Enter the key")
    await expect(field).to_be_visible()
    await expect_nothing_found(page)
    await field.fill("sk-wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("The server did not accept that key.")
    await expect_nothing_found(page)


async def test_nothing_is_found_on_a_phone(phone: Page, server: ScriptedServer) -> None:
    await phone.goto(server.origin)
    await expect(phone.locator(".state")).to_have_text("Your turn")
    await expect_nothing_found(phone)
    await Chat(phone, server, await server.socket()).ask("Hello?")
    await expect(phone.locator(".question-text")).to_have_text("Hello?")
    await expect_nothing_found(phone)


async def test_nothing_is_found_in_the_shop(page: Page, server: ScriptedServer) -> None:
    await look_at_the_shop(page, server)


async def test_nothing_is_found_in_the_shop_on_a_phone(phone: Page, server: ScriptedServer) -> None:
    await look_at_the_shop(phone, server)


async def look_at_the_shop(shop: Page, server: ScriptedServer) -> None:
    await shop.goto(f"{server.origin}/embed")
    socket = await server.socket()
    await expect(shop.locator(".state")).to_have_text("Your turn")
    await expect_nothing_found(shop)
    await Chat(shop, server, socket).ask("Which laptop should I buy for college?")
    answer = await socket.asked()
    await answer.begin(ANSWER)
    await answer.complete()
    await expect(shop.locator(".answer pre")).to_be_visible()
    await expect_nothing_found(shop)


async def test_what_shuts_people_out_would_be_found(page: Page, server: ScriptedServer) -> None:
    await page.goto(server.origin)
    await page.get_by_role("button", name="Send").evaluate("button => button.removeAttribute('aria-label')")
    with pytest.raises(AssertionError, match="button-name"):
        await expect_nothing_found(page)
