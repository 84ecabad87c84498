"""What a reader of the page can count on, seen in a browser."""

import re

import pytest
from playwright.async_api import Locator, Page, expect

from protocol.errors import ErrorCode
from tests.web.conftest import Chat
from tests.web.scripted_server import MODEL, ScriptedServer


async def focused(page: Page) -> str | None:
    found: str | None = await page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")
    return found


# --- an answer, from question to end ----------------------------------------------------------------------------------


async def test_the_page_names_the_model_and_says_that_it_is_ready(chat: Chat) -> None:
    await expect(chat.page.get_by_text(MODEL)).to_be_visible()
    await expect(chat.page.locator("#state")).to_have_text("Your turn")
    await expect(chat.page.get_by_role("list", name="Suggestions").get_by_role("button")).to_have_count(4)


async def test_text_appears_as_it_is_written(chat: Chat) -> None:
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    assert answer.create["input"] == "Say hello."
    assert answer.create["model"] == MODEL
    assert "previous_response_id" not in answer.create
    shown = chat.page.locator(".answer")
    await answer.begin("Hello")
    await expect(shown).to_have_text("Hello")
    await answer.write(" ✓")
    await expect(shown).to_have_text("Hello ✓")
    await expect(chat.page.locator("#state")).to_have_text("The model’s turn")
    await answer.complete()
    await expect(chat.page.locator("#state")).to_have_text("Your turn")
    await expect(shown).to_have_text("Hello ✓")


async def test_a_finished_answer_says_how_fast_it_was_and_nothing_else(chat: Chat) -> None:
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    await answer.begin("Hello.")
    await answer.complete()
    await expect(chat.page.locator(".facts")).to_have_text(
        "First token 55 ms · 50 tokens/s · 9 tokens in (4 from cache), 3 out"
    )
    await expect(chat.page.locator(".end")).to_be_hidden()


async def test_a_suggestion_is_a_question(chat: Chat) -> None:
    suggestion = chat.page.get_by_role("button", name="What is a rota")
    words = await suggestion.text_content()
    await suggestion.click()
    assert (await chat.socket.asked()).create["input"] == words
    await expect(chat.page.locator("#empty")).to_be_hidden()


async def test_whoever_waits_sees_their_place_and_then_that_they_are_read(chat: Chat) -> None:
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    progress = chat.page.locator(".progress")
    await answer.created("queued")
    await answer.queued(2, 4200.0)
    await expect(progress).to_have_text("2nd in line, about 4 s")
    await expect(chat.page.locator("#state")).to_have_text("In line")
    await expect(chat.page.locator(".line i")).to_have_count(2)
    await answer.queued(1, 40.0)
    await expect(progress).to_have_text("Next in line, under a second")
    await answer.queued(1, None)
    await expect(progress).to_have_text("Next in line")
    await answer.in_progress()
    await expect(progress).to_have_text("Reading…")
    await expect(chat.page.locator(".line i")).to_have_count(0)
    await answer.write("Hello.")
    await expect(progress).to_be_hidden()


async def test_what_a_model_writes_is_shown_as_text_and_never_run(chat: Chat) -> None:
    hostile = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>\n<b>not bold</b> &amp;"
    await chat.ask("<i>question</i>")
    answer = await chat.socket.asked()
    await answer.begin(hostile)
    await answer.complete()
    shown = chat.page.locator(".answer")
    await expect(shown).to_contain_text("not bold")
    assert await shown.evaluate("element => element.textContent") == hostile
    await expect(chat.page.locator("#turns").locator("script, img, b, i:not(.line i)")).to_have_count(0)
    await expect(chat.page.locator(".question")).to_contain_text("<i>question</i>")
    assert await chat.page.evaluate("window.pwned") is None


# --- why it ended -----------------------------------------------------------------------------------------------------


async def test_stop_sends_cancel_and_keeps_the_text(chat: Chat) -> None:
    await chat.ask("Count to a thousand.")
    answer = await chat.socket.asked()
    await answer.begin("One, two")
    await expect(chat.page.locator(".answer")).to_have_text("One, two")
    await chat.page.get_by_role("button", name="Stop").click()
    assert await chat.socket.receive() == {"type": "response.cancel", "response_id": answer.response_id}
    await expect(chat.page.locator(".progress")).to_have_text("Stopping…")
    await answer.cancelled()
    await expect(chat.page.locator(".answer")).to_have_text("One, two")
    await expect(chat.page.locator(".end-text")).to_have_text("Stopped by you.")


