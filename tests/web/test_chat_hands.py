"""Anyone's hands, anyone's eyes: keyboard, phone, screen reader, clipboard, scrolling."""

import pytest
from playwright.async_api import Page, expect

from tests.web.conftest import Chat
from tests.web.reading import expect_no_sideways_scroll, focused
from tests.web.scripted_server import ScriptedServer


async def test_everything_can_be_done_from_the_keyboard(chat: Chat) -> None:
    page, press = chat.page, chat.page.keyboard.press
    assert await focused(page) == "message"
    await page.keyboard.type("first line")
    await press("Shift+Enter")
    await page.keyboard.type("second line")
    await press("Enter")
    first = await chat.socket.asked()
    assert first.create["input"] == "first line\nsecond line"
    await first.begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    await press("Tab")
    assert await focused(page) == "Stop"
    await press("Enter")
    assert (await chat.socket.receive())["type"] == "response.cancel"
    await first.cancelled()
    await expect(page.locator(".end-text")).to_have_text("Stopped by you.")
    assert await focused(page) == "message"
    await page.keyboard.type("again")
    await press("Enter")
    second = await chat.socket.asked()
    await second.begin("Two")
    await second.cut_off()
    await expect(page.get_by_role("button", name="Continue")).to_be_visible()
    await press("Shift+Tab")
    assert await focused(page) == "Copy answer"
    await press("Shift+Tab")
    assert await focused(page) == "Continue"
    await press("Enter")
    assert (await chat.socket.asked()).create["previous_response_id"] == second.response_id
    assert await focused(page) == "message"


async def test_enter_while_the_model_answers_keeps_the_message_in_the_box(chat: Chat) -> None:
    await chat.ask("Count.")
    answer = await chat.socket.asked()
    await answer.begin("One")
    hint, kept = chat.page.locator(".hint"), chat.page.locator(".kept")
    await expect(hint.locator("span:visible").first).to_have_text("Esc stops · Enter sends once the answer has ended")
    await chat.enter("and then")
    await expect(chat.page.get_by_label("Your message")).to_have_value("and then")
    why = "Not sent yet: the model is still answering. It can be sent when the answer has ended; Esc stops it."
    await expect(kept).to_have_text(why)
    await answer.write(", two")
    await expect(chat.page.locator(".answer")).to_have_text("One, two")
    await expect(kept).to_have_text(why)
    await expect(chat.page.get_by_role("status")).to_have_text(why)  # more text does not talk over it
    await answer.complete()
    await expect(chat.page.locator(".state")).to_have_text("Your turn")
    await expect(kept).to_be_hidden()
    await expect(hint.locator("span:visible").first).to_have_text("Enter sends · Shift+Enter new line")
    await expect(chat.page.get_by_role("status")).to_contain_text("Your message can be sent now.")
    await chat.page.keyboard.press("Enter")
    assert (await chat.socket.asked()).create["input"] == "and then"


async def test_each_enter_while_the_model_answers_is_heard_until_the_box_is_empty(chat: Chat) -> None:
    await chat.ask("Count.")
    await (await chat.socket.asked()).begin("One")
    status = chat.page.get_by_role("status")
    await expect(status).to_have_text("Writing…")
    await chat.enter("and then")
    first = await status.text_content()
    await chat.page.keyboard.press("Enter")
    assert await status.text_content() != first  # only a change is read aloud
    await chat.page.get_by_label("Your message").fill("")
    await expect(chat.page.locator(".kept")).to_be_hidden()


async def test_on_a_phone_the_note_does_not_speak_of_keys_it_has_not_got(phone: Page, server: ScriptedServer) -> None:
    await phone.goto(server.origin)
    chat = Chat(phone, server, await server.socket())
    await chat.ask("Count.")
    await (await chat.socket.asked()).begin("One")
    await chat.enter("and then")
    await expect(phone.locator(".kept")).to_have_text(
        "Not sent yet: the model is still answering. It can be sent when the answer has ended."
    )
    await expect(phone.locator(".kept")).to_be_in_viewport()
    await expect_no_sideways_scroll(phone)


WRITTEN = "First  line\n\n  second <line> ✓"


@pytest.mark.parametrize("secure", [True, False], ids=["secure", "plain-http-from-elsewhere"])
async def test_an_ended_answer_can_be_copied_from_the_keyboard(
    page: Page, server: ScriptedServer, secure: bool
) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.origin)
    await page.add_init_script("window.paste = navigator.clipboard.readText.bind(navigator.clipboard)")
    if not secure:
        await page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    await page.goto(server.origin)
    chat = Chat(page, server, await server.socket())
    copy = page.get_by_role("button", name="Copy answer")
    await chat.ask("Say two lines.")
    answer = await chat.socket.asked()
    await answer.begin(WRITTEN)
    await expect(page.locator(".answer")).to_contain_text("second")
    await expect(copy).to_be_hidden()
    await answer.complete()
    await copy.focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(".copy")).to_contain_text("Copied")
    await expect(page.get_by_role("status")).to_have_text("Copied.")
    assert await page.evaluate("window.paste()") == WRITTEN
    assert await focused(page) == "Copied answer"
    await expect(copy).to_be_visible()
    # The conversation going on takes nothing from it.
    await chat.ask("And now?")
    await chat.socket.asked()
    await expect(copy).to_be_visible()


