"""An answer from its question to its end, as a reader of the page sees it in a browser."""

from playwright.async_api import expect

from tests.web.conftest import Chat
from tests.web.scripted_server import MODEL


async def test_the_page_names_the_model_and_says_that_it_is_ready(chat: Chat) -> None:
    await expect(chat.page.get_by_text(MODEL)).to_be_visible()
    await expect(chat.page.locator(".state")).to_have_text("Your turn")
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
    await expect(chat.page.locator(".state")).to_have_text("The model’s turn")
    await answer.complete()
    await expect(chat.page.locator(".state")).to_have_text("Your turn")
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
    await expect(chat.page.locator(".empty")).to_be_hidden()


async def test_whoever_waits_sees_their_place_and_then_that_they_are_read(chat: Chat) -> None:
    await chat.ask("Say hello.")
    answer = await chat.socket.asked()
    progress = chat.page.locator(".progress")
    await answer.created("queued")
    await answer.queued(2, 4200.0)
    await expect(progress).to_have_text("2nd in line, about 4 s")
    await expect(chat.page.locator(".state")).to_have_text("In line")
    await expect(chat.page.locator(".line i")).to_have_count(2)
    await answer.queued(1, 40.0)
    await expect(progress).to_have_text("Next in line, under a second")
    await answer.queued(1, None)
    await expect(progress).to_have_text("Next in line")
    await answer.in_progress()
    await expect(progress).to_have_text("Reading your question…")
    await expect(chat.page.locator(".line i")).to_have_count(0)
    await answer.write("Hello.")
    await expect(progress).to_be_hidden()


async def test_whoever_asked_something_long_sees_how_far_it_has_been_read(chat: Chat) -> None:
    await chat.ask("Compare all of them.")
    answer = await chat.socket.asked()
    await answer.created()
    await answer.in_progress(4096, 11970)
    await expect(chat.page.locator(".progress-text")).to_have_text("Reading your question: 4,096 of 11,970 tokens")
    meter = chat.page.get_by_role("progressbar")
    assert await meter.evaluate("meter => [meter.value, meter.max]") == [4096, 11970]
    await answer.in_progress(8192, 11970)
    await expect(chat.page.locator(".progress-text")).to_have_text("Reading your question: 8,192 of 11,970 tokens")
    await answer.write("The first")
    await expect(meter).to_be_hidden()
    await expect(chat.page.locator(".progress")).to_be_hidden()


async def test_what_a_model_writes_is_never_run(chat: Chat) -> None:
    script = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"
    hostile = f"{script}\n[x](javascript:window.pwned=1) <b>no</b>"
    await chat.ask("<i>question</i>")
    answer = await chat.socket.asked()
    await answer.begin(hostile)
    await answer.complete()
    shown = chat.page.locator(".answer")
    await expect(shown).to_contain_text("<b>no</b>")
    await expect(shown).to_contain_text(script)
    await expect(shown.locator("script, img, b, a")).to_have_count(0)
    await expect(chat.page.locator(".question")).to_contain_text("<i>question</i>")
    assert await chat.page.evaluate("window.pwned") is None
