"""Why an answer ended, what the page says of it, and what it offers then."""

import re

import pytest
from playwright.async_api import Page, expect

from protocol.errors import ErrorCode
from tests.web.conftest import Chat
from tests.web.reading import focused, offered
from tests.web.scripted_server import ScriptedServer


async def test_stop_sends_cancel_and_keeps_the_text(chat: Chat) -> None:
    await chat.ask("Count to a thousand.")
    answer = await chat.socket.asked()
    await answer.begin("One, two")
    await expect(chat.page.locator(".answer")).to_have_text("One, two")
    await chat.page.get_by_role("button", name="Stop").click()
    named = {"stream_id": answer.create["stream_id"], "response_id": answer.response_id}
    assert await chat.socket.receive() == {"type": "response.cancel", **named}
    await expect(chat.page.locator(".progress")).to_have_text("Stopping…")
    await answer.cancelled()
    await expect(chat.page.locator(".answer")).to_have_text("One, two")
    await expect(chat.page.locator(".end-text")).to_have_text("Stopped by you.")


async def test_stop_before_the_answer_has_an_id_cancels_its_lane(chat: Chat) -> None:
    await chat.ask("Count to a thousand.")
    answer = await chat.socket.asked()
    await expect(chat.page.locator(".progress")).to_have_text("Sent…")
    await chat.page.keyboard.press("Escape")
    named = {"stream_id": answer.create["stream_id"], "response_id": None}
    assert await chat.socket.receive() == {"type": "response.cancel", **named}
    await answer.created("queued")
    await answer.cancelled()
    await expect(chat.page.locator(".end-text")).to_have_text("Stopped by you.")


async def test_stop_pressed_again_later_does_without_a_server_that_no_longer_answers(
    page: Page, server: ScriptedServer
) -> None:
    await page.clock.install()
    await page.goto(server.origin)
    chat = Chat(page, server, await server.socket())
    await chat.ask("Count to a thousand.")
    await (await chat.socket.asked()).begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    await page.get_by_role("button", name="Stop").dblclick()  # is one press too many, and no more
    await expect(page.locator(".progress")).to_have_text("Stopping…")
    assert (await chat.socket.receive())["type"] == "response.cancel"
    await page.clock.run_for(2500)
    await page.keyboard.press("Escape")
    await expect(page.locator(".end-text")).to_have_text("Stopped by you.")
    assert await chat.socket.close_code() == 1000
    await server.socket()
    await expect(page.locator(".state")).to_have_text("Your turn")


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
    await second.begin("time")
    await expect(chat.page.locator(".answer")).to_have_text(["Once upon a", "time"])
    await expect(chat.page.locator(".question:visible")).to_have_count(1)  # nobody typed another
    await expect(chat.page.locator(".aside:visible")).to_have_text("Continued")


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
    await expect(chat.page.locator(".notice")).to_contain_text("The server is shutting down.")
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


async def test_a_message_that_is_too_large_takes_the_blame_from_what_was_accepted(chat: Chat) -> None:
    page = chat.page
    await chat.ask("Count.")
    accepted = await chat.socket.asked()
    await accepted.begin("One")
    await expect(page.locator(".answer")).to_have_text("One")
    await page.get_by_role("button", name="New conversation").click()
    await chat.ask("far too long")
    await chat.socket.asked()
    await chat.socket.connection.close(1009)
    await expect(page.locator(".end-text")).to_have_text("The message is larger than this server accepts.")
    await (await chat.server.socket()).asked_to_resume(accepted)
    await accepted.forgotten()
    await page.get_by_role("button", name="Conversations").click()
    await page.locator(".talk").last.click()
    await expect(page.locator(".end-text")).to_contain_text("the connection was lost after 3 characters")


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
    await expect(chat.page.locator(".notice")).to_contain_text("60 minutes old.")
    await answer.write("lo.")
    await expect(chat.page.locator(".answer")).to_have_text("Hello.")