async def test_a_listener_hears_what_is_going_on_and_the_answer_in_sentences(chat: Chat) -> None:
    status, log = chat.page.get_by_role("status"), chat.page.get_by_role("log").locator("p")
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    await answer.created("queued")
    await answer.queued(2, 4200.0)
    await expect(status).to_have_text("2nd in line")
    await answer.in_progress()
    await answer.write("Hel")
    await expect(status).to_have_text("Writing…")
    await answer.write("lo, **you**. How")
    await expect(log).to_have_text(["Hello, you."])
    await answer.write(" are")
    await answer.write(" you?")
    await answer.complete()
    await expect(log).to_have_text(["Hello, you.", "How are you?"])
    await expect(status).to_have_text("Answer finished.")
    await chat.ask("And in code?")
    answer = await chat.socket.asked()
    await answer.begin("Use _this_:\n```python\nsnake_case = a | b  # c\n```\nDone.")
    await answer.complete()
    await expect(log.last).to_have_text("Use this: Code: snake_case = a | b # c Done.")
    await chat.page.get_by_role("button", name="New conversation").click()
    await expect(log).to_have_count(0)


async def test_a_phone_never_has_to_scroll_sideways(phone: Page, server: ScriptedServer) -> None:
    page = phone
    await page.goto(server.origin)
    chat = Chat(page, server, await server.socket())
    await expect_no_sideways_scroll(page)
    await chat.ask("q" * 300)
    answer = await chat.socket.asked()
    await answer.created("queued")
    await answer.queued(40, 100_000.0)
    await expect(page.locator(".progress")).to_have_text("40th in line, about 2 min")
    await expect_no_sideways_scroll(page)
    await answer.in_progress()
    await answer.write("https://example.org/" + "w" * 400)
    await answer.fail()
    await expect(page.get_by_role("button", name="Try again")).to_be_visible()
    await expect_no_sideways_scroll(page)
    await expect(page.get_by_label("Your message")).to_be_in_viewport()


# Once nothing scrolls any more: where the top is, and how far the end is out of sight.
WHEN_STILL = """(element) => new Promise((done) => {
    let last = null;
    const look = () => {
        const toEnd = element.scrollHeight - element.clientHeight - element.scrollTop;
        const now = [element.scrollTop, toEnd];
        if (String(now) === last) return done(now);
        last = String(now);
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
})"""


async def test_the_text_is_followed_until_the_reader_scrolls_up(chat: Chat) -> None:
    page, scroll = chat.page, chat.page.locator(".scroll")
    latest = page.get_by_role("button", name="Latest")
    await chat.ask("Tell me everything.")
    answer = await chat.socket.asked()
    await answer.begin("line\n" * 100 + "end of the first part")
    await expect(page.locator(".answer")).to_contain_text("end of the first part")
    top, to_end = await scroll.evaluate(WHEN_STILL)
    assert top > 0
    assert to_end < 2
    await scroll.hover()
    await page.mouse.wheel(0, -1500)
    await expect(latest).to_be_visible()
    where_the_reader_is, _ = await scroll.evaluate(WHEN_STILL)
    await answer.write("line\n" * 50)
    await answer.complete()
    await expect(page.locator(".facts")).not_to_be_empty()
    top, _ = await scroll.evaluate(WHEN_STILL)
    assert top == where_the_reader_is
    await latest.click()
    await expect(latest).to_be_hidden()
    _, to_end = await scroll.evaluate(WHEN_STILL)
    assert to_end < 2


async def test_from_right_to_left_everything_stands_the_other_way_round(phone: Page, server: ScriptedServer) -> None:
    await phone.goto(server.origin)
    await phone.evaluate("document.documentElement.dir = 'rtl'")
    chat = Chat(phone, server, await server.socket())
    await chat.ask("איזה מחשב נייד כדאי לקנות?")
    answer = await chat.socket.asked()
    await answer.begin("Aspire 5 זול. Then English.")
    await answer.complete()
    await expect(phone.locator(".answer")).to_contain_text("Then English")
    await expect_no_sideways_scroll(phone)
    send = await phone.get_by_role("button", name="Send").bounding_box()
    box = await phone.get_by_label("Your message").bounding_box()
    assert send is not None
    assert box is not None
    assert send["x"] < box["x"]


async def test_nothing_moves_for_whoever_asked_for_that(page: Page, server: ScriptedServer) -> None:
    await page.emulate_media(reduced_motion="reduce")
    await page.goto(server.origin)
    chat = Chat(page, server, await server.socket())
    await chat.ask("Say hello.")
    await chat.socket.asked()
    await expect(page.locator(".progress .ring-turn")).to_be_visible()
    moving = """() => document.getAnimations().length"""
    assert await page.evaluate(moving) == 0


@pytest.mark.parametrize("size", [(320, 568), (740, 360)], ids=["narrow", "low"])
async def test_an_empty_page_shows_its_beginning(page: Page, server: ScriptedServer, size: tuple[int, int]) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    await page.goto(server.origin)
    await server.socket()
    await expect(page.locator(".state")).to_have_text("Your turn")
    await expect(page.locator(".empty .empty-title")).to_be_in_viewport(ratio=1)
    assert await page.locator(".scroll").evaluate("box => box.scrollTop") == 0


async def test_a_very_long_question_leaves_room_for_what_became_of_it(chat: Chat) -> None:
    await chat.ask("word " * 5000)
    await (await chat.socket.asked()).refuse("context_length_exceeded", "The prompt is 9,120 tokens.")
    await expect(chat.page.locator(".end-text")).to_be_in_viewport()
    await expect(chat.page.locator(".question")).to_be_in_viewport()
    question = chat.page.locator(".question-text")
    await question.focus()
    await chat.page.keyboard.press("End")
    await chat.page.wait_for_function(
        "() => document.querySelector('rota-chat').shadowRoot.querySelector('.question-text').scrollTop > 0"
    )