async def test_stop_before_the_answer_has_an_id_cancels_its_lane(chat: Chat) -> None:
    await chat.ask("Count to a thousand.")
    answer = await chat.socket.asked()
    await expect(chat.page.locator(".progress")).to_have_text("Sent…")
    await chat.page.keyboard.press("Escape")
    assert await chat.socket.receive() == {"type": "response.cancel", "stream_id": answer.create["stream_id"]}
    await answer.created("queued")
    await answer.cancelled()
    await expect(chat.page.locator(".end-text")).to_have_text("Stopped by you.")


async def test_stop_pressed_twice_does_without_a_server_that_no_longer_answers(chat: Chat) -> None:
    await chat.ask("Count to a thousand.")
    await (await chat.socket.asked()).begin("One")
    await expect(chat.page.locator(".answer")).to_have_text("One")
    await chat.page.keyboard.press("Escape")
    await chat.page.keyboard.press("Escape")
    await expect(chat.page.locator(".end-text")).to_have_text("Stopped by you.")
    assert await chat.socket.close_code() == 1000
    await chat.server.socket()
    await expect(chat.page.locator("#state")).to_have_text("Your turn")


async def test_a_stopped_answer_can_be_continued_from(chat: Chat) -> None:
    await chat.ask("Count.")
    first = await chat.socket.asked()
    await first.begin("One")
    await expect(chat.page.locator(".answer")).to_have_text("One")
    await chat.page.keyboard.press("Escape")
    await chat.socket.receive()
    await first.cancelled()
    await expect(chat.page.locator(".end")).to_be_visible()
    await chat.ask("Go on.")
    second = await chat.socket.asked()
    assert second.create["previous_response_id"] == first.response_id
    assert second.create["input"] == "Go on."
    await chat.page.keyboard.press("Escape")
    await chat.socket.receive()
    await second.cancelled()
    await expect(chat.page.locator(".end-text").last).to_have_text("Stopped by you.")
    # Nothing had been written yet that could be continued.
    await expect(offered(chat.page)).to_have_count(0)


async def test_a_stopped_answer_offers_to_continue(chat: Chat) -> None:
    await chat.ask("Count.")
    first = await chat.socket.asked()
    await first.begin("One")
    await expect(chat.page.locator(".answer")).to_have_text("One")
    await chat.page.keyboard.press("Escape")
    await chat.socket.receive()
    await first.cancelled()
    await chat.page.get_by_role("button", name="Continue").click()
    second = await chat.socket.asked()
    assert second.create["previous_response_id"] == first.response_id
    assert second.create["input"] == "Continue from where you stopped."
    await expect(offered(chat.page)).to_have_count(0)


async def test_an_answer_cut_off_by_the_output_limit_says_so_and_can_be_continued(chat: Chat) -> None:
    await chat.ask("Tell me a story.")
    first = await chat.socket.asked()
    await first.begin("Once upon a")
    await first.cut_off()
    await expect(chat.page.locator(".end-text")).to_have_text("Cut off by the output limit.")
    await chat.page.get_by_role("button", name="Continue").click()
    second = await chat.socket.asked()
    assert second.create["previous_response_id"] == first.response_id
    assert second.create["input"] == "Continue from where you stopped."
    await expect(chat.page.get_by_role("button", name="Continue")).to_have_count(0)


async def test_a_failure_keeps_the_text_says_how_much_and_can_be_tried_again(chat: Chat) -> None:
    await chat.ask("Say hello.")
    parent = await chat.socket.asked()
    await parent.begin("Hello.")
    await parent.complete()
    await chat.ask("And goodbye?")
    failed = await chat.socket.asked()
    await failed.begin("Good ✓")
    await failed.fail()
    await expect(chat.page.locator(".answer").last).to_have_text("Good ✓")
    await expect(chat.page.locator(".end-text").last).to_have_text("Interrupted: the server failed after 6 characters.")
    await chat.page.get_by_role("button", name="Try again").click()
    again = await chat.socket.asked()
    assert again.create["previous_response_id"] == parent.response_id
    assert again.create["input"] == "And goodbye?"
    await again.begin("Goodbye.")
    await again.complete()
    await expect(chat.page.locator(".answer")).to_have_text(["Hello.", "Good ✓", "Goodbye."])


