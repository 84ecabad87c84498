"""The connection: lost, refused, locked, found again, and what the page says meanwhile."""

import re

import pytest
from playwright.async_api import Page, expect

from tests.web.conftest import Chat, try_now
from tests.web.reading import focused
from tests.web.scripted_server import ScriptedServer


async def test_a_lost_socket_costs_an_answer_nothing(chat: Chat) -> None:
    page = chat.page
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    assert answer.create["resumable"] is True
    await answer.begin("Hel")
    await expect(page.locator(".answer")).to_have_text("Hel")
    chat.server.up = False
    await chat.socket.drop()
    await expect(page.locator(".state")).to_have_text("Offline")
    await expect(page.locator(".notice")).to_contain_text("Trying again in")
    await expect(page.locator(".end-text")).to_be_hidden()
    chat.server.up = True
    await try_now(page)
    await (await chat.server.socket()).asked_to_resume(answer)
    await answer.write("lo")
    await expect(page.locator(".answer")).to_have_text("Hello")
    await answer.write(".")
    await answer.complete()
    await expect(page.locator(".answer")).to_have_text("Hello.")
    await expect(page.locator(".state")).to_have_text("Your turn")


async def test_an_answer_is_stopped_while_its_socket_is_lost(chat: Chat) -> None:
    page = chat.page
    await chat.ask("Say hello.")
    await (await chat.socket.asked()).begin("Hel")
    await expect(page.locator(".answer")).to_have_text("Hel")
    chat.server.up = False
    await chat.socket.drop()
    await expect(page.locator(".state")).to_have_text("Offline")
    await page.get_by_role("button", name="Stop").click()
    await expect(page.locator(".end-text")).to_have_text("Stopped by you.")
    await expect(page.locator(".answer")).to_have_text("Hel")
    chat.server.up = True
    await chat.ask("Are you there?")
    assert (await (await chat.server.socket()).asked()).create["input"][-1]["content"] == "Are you there?"


async def test_an_answer_that_its_server_has_forgotten_keeps_its_text_and_offers_to_try_again(chat: Chat) -> None:
    await chat.ask("Say hello.")
    lost = await chat.socket.asked()
    await lost.begin("Hel")
    await expect(chat.page.locator(".answer")).to_have_text("Hel")
    await chat.socket.drop()
    reconnected = await chat.server.socket()
    await reconnected.asked_to_resume(lost)
    await lost.forgotten()
    await expect(chat.page.locator(".answer")).to_have_text("Hel")
    await expect(chat.page.locator(".end-text")).to_have_text(
        "Interrupted: the connection was lost after 3 characters."
    )
    await chat.page.get_by_role("button", name="Try again").click()
    assert (await reconnected.asked()).create["input"] == "Say hello."


async def test_an_answer_whose_server_stays_away_is_given_up(page: Page, server: ScriptedServer) -> None:
    await page.clock.install()
    await page.goto(server.origin)
    chat = Chat(page, server, await server.socket())
    await chat.ask("Count.")
    await (await chat.socket.asked()).begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    server.up = False
    await chat.socket.drop()
    await expect(page.locator(".state")).to_have_text("Offline")
    await expect(page.locator(".end-text")).to_be_hidden()
    await page.clock.run_for(31_000)
    await expect(page.locator(".end-text")).to_contain_text("the connection was lost after 3 characters")


async def test_a_lost_server_is_tried_again_by_itself_later_and_later(page: Page, server: ScriptedServer) -> None:
    await page.clock.install()
    server.up = False
    await page.goto(server.origin)
    notice = page.locator(".notice")
    await expect(page.locator(".state")).to_have_text("Offline")
    await expect(notice).to_contain_text("The server is starting. Trying again in 1 s.")
    for _ in range(7):
        async with page.expect_response("**/v1/models"):
            await page.clock.fast_forward(10_000)
        await expect(page.locator(".state")).to_have_text("Offline")
    await expect(notice).to_contain_text(re.compile(r"Trying again in ([5-9]|10) s"))
    server.up = True
    await page.get_by_role("button", name="Try now").click()
    await server.socket()
    await expect(page.locator(".state")).to_have_text("Your turn")
    await expect(notice).to_be_hidden()


async def test_a_message_written_while_offline_is_sent_once_there_is_a_socket(
    page: Page, server: ScriptedServer
) -> None:
    server.up = False
    await page.goto(server.origin)
    await expect(page.locator(".state")).to_have_text("Offline")
    server.up = True
    await page.get_by_label("Your message").fill("Are you there?")
    await page.keyboard.press("Enter")
    assert (await (await server.socket()).asked()).create["input"] == "Are you there?"


