"""Conversations: how they go on, are begun anew, kept apart and found again."""

import pytest
from playwright.async_api import Browser, Page, expect

from tests.web.conftest import Chat
from tests.web.reading import focused
from tests.web.scripted_server import Answer, ScriptedServer


async def test_the_conversation_continues_with_the_last_response(chat: Chat) -> None:
    parent = None
    for number, question in enumerate(["One?", "Two?", "Three?"], start=1):
        await chat.ask(question)
        answer = await chat.socket.asked()
        assert answer.create.get("previous_response_id") == parent
        assert answer.create["input"] == question
        await answer.begin("Yes.")
        await answer.complete()
        await expect(chat.page.locator(".facts:visible")).to_have_count(number)
        parent = answer.response_id
    await expect(chat.page.locator(".turn-number")).to_have_text(["1", "2", "3"])


async def test_a_forgotten_conversation_is_sent_again_in_full_and_the_reader_is_told(chat: Chat) -> None:
    await chat.ask("Say hello.")
    first = await chat.socket.asked()
    await first.begin("Hello.")
    await first.complete()
    await expect(chat.page.locator(".facts")).to_be_visible()
    await chat.ask("And goodbye?")
    second = await chat.socket.asked()
    await second.refuse("previous_response_not_found", "That response is not kept here.")
    whole = await chat.socket.asked()
    assert "previous_response_id" not in whole.create
    assert whole.create["input"] == [
        {"type": "message", "role": "user", "content": "Say hello."},
        {"type": "message", "role": "assistant", "content": "Hello."},
        {"type": "message", "role": "user", "content": "And goodbye?"},
    ]
    await whole.begin("Goodbye.")
    await whole.complete()
    await expect(chat.page.locator(".aside").last).to_contain_text("had forgotten this conversation")
    await expect(chat.page.locator(".answer")).to_have_text(["Hello.", "Goodbye."])


async def test_a_new_conversation_starts_from_nothing_while_the_old_one_goes_on_in_its_own_lane(chat: Chat) -> None:
    page = chat.page
    await chat.ask("Count.")
    first = await chat.socket.asked()
    await first.begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator(".empty")).to_be_visible()
    await chat.ask("Say hello.")
    second = await chat.socket.asked()
    assert "previous_response_id" not in second.create
    assert second.create["stream_id"] != first.create["stream_id"]
    await first.write(", two")
    await second.begin("Hello.")
    await expect(page.locator(".answer")).to_have_text("Hello.")
    await first.write(", three")
    await first.complete()
    conversations = page.get_by_role("button", name="Conversations: 2, 1 with something new")
    await conversations.click()
    listed = page.get_by_role("group", name="Conversations").locator("li")
    await expect(listed).to_have_text(["Say hello.Writing…", "Count.Ended"])
    await listed.locator(".talk").last.click()
    await expect(page.locator(".answer")).to_have_text("One, two, three")
    await expect(page.get_by_role("button", name="Conversations: 2", exact=True)).to_be_visible()
    await second.complete()
    await chat.ask("And then?")
    assert (await chat.socket.asked()).create["previous_response_id"] == first.response_id


async def test_deleting_a_conversation_cancels_what_it_was_writing(chat: Chat) -> None:
    page = chat.page
    await chat.ask("Count.")
    first = await chat.socket.asked()
    await first.begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    await page.get_by_role("button", name="New conversation").click()
    await page.get_by_role("button", name="Conversations: 2").click()
    await page.get_by_role("button", name="Delete conversation: Count.").click()
    named = {"stream_id": first.create["stream_id"], "response_id": first.response_id}
    assert await chat.socket.receive() == {"type": "response.cancel", **named}
    await first.cancelled()
    await expect(page.get_by_role("button", name="Conversations")).to_be_hidden()
    await chat.ask("Say hello.")
    await (await chat.socket.asked()).begin("Hello.")
    await expect(page.locator(".answer")).to_have_text("Hello.")


async def test_the_list_of_conversations_opens_closes_and_chooses_from_the_keyboard(chat: Chat) -> None:
    page, press = chat.page, chat.page.keyboard.press
    await answered(chat, "One?", "1")
    await page.get_by_role("button", name="New conversation").click()
    await answered(chat, "Two?", "2")
    await page.get_by_role("button", name="Conversations").focus()
    await press("Enter")
    assert await focused(page) == "Two?"
    await press("Escape")
    assert await focused(page) == "Conversations: 2"
    await expect(page.get_by_role("group", name="Conversations")).to_be_hidden()
    await press("Enter")
    await press("Tab")
    await press("Tab")
    assert await focused(page) == "One?"
    await press("Enter")
    await expect(page.locator(".answer")).to_have_text("1")
    assert await focused(page) == "message"