async def test_an_answer_the_server_stopped_in_the_middle_of_is_kept_marked_and_can_be_tried_again(chat: Chat) -> None:
    await chat.ask("Say hello.")
    cut = await chat.socket.asked()
    await cut.begin("Hel")
    await cut.shut_down()
    await chat.socket.connection.close(1001)
    await expect(chat.page.locator(".answer")).to_have_text("Hel")
    await expect(chat.page.locator(".end-text")).to_have_text(
        "Interrupted after 3 characters. The server stopped before this answer was finished. Send the request again."
    )
    await expect(chat.page.locator(".turn")).to_have_attribute("data-ending", "failed")
    await expect(chat.page.locator("#notice")).to_contain_text("The server is shutting down.")
    await chat.page.get_by_role("button", name="Try again").click()
    assert (await (await chat.server.socket()).asked()).create["input"] == "Say hello."


async def test_going_on_after_a_failure_sends_what_the_reader_saw_with_the_parent(chat: Chat) -> None:
    await chat.ask("Say hello.")
    parent = await chat.socket.asked()
    await parent.begin("Hello.")
    await parent.complete()
    await chat.ask("And goodbye?")
    failed = await chat.socket.asked()
    await failed.begin("Good")
    await failed.fail()
    await expect(chat.page.locator(".end-text").last).to_contain_text("Interrupted")
    await chat.ask("Finish the word.")
    following = await chat.socket.asked()
    assert following.create["previous_response_id"] == parent.response_id
    assert following.create["input"] == [
        {"type": "message", "role": "user", "content": "And goodbye?"},
        {"type": "message", "role": "assistant", "content": "Good"},
        {"type": "message", "role": "user", "content": "Finish the word."},
    ]


async def test_a_refusal_says_why_and_counts_down_to_when_to_come_back(page: Page, server: ScriptedServer) -> None:
    await page.clock.install()
    await page.goto(server.origin)
    socket = await server.socket()
    chat = Chat(page, server, socket)
    await chat.ask("Say hello.")
    refused = await socket.asked()
    await refused.refuse("server_overloaded", "The queue is full. Try again in 1.5 s.", 1500)
    await expect(page.locator(".end-text")).to_have_text("The queue is full. Try again in 1.5 s.")
    again = page.get_by_role("button", name="Try again")
    await expect(again).to_have_text(re.compile(r"Try again in [12] s"))
    await expect(again).to_be_disabled()
    await page.clock.run_for(2000)
    await expect(again).to_have_text("Try again")
    await again.click()
    assert (await socket.asked()).create["input"] == "Say hello."


async def test_a_refused_message_can_be_edited(chat: Chat) -> None:
    await chat.ask("far too long")
    refused = await chat.socket.asked()
    await refused.refuse("context_length_exceeded", "The prompt is 9,120 tokens; the context is 8,192.")
    await chat.page.get_by_role("button", name="Edit message").click()
    await expect(chat.page.get_by_label("Your message")).to_have_value("far too long")
    assert await focused(chat.page) == "message"
    await chat.ask("shorter")
    assert (await chat.socket.asked()).create["input"] == "shorter"


async def test_editing_a_refused_message_keeps_what_was_written_meanwhile(chat: Chat) -> None:
    await chat.ask("far too long")
    refused = await chat.socket.asked()
    await chat.page.get_by_label("Your message").fill("and another thing")
    await refused.refuse("context_length_exceeded", "The prompt is 9,120 tokens; the context is 8,192.")
    await chat.page.get_by_role("button", name="Edit message").click()
    await expect(chat.page.get_by_label("Your message")).to_have_value("far too long\n\nand another thing")


def offered(page: Page) -> Locator:
    return page.locator(".end-actions button")


@pytest.mark.parametrize(
    ("code", "buttons"),
    [
        ("invalid_request_error", ["Edit message"]),
        ("unsupported_input", ["Edit message"]),
        ("model_not_found", ["Edit message"]),
        ("rate_limit_exceeded", ["Try again", "Edit message"]),
        ("shutting_down", ["Try again", "Edit message"]),
        ("internal_error", ["Try again", "Edit message"]),
    ],
)
async def test_a_refused_message_can_be_sent_again_only_if_that_may_help(
    chat: Chat, code: ErrorCode, buttons: list[str]
) -> None:
    await chat.ask("Say hello.")
    await (await chat.socket.asked()).refuse(code, "Not like this.")
    await expect(chat.page.locator(".end-text")).to_have_text("Not like this.")
    await expect(offered(chat.page)).to_have_text(buttons)