async def test_a_message_written_while_offline_is_a_reason_to_try_at_once_and_soon_again(
    page: Page, server: ScriptedServer
) -> None:
    await page.clock.install()
    server.up = False
    await page.goto(server.origin)
    notice = page.locator(".notice")
    for _ in range(7):
        await expect(page.locator(".state")).to_have_text("Offline")
        async with page.expect_response("**/v1/models"):
            await page.clock.fast_forward(10_000)
    await expect(notice).to_contain_text(re.compile(r"Trying again in ([5-9]|10) s"))
    await page.get_by_label("Your message").fill("Are you there?")
    async with page.expect_response("**/v1/models"):
        await page.keyboard.press("Enter")
    await expect(notice).to_contain_text("Trying again in 1 s.")
    await expect(page.locator(".progress")).to_have_text("Waiting for the connection…")
    await page.get_by_label("Your message").fill("Anyone?")
    await page.keyboard.press("Enter")
    await expect(page.locator(".kept")).to_contain_text("your last message waits for the connection")
    server.up = True
    await page.keyboard.press("Enter")
    assert (await (await server.socket()).asked()).create["input"] == "Are you there?"
    await expect(page.get_by_label("Your message")).to_have_value("Anyone?")


async def test_a_device_that_was_offline_says_so_and_opens_an_idle_socket_anew(chat: Chat) -> None:
    page = chat.page
    await page.context.set_offline(True)
    await expect(page.locator(".state")).to_have_text("Offline")
    await expect(page.locator(".notice")).to_contain_text("This device is offline.")
    await page.context.set_offline(False)
    again = await chat.server.socket()
    await expect(page.locator(".state")).to_have_text("Your turn")
    await expect(page.locator(".notice")).to_be_hidden()
    await chat.ask("Are you there?")
    assert (await again.asked()).create["input"] == "Are you there?"


@pytest.mark.parametrize("survives", [True, False])
async def test_an_answer_that_shows_no_life_after_the_network_was_away_goes_on_upon_another_socket(
    page: Page, server: ScriptedServer, survives: bool
) -> None:
    await page.clock.install()
    await page.goto(server.origin)
    chat = Chat(page, server, await server.socket())
    await chat.ask("Count.")
    answer = await chat.socket.asked()
    await answer.begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    # The browser's own switch would cut the line, and what is meant is a line that nobody cuts.
    await page.evaluate("dispatchEvent(new Event('offline')); dispatchEvent(new Event('online'))")
    if survives:
        await answer.write(", two")
        await expect(page.locator(".answer")).to_have_text("One, two")
    await page.clock.run_for(31_000)
    if survives:
        await expect(page.locator(".state")).to_have_text("The model’s turn")
        await expect(page.locator(".end-text")).to_be_hidden()
    else:
        assert await chat.socket.close_code() == 4006
        await (await server.socket()).asked_to_resume(answer)
        await answer.write(", two")
        await expect(page.locator(".answer")).to_have_text("One, two")


async def test_an_idle_socket_closed_in_order_is_opened_again_when_it_is_needed(chat: Chat) -> None:
    await chat.socket.connection.close(1000)
    await expect(chat.page.locator(".state")).to_have_attribute("data-state", "resting")
    await expect(chat.page.locator(".notice")).to_be_hidden()
    await chat.ask("Are you there?")
    assert (await (await chat.server.socket()).asked()).create["input"] == "Are you there?"


async def test_leaving_the_page_closes_the_socket_at_once(chat: Chat) -> None:
    await chat.ask("Count.")
    await (await chat.socket.asked()).begin("One")
    await expect(chat.page.locator(".answer")).to_have_text("One")
    await chat.page.goto("about:blank")
    assert await chat.socket.close_code() == 1000


async def test_a_server_with_a_key_asks_for_it_and_keeps_it_for_the_tab(page: Page, server: ScriptedServer) -> None:
    server.key = "sk-right"
    await page.goto(server.origin)
    field = page.get_by_label("Enter the key")
    await field.fill("sk-wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("The server did not accept that key.")
    await field.fill("not a token")
    await page.get_by_role("button", name="Use key").click()
    await expect(page.get_by_role("alert")).to_contain_text("no spaces")
    await field.fill("sk-right")
    await page.keyboard.press("Enter")
    socket = await server.socket()
    assert socket.connection.subprotocol == "responses"
    await expect(page.locator(".state")).to_have_text("Your turn")
    await page.reload()
    await server.socket()
    await expect(page.locator(".state")).to_have_text("Your turn")


async def test_frames_that_say_nothing_of_the_wire_change_nothing(chat: Chat) -> None:
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    await answer.begin("Hel")
    for frame in ("{not json", "null", "7", '{"type": "error"}', '{"type": "response.unheard_of"}', b"\x00"):
        await chat.socket.connection.send(frame)
    await answer.write("lo.")
    await answer.complete()
    await expect(chat.page.locator(".answer")).to_have_text("Hello.")
    await expect(chat.page.locator(".state")).to_have_text("Your turn")


async def test_the_focus_that_was_on_try_now_is_not_lost_when_the_connection_comes_back(
    page: Page, server: ScriptedServer
) -> None:
    server.up = False
    await page.goto(server.origin)
    await page.get_by_role("button", name="Try now").focus()
    server.up = True
    await server.socket()
    await expect(page.locator(".notice")).to_be_hidden()
    assert await focused(page) == "message"
