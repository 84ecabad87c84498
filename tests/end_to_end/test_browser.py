"""The real page in a real browser, opposite the real server: in whatever happens, the page says what is true.

Two models: the default one, and one that writes random letters until it is stopped. Where the page's own doings are
looked at closer, opposite a server that says what it is told to, is `tests/web/`.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Locator, Page, WebSocket, expect

from kernels.byte_tokeniser import VOCABULARY
from tests.end_to_end.conftest import CONTEXT, Start, legible_model
from tests.end_to_end.line import Line
from tests.end_to_end.server import LOOK_AGAIN_S, Server, killed_at_last, serving
from tests.web.conftest import watched_page

PATIENCE_MS = 60_000
FREED_S = 0.3
ENDLESS = ("--dtype", "float32", "--max-output-tokens", "6000")
STORY = "Write a long story about a lighthouse and the sea."
LETTERS = set(b"abcdefghijklmnopqrstuvwxyz ")


@pytest.fixture(scope="module")
def endless_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model that writes letters and spaces, the likeliest one each time, and never ends by itself."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = legible_model(tmp_path_factory.mktemp("models") / "endless")
    loaded: Any = AutoModelForCausalLM
    model = loaded.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        # A logit of zero never wins against the best of 27 random ones.
        model.lm_head.weight[[token for token in range(VOCABULARY) if token not in LETTERS]] = 0
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"top_k": 1}))
    return folder


@pytest.fixture(scope="module")
def endless(shared: Start, endless_folder: Path) -> Server:
    return shared("--model", str(endless_folder), *ENDLESS)


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[BrowserContext]:
    """One person's browser: its tabs share what tabs share."""
    context = await browser.new_context()
    yield context
    await context.close()


class Site(Protocol):
    """What serves the page."""

    http: str


OpenTab = Callable[[Site | Server], Awaitable[Page]]


@pytest_asyncio.fixture(loop_scope="session")
async def open_tab(context: BrowserContext) -> AsyncIterator[OpenTab]:
    """Opens a tab on a server's page and waits for the reader's turn."""
    async with AsyncExitStack() as stack:

        async def tab(server: Site | Server) -> Page:
            page = await stack.enter_async_context(watched_page(cast(Browser, context)))
            page.set_default_timeout(PATIENCE_MS)
            await page.goto(server.http)
            await expect(state(page)).to_have_text("Your turn", timeout=PATIENCE_MS)
            return page

        yield tab


def state(page: Page) -> Locator:
    return page.locator(".state")


def ended(page: Page) -> Locator:
    return page.locator(".end-text").last


async def ask(page: Page, question: str) -> None:
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")


async def answer_of(page: Page) -> str:
    """The text of the last answer, as far as it has come."""
    return await page.locator(".answer").last.text_content() or ""


async def grows(page: Page, by: int = 20) -> None:
    """The last answer is being written: it is there, and becomes longer."""
    answer = page.locator(".answer").last
    await expect(answer).not_to_be_empty(timeout=PATIENCE_MS)
    least = len(await answer_of(page)) + by
    await expect(answer).to_have_text(re.compile(rf".{{{least},}}", re.DOTALL), timeout=PATIENCE_MS)


async def stop(page: Page) -> str:
    """Stop what is being written; returns what stays."""
    await page.get_by_role("button", name="Stop").click()
    await expect(ended(page)).to_have_text("Stopped by you.", timeout=PATIENCE_MS)
    return await answer_of(page)


class Wire:
    """The frames of a page's sockets, both ways."""

    def __init__(self, page: Page) -> None:
        self.asked: list[dict[str, Any]] = []
        self.ids: list[str] = []
        page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: self._sent(json.loads(frame)))
        socket.on("framereceived", lambda frame: self._received(json.loads(frame)))

    def _sent(self, event: dict[str, Any]) -> None:
        if event["type"] == "response.create":
            self.asked.append(event)

    def _received(self, event: dict[str, Any]) -> None:
        if event["type"] == "response.created":
            self.ids.append(event["response"]["id"])


async def test_an_answer_is_streamed_stopped_continued_and_found_again_after_a_reload(
    open_tab: OpenTab, real: Server
) -> None:
    known = len(real.logged("request.finished"))
    page = await open_tab(real)
    await expect(page.locator(".model")).to_have_text(real.model)
    wire = Wire(page)
    await page.reload()
    await expect(state(page)).to_have_text("Your turn")
    await ask(page, STORY)
    await grows(page)
    stopped = await stop(page)
    await real.empty()
    await page.get_by_role("button", name="Continue").click()
    await expect(page.locator(".answer")).to_have_count(2)
    await grows(page)
    continued = await stop(page)
    assert wire.asked[1]["previous_response_id"] == wire.ids[0]

    await page.reload()
    await expect(page.locator(".answer")).to_have_count(2)
    assert await page.locator(".answer").all_text_contents() == [stopped, continued]
    await expect(page.locator(".question-text").first).to_have_text(STORY)
    await expect(state(page)).to_have_text("Your turn")
    await ask(page, "Say only the word yes.")
    await expect(page.locator(".answer")).to_have_count(3)
    await expect(page.locator(".answer").last).not_to_be_empty()
    await page.keyboard.press("Escape")
    await expect(state(page)).to_have_text("Your turn")
    assert wire.asked[2]["previous_response_id"] == wire.ids[1]
    assert wire.asked[2]["input"] == "Say only the word yes."
    # Each question came with the whole conversation, the stopped answers included.
    figures = [line["input_tokens"] for line in await real.finished_since(known, 3)]
    assert figures[0] + 10 < figures[1] < figures[2] - 10