async def test_a_message_that_is_too_long_for_the_socket_is_not_offered_again_as_it_is(chat: Chat) -> None:
    await chat.ask("far too long")
    await chat.socket.asked()
    await chat.socket.connection.close(1009)
    await expect(chat.page.locator(".end-text")).to_have_text("The message is larger than this server accepts.")
    await expect(offered(chat.page)).to_have_text(["Edit message"])


async def test_a_message_with_no_room_behind_the_conversation_can_be_taken_to_a_new_one(chat: Chat) -> None:
    await chat.ask("Say hello.")
    first = await chat.socket.asked()
    await first.begin("Hello.")
    await first.complete()
    await expect(chat.page.locator(".facts")).to_be_visible()
    await chat.ask("And now the whole of it.")
    refused = await chat.socket.asked()
    await refused.refuse("context_length_exceeded", "The prompt is 9,120 tokens; the context is 8,192.")
    await expect(offered(chat.page)).to_have_text(["Edit message", "New conversation"])
    await offered(chat.page).last.click()
    await expect(chat.page.locator(".turn")).to_have_count(0)
    await expect(chat.page.get_by_label("Your message")).to_have_value("And now the whole of it.")
    await chat.page.keyboard.press("Enter")
    anew = await chat.socket.asked()
    assert "previous_response_id" not in anew.create
    assert anew.create["input"] == "And now the whole of it."
    await anew.refuse("context_length_exceeded", "The prompt is 9,000 tokens; the context is 8,192.")
    # With nothing in front of it a new conversation would be no better.
    await expect(offered(chat.page)).to_have_text(["Edit message"])


async def test_an_error_about_the_socket_ends_no_answer(chat: Chat) -> None:
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    await answer.begin("Hel")
    error = {
        "type": "invalid_request_error",
        "code": "websocket_connection_limit_reached",
        "message": "60 minutes old.",
    }
    await chat.socket.send({"type": "error", "status": 400, "error": error})
    await expect(chat.page.locator("#notice")).to_contain_text("60 minutes old.")
    await answer.write("lo.")
    await expect(chat.page.locator(".answer")).to_have_text("Hello.")


# --- the conversation -------------------------------------------------------------------------------------------------


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


async def test_a_new_conversation_cancels_the_running_answer_and_starts_from_nothing(chat: Chat) -> None:
    await chat.ask("Count.")
    first = await chat.socket.asked()
    await first.begin("One")
    await expect(chat.page.locator(".answer")).to_have_text("One")
    await chat.page.get_by_role("button", name="New conversation").click()
    assert (await chat.socket.receive())["type"] == "response.cancel"
    await expect(chat.page.locator("#empty")).to_be_visible()
    await chat.ask("Say hello.")
    second = await chat.socket.asked()
    assert "previous_response_id" not in second.create
    # The lane is first in, first out: what is left of the old answer comes first, and must not show in the new one.
    await first.write(", two")
    await first.cancelled()
    await second.begin("Hello.")
    await expect(chat.page.locator(".answer")).to_have_text("Hello.")
    await expect(chat.page.locator(".turn")).to_have_count(1)


# --- the connection ---------------------------------------------------------------------------------------------------


async def test_losing_the_socket_in_mid_answer_keeps_the_text_and_offers_to_try_again(chat: Chat) -> None:
    await chat.ask("Say hello.")
    await (await chat.socket.asked()).begin("Hel")
    await expect(chat.page.locator(".answer")).to_have_text("Hel")
    await chat.socket.drop()
    await expect(chat.page.locator(".answer")).to_have_text("Hel")
    await expect(chat.page.locator(".end-text")).to_have_text(
        "Interrupted: the connection was lost after 3 characters."
    )
    await chat.page.get_by_role("button", name="Try again").click()
    reconnected = await chat.server.socket()
    assert (await reconnected.asked()).create["input"] == "Say hello."


async def test_a_lost_server_is_tried_again_by_itself_later_and_later(page: Page, server: ScriptedServer) -> None:
    await page.clock.install()
    server.up = False
    await page.goto(server.origin)
    notice = page.locator("#notice")
    await expect(page.locator("#state")).to_have_text("Offline")
    await expect(notice).to_contain_text("The server is starting. Trying again in 1 s.")
    for _ in range(7):
        async with page.expect_response("**/v1/models"):
            await page.clock.fast_forward(10_000)
        await expect(page.locator("#state")).to_have_text("Offline")
    await expect(notice).to_contain_text(re.compile(r"Trying again in ([5-9]|10) s"))
    server.up = True
    await page.get_by_role("button", name="Try now").click()
    await server.socket()
    await expect(page.locator("#state")).to_have_text("Your turn")
    await expect(notice).to_be_hidden()