async def test_a_reload_finds_the_conversations_again(chat: Chat) -> None:
    page = chat.page
    await answered(chat, "One?", "1")
    await page.get_by_role("button", name="New conversation").click()
    parent = await answered(chat, "Two?", "**2**")
    await page.reload()
    again = await chat.server.socket()
    await expect(page.locator(".question-text")).to_have_text("Two?")
    await expect(page.locator(".answer strong")).to_have_text("2")
    await expect(page.get_by_role("button", name="Conversations: 2")).to_be_visible()
    await chat.ask("And then?")
    assert (await again.asked()).create["previous_response_id"] == parent.response_id


async def test_a_reload_in_mid_answer_keeps_what_had_come_and_says_so(chat: Chat) -> None:
    page = chat.page
    await chat.ask("Count.")
    await (await chat.socket.asked()).begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    await page.reload()
    assert await chat.socket.close_code() == 1000
    again = await chat.server.socket()
    await expect(page.locator(".answer")).to_have_text("One")
    await expect(page.locator(".end-text")).to_have_text("Interrupted: the page was left after 3 characters.")
    await page.get_by_role("button", name="Try again").click()
    assert (await again.asked()).create["input"] == "Count."


async def test_two_tabs_have_their_own_conversations(browser: Browser, server: ScriptedServer) -> None:
    context = await browser.new_context()
    tabs = [await context.new_page() for _ in range(2)]
    chats = []
    for tab in tabs:
        await tab.goto(server.origin)
        chats.append(Chat(tab, server, await server.socket()))
    for chat, text in zip(chats, ("1", "2"), strict=True):
        await answered(chat, "Which tab?", text)
    for tab, text in zip(tabs, ("1", "2"), strict=True):
        await tab.reload()
        await server.socket()
        await expect(tab.locator(".answer")).to_have_text(text)
    await context.close()


@pytest.mark.parametrize("broken", ["off", "full", "spoiled"])
async def test_without_storage_everything_else_works(page: Page, server: ScriptedServer, broken: str) -> None:
    scripts = {
        "off": "Object.defineProperty(window, 'sessionStorage', { get() { throw new DOMException('off'); } })",
        "full": "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }",
        "spoiled": """const read = Storage.prototype.getItem;
            const spoiled = { version: 1, current: 7, talks: [null, { id: "1", turns: [null, 3, { text: 1 }] }] };
            Storage.prototype.getItem = function (name) {
                return name.startsWith("rota.chat") ? JSON.stringify(spoiled) : read.call(this, name);
            };""",
    }
    await page.add_init_script(scripts[broken])
    await page.goto(server.origin)
    chat = Chat(page, server, await server.socket())
    await answered(chat, "One?", "1")
    await answered(chat, "Two?", "2")
    await expect(page.locator(".answer")).to_have_text(["1", "2"])


async def test_a_question_is_edited_and_asked_again_in_place_of_what_followed(chat: Chat) -> None:
    page = chat.page
    first = await answered(chat, "One?", "1")
    await answered(chat, "Two?", "2")
    await answered(chat, "Three?", "3")
    await page.get_by_label("Your message").fill("half a thought")
    await page.locator(".turn").nth(1).get_by_role("button", name="Edit this question").click()
    await expect(page.get_by_label("Your message")).to_have_value("Two?")
    await expect(page.locator(".editing")).to_contain_text("replaces the answer and all that follows")
    await chat.ask("Two, rather?")
    anew = await chat.socket.asked()
    assert anew.create["previous_response_id"] == first.response_id
    assert anew.create["input"] == "Two, rather?"
    await anew.begin("2'")
    await expect(page.locator(".answer")).to_have_text(["1", "2'"])
    await expect(page.locator(".editing")).to_be_hidden()
    await expect(page.get_by_label("Your message")).to_have_value("half a thought")


async def test_an_edit_can_be_left_and_changes_nothing(chat: Chat) -> None:
    page = chat.page
    await answered(chat, "One?", "1")
    await page.get_by_label("Your message").focus()
    await page.keyboard.press("ArrowUp")
    await expect(page.get_by_label("Your message")).to_have_value("One?")
    await page.keyboard.press("Escape")
    await expect(page.get_by_label("Your message")).to_have_value("")
    await expect(page.locator(".editing")).to_be_hidden()
    await expect(page.locator(".answer")).to_have_text("1")


async def answered(chat: Chat, question: str, text: str) -> Answer:
    """Asks, and lets the server answer."""
    known = await chat.page.locator(".turn").count()
    await chat.ask(question)
    answer = await chat.socket.asked()
    await answer.begin(text)
    await answer.complete()
    await expect(chat.page.locator(".turn[data-phase=finished]")).to_have_count(known + 1)
    return answer