async def test_two_tabs_are_two_conversations_and_both_are_answered(open_tab: OpenTab, endless: Server) -> None:
    one, other = await open_tab(endless), await open_tab(endless)
    await ask(one, "What is a rota?")
    await ask(other, "Who needs one?")
    for page in (one, other):
        await grows(page)
    before = await answer_of(other)
    first = await stop(one)
    await grows(other)
    second = await stop(other)
    assert second.startswith(before)
    assert first[:20] != second[:20]
    for page, question in ((one, "What is a rota?"), (other, "Who needs one?")):
        await expect(page.locator(".question-text")).to_have_text([question])
    await endless.empty()


async def test_how_much_of_a_long_question_is_read_stands_there_in_numbers(
    open_tab: OpenTab, own: Start, endless_folder: Path
) -> None:
    # Small chunks of plain torch, so that it takes its time anywhere.
    slow = ("--device", "cpu", "--kernels", "torch", "--chunk-tokens", "8")
    page = await open_tab(own("--model", str(endless_folder), *ENDLESS, *slow))
    await ask(page, "So many words! " * (CONTEXT // 16))
    reading = re.compile(r"^Reading your question: [\d,]+ of 7,\d\d\d tokens$")
    await expect(page.locator(".progress-text")).to_have_text(reading, timeout=PATIENCE_MS)
    assert await stop(page) == ""


async def test_a_server_that_is_killed_and_comes_back_leaves_the_text_and_a_way_on(
    open_tab: OpenTab, endless_folder: Path, tmp_path: Path
) -> None:
    arguments = ("--model", str(endless_folder), *ENDLESS)
    with killed_at_last(tmp_path / "first", *arguments) as server:
        page = await open_tab(server)
        wire = Wire(page)
        await page.reload()
        await expect(state(page)).to_have_text("Your turn")
        await ask(page, "Begin.")
        await grows(page)
        first = await stop(page)
        await ask(page, "Go on, for long.")
        await expect(page.locator(".answer")).to_have_count(2)
        await grows(page)
        written = await answer_of(page)
        server.process.kill()
        server.process.wait()
        await expect(state(page)).to_have_text("Offline")
        await expect(page.locator(".notice")).to_contain_text("The server cannot be reached. Trying again in")
        kept = await answer_of(page)
        assert kept.startswith(written)
        port = server.port
    with serving(tmp_path / "second", *arguments, "--port", str(port)) as server:
        # Nobody has touched the page: it looks for its server by itself.
        await expect(state(page)).to_have_text("Your turn", timeout=PATIENCE_MS)
        await expect(page.locator(".notice")).to_be_hidden()
        await expect(ended(page)).to_have_text(
            re.compile(r"^Interrupted: the connection was lost after [\d,]+ characters\.$")
        )
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator(".answer")).to_have_count(3)
        await grows(page)
        await stop(page)
        assert (await page.locator(".answer").all_text_contents())[:2] == [first, kept]
        # This one has never heard of the conversation, and is told all of it.
        await expect(page.get_by_text("The server had forgotten this conversation")).to_be_visible()
        assert wire.asked[-2]["previous_response_id"] == wire.ids[0]
        assert "previous_response_id" not in wire.asked[-1]
        assert first in json.dumps(wire.asked[-1]["input"])


async def test_a_full_server_says_where_one_stands_and_refuses_whom_it_has_no_place_for(
    open_tab: OpenTab, own: Start, endless_folder: Path
) -> None:
    small = ("--max-running", "1", "--max-waiting", "1")
    server = own("--model", str(endless_folder), *ENDLESS, *small)
    served, waiting, refused = [await open_tab(server) for _ in range(3)]
    await ask(served, "Me first.")
    await grows(served)
    await ask(waiting, "Then me.")
    await expect(waiting.locator(".progress-text")).to_have_text(re.compile("^Next in line"))
    await expect(state(waiting)).to_have_text("In line")
    await ask(refused, "And me?")
    await expect(ended(refused)).to_contain_text(re.compile("full|wait", re.IGNORECASE))
    later = refused.get_by_role("button", name=re.compile(r"^Try again in \d+ s$"))
    await expect(later).to_have_attribute("aria-disabled", "true")
    assert server.logged("request.refused")[-1]["code"] in ("server_overloaded", "rate_limit_exceeded")

    await stop(served)
    await grows(waiting)
    await stop(waiting)
    await refused.get_by_role("button", name="Try again", exact=True).click()
    await grows(refused)
    await stop(refused)
    await server.empty()


async def test_a_moment_offline_is_said_and_costs_no_text(
    open_tab: OpenTab, context: BrowserContext, endless: Server
) -> None:
    page = await open_tab(endless)
    await ask(page, "Begin.")
    await grows(page)
    written = await answer_of(page)
    await context.set_offline(True)
    await expect(state(page)).to_have_text("Offline")
    await expect(page.locator(".notice")).to_contain_text("This device is offline.")
    await context.set_offline(False)
    await expect(page.locator(".notice")).to_be_hidden()
    await grows(page)
    assert (await stop(page)).startswith(written)
    await expect(page.locator(".answer")).to_have_count(1)


async def test_a_line_that_is_cut_in_mid_answer_costs_it_no_word(open_tab: OpenTab, endless: Server) -> None:
    await endless.empty()
    known = len(endless.logged("request.finished"))
    async with Line(endless) as line:
        page = await open_tab(line)
        wire = Wire(page)
        await page.reload()
        await expect(state(page)).to_have_text("Your turn")
        await ask(page, "Begin.")
        for _ in range(3):
            await grows(page)
            line.cut()
            await expect(page.locator(".notice")).to_contain_text("Trying again in")
            line.mend()
            await expect(page.locator(".notice")).to_be_hidden()
        await grows(page)
        text = await stop(page)
    assert len(wire.asked) == 1
    (finished,) = await endless.finished_since(known)
    assert finished["finish_reason"] == "cancelled"
    assert finished["resumed"] == 3
    assert finished["delivered_chars"] == len(text)
    # The same question has the same answer: nothing is missing in the first one, and nothing is in it twice.
    straight = await open_tab(endless)
    await ask(straight, "Begin.")
    await grows(straight, by=len(text))
    assert (await stop(straight)).startswith(text)
    await endless.empty()


async def test_a_line_that_is_cut_in_mid_answer_and_a_long_time_offline(
    open_tab: OpenTab, context: BrowserContext, endless: Server
) -> None:
    await endless.empty()
    known = len(endless.logged("request.finished"))
    async with Line(endless) as line:
        page = await open_tab(line)
        await ask(page, "Begin.")
        await grows(page)
        written = await answer_of(page)
        # Of a socket that stands the browser's switch keeps everything back, its end too. So the line is cut first.
        line.cut()
        await expect(state(page)).to_have_text("Offline")
        await expect(page.locator(".notice")).to_contain_text("Trying again in")
        await context.set_offline(True)
        line.mend()
        await expect(page.locator(".notice")).to_contain_text("The server cannot be reached. Trying again in")
        # It is kept for half a minute, there and here.
        interrupted = re.compile("^Interrupted: the connection was lost after")
        await expect(ended(page)).to_have_text(interrupted, timeout=PATIENCE_MS)
        kept = await answer_of(page)
        assert kept.startswith(written)
        await endless.empty()
        await ask(page, "Are you still there?")
        await expect(page.locator(".progress-text").last).to_have_text("Waiting for the connection…")
        assert (await endless.finished_since(known))[-1]["finish_reason"] == "cancelled"

        await context.set_offline(False)
        await expect(page.locator(".answer").last).not_to_have_text(kept, timeout=PATIENCE_MS)
        await grows(page)
        await expect(page.locator(".notice")).to_be_hidden()
        await stop(page)
        assert (await page.locator(".answer").all_text_contents())[0] == kept


async def test_closing_the_tab_in_mid_answer_frees_its_blocks_at_once(open_tab: OpenTab, endless: Server) -> None:
    before = (await endless.empty()).blocks["used"]
    known = len(endless.logged("request.finished"))
    page = await open_tab(endless)
    await ask(page, STORY)
    await grows(page)
    assert (await endless.metrics()).blocks["used"] > before
    assert await freed_after(endless, page, before) <= FREED_S
    assert (await endless.finished_since(known))[-1]["finish_reason"] == "cancelled"


async def test_closing_the_tab_takes_no_longer_than_the_step_of_a_large_model(open_tab: OpenTab, real: Server) -> None:
    await real.empty()
    known = len(real.logged("request.finished"))
    page = await open_tab(real)
    await ask(page, STORY)
    await grows(page)
    before = await real.metrics()
    assert before.blocks["used"] > 0
    await real.lets_go_in_time(before, page.close)
    assert (await real.finished_since(known))[-1]["finish_reason"] == "cancelled"


async def freed_after(server: Server, page: Page, before: int) -> float:
    """Close the tab. Seconds until the server shows no more blocks used than `before`.

    From the moment at which the browser says that the tab is closed to that at which the scrape was asked for: neither
    the browser's goodbye nor a scrape's way here is the server's.
    """

    async def freed() -> float:
        while True:
            asked = time.monotonic()
            if (await server.metrics()).blocks["used"] <= before:
                return asked
            await asyncio.sleep(LOOK_AGAIN_S)

    looking = asyncio.create_task(freed())
    began = time.monotonic()
    await page.close()
    closed = time.monotonic()
    seen = await asyncio.wait_for(looking, PATIENCE_MS / 1e3)
    print(
        f"blocks back {(seen - closed) * 1e3:.0f} ms after the tab was closed, which took {(closed - began) * 1e3:.0f}"
    )
    return seen - closed