async def test_a_message_written_while_offline_is_sent_once_there_is_a_socket(
    page: Page, server: ScriptedServer
) -> None:
    server.up = False
    await page.goto(server.origin)
    await expect(page.locator("#state")).to_have_text("Offline")
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
    notice = page.locator("#notice")
    for _ in range(7):
        await expect(page.locator("#state")).to_have_text("Offline")
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
    await expect(page.locator("#kept")).to_contain_text("your last message waits for the connection")
    server.up = True
    await page.keyboard.press("Enter")
    assert (await (await server.socket()).asked()).create["input"] == "Are you there?"
    await expect(page.get_by_label("Your message")).to_have_value("Anyone?")


async def test_an_idle_socket_closed_in_order_is_opened_again_when_it_is_needed(chat: Chat) -> None:
    await chat.socket.connection.close(1000)
    await expect(chat.page.locator("#state")).to_have_attribute("data-state", "resting")
    await expect(chat.page.locator("#notice")).to_be_hidden()
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
    await expect(page.locator("#state")).to_have_text("Your turn")
    await page.reload()
    await server.socket()
    await expect(page.locator("#state")).to_have_text("Your turn")


# --- anyone's hands, anyone's eyes ------------------------------------------------------------------------------------


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
    assert await focused(page) == "stop"
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
    hint, kept = chat.page.locator("#hint"), chat.page.locator("#kept")
    await expect(hint.locator("span:visible").first).to_have_text("Esc stops · Enter sends once the answer has ended")
    await chat.ask("and then")
    await expect(chat.page.get_by_label("Your message")).to_have_value("and then")
    why = "Not sent yet: the model is still answering. It can be sent when the answer has ended; Esc stops it."
    await expect(kept).to_have_text(why)
    await answer.write(", two")
    await expect(chat.page.locator(".answer")).to_have_text("One, two")
    await expect(kept).to_have_text(why)
    await expect(chat.page.get_by_role("status")).to_have_text(why)  # more text does not talk over it
    await answer.complete()
    await expect(chat.page.locator("#state")).to_have_text("Your turn")
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
    await chat.ask("and then")
    first = await status.text_content()
    await chat.page.keyboard.press("Enter")
    assert await status.text_content() != first  # only a change is read aloud
    await chat.page.get_by_label("Your message").fill("")
    await expect(chat.page.locator("#kept")).to_be_hidden()


async def test_on_a_phone_the_note_does_not_speak_of_keys_it_has_not_got(phone: Page, server: ScriptedServer) -> None:
    await phone.goto(server.origin)
    chat = Chat(phone, server, await server.socket())
    await chat.ask("Count.")
    await (await chat.socket.asked()).begin("One")
    await chat.ask("and then")
    await expect(phone.locator("#kept")).to_have_text(
        "Not sent yet: the model is still answering. It can be sent when the answer has ended."
    )
    await expect(phone.locator("#kept")).to_be_in_viewport()
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
    assert await page.evaluate("document.activeElement.className") == "copy"
    await expect(copy).to_be_visible()
    # The conversation going on takes nothing from it.
    await chat.ask("And now?")
    await chat.socket.asked()
    await expect(copy).to_be_visible()


async def test_a_listener_hears_what_is_going_on_and_the_answer_once_it_is_whole(chat: Chat) -> None:
    status = chat.page.get_by_role("status")
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    await answer.created("queued")
    await answer.queued(2, 4200.0)
    await expect(status).to_have_text("2nd in line, about 4 s")
    await answer.in_progress()
    await answer.write("Hel")
    await expect(status).to_have_text("Writing…")
    await answer.write("lo.")
    await answer.complete()
    await expect(status).to_have_text("Answer finished. Hello.")


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


async def expect_no_sideways_scroll(page: Page) -> None:
    too_wide = """() => ["html", "#scroll", "#turns", ".bottom"].filter((name) => {
        const element = document.querySelector(name);
        return element.scrollWidth > element.clientWidth;
    })"""
    assert await page.evaluate(too_wide) == []


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
    page, scroll = chat.page, chat.page.locator("#scroll")
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
