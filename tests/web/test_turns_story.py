"""The buttons A, B and C of `/turns`: what they ask, what is shown of it, and what is told at the end."""

import json
import re
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from protocol.responses import ResponseCreate, parse_client_event
from protocol.turns import Frame
from tests.web.scripted_server import Answer, Json, Socket
from tests.web.turns_page import Turns, hello, opened
from tests.web.turns_play import Play
from tests.web.turns_server import running

WORD = re.compile(r"[A-Za-z]+|[^A-Za-z\s]")


@pytest_asyncio.fixture(loop_scope="session")
async def turns(page: Page) -> AsyncIterator[Turns]:
    async with running() as server:
        turns = await opened(page, server)
        at = time.time() - 30
        await turns.say(hello(at), Frame(at))
        yield turns


def button(turns: Turns, letter: str) -> Locator:
    return turns.page.get_by_role("button", name=f"Start {letter}")


def words(create: Json) -> int:
    return sum(len(WORD.findall(message["content"])) for message in create["input"])


async def test_each_button_asks_on_a_lane_of_its_own_for_as_much_as_it_says(turns: Turns) -> None:
    asked: dict[str, Json] = {}
    socket: Socket | None = None
    for letter in "ABC":
        await button(turns, letter).click()
        socket = socket or await turns.server.socket()
        asked[letter] = (await socket.asked()).create
    for create in asked.values():
        event = parse_client_event(json.dumps(create))
        assert isinstance(event, ResponseCreate)
        assert event.ignore_eos
    assert len({create["stream_id"] for create in asked.values()}) == 3
    assert [create["max_output_tokens"] for create in asked.values()] == [128, 256, 128]
    assert words(asked["A"]) == pytest.approx(190, abs=20)
    assert words(asked["C"]) == pytest.approx(290, abs=25)
    assert words(asked["B"]) == pytest.approx(11_700, rel=0.05)
    roles = [message["role"] for message in asked["B"]["input"]]
    assert roles[0] == "system"
    assert roles[1:] == ["user", "assistant"] * (len(roles) // 2 - 1) + ["user"]
    # One that runs is not asked for twice.
    await expect(button(turns, "A")).to_have_attribute("aria-disabled", "true")
    await button(turns, "A").click(force=True)
    await turns.page.get_by_role("button", name="Cancel A", exact=True).click()
    assert socket is not None
    assert (await socket.receive()) == {"type": "response.cancel", "stream_id": asked["A"]["stream_id"]}


async def test_every_asking_is_worded_anew_so_that_the_cache_does_not_spare_it(turns: Turns) -> None:
    texts = []
    socket = None
    for _ in range(2):
        await button(turns, "A").click()
        socket = socket or await turns.server.socket()
        answer = await socket.asked()
        texts.append(answer.create["input"][0]["content"])
        await answer.begin("Take the Maple.")
        await answer.cut_off()
        await expect(turns.page.locator("#state-A")).to_have_text("has ended")
    assert texts[0][:60] != texts[1][:60]


async def test_a_small_context_makes_b_smaller_and_its_button_says_so(page: Page) -> None:
    async with running() as server:
        turns = await opened(page, server)
        at = time.time()
        await turns.say(hello(at, max_context=2_048), Frame(at))
        about = page.locator("#size-B")
        await expect(about).to_have_text("About 1,666 tokens in (all that fits), 256 out.")
        await button(turns, "B").click()
        create = (await (await server.socket()).asked()).create
        assert words(create) == pytest.approx(1_600, rel=0.1)


async def test_a_size_that_is_not_known_yet_is_not_said(page: Page) -> None:
    async with running() as server:
        turns = await opened(page, server)
        about = page.locator("#size-B")
        await expect(page.locator("#state")).to_have_text("Connecting")
        await expect(about).to_be_empty()
        at = time.time()
        await turns.say(hello(at, max_context=8_192), Frame(at))
        await expect(about).to_contain_text("(all that fits)")


async def test_a_request_of_the_page_has_its_letter_its_first_words_and_a_way_to_cancel_it(turns: Turns) -> None:
    play = Play(time.time() - 20)
    await button(turns, "A").click()
    answer = await (socket := await turns.server.socket()).asked()
    await answer.begin("The <b>Maple</b> is a fine laptop for college.")
    play.ask(203, 5_000, response_id=answer.response_id)
    await turns.say(*play.frames(play.now + 8))
    life = turns.page.locator(".life")
    await expect(life.locator(".life-name")).to_have_text("A")
    await life.locator(".life-choose").click()
    await expect(turns.page.locator("#readout-title")).to_have_text("A")
    await expect(turns.page.locator("#readout-note")).to_have_text("“The <b>Maple</b> is a fine laptop for college.”")
    assert (await turns.saved()).titles("A: ") != []
    await life.get_by_role("button", name="Cancel A").click()
    assert await socket.receive() == {"type": "response.cancel", "response_id": answer.response_id}
    await answer.cancelled()
    await expect(turns.page.locator("#state-A")).to_have_text("cancelled")
    await expect(button(turns, "A")).to_have_attribute("aria-disabled", "false")


async def test_a_refused_one_says_why_and_a_lost_one_that_it_is_lost(turns: Turns) -> None:
    await button(turns, "A").click()
    socket = await turns.server.socket()
    await (await socket.asked()).refuse("server_overloaded", "The waiting room is full. Try again in 4 s.", 4_000)
    await expect(turns.page.locator("#state-A")).to_have_text("Refused: The waiting room is full. Try again in 4 s.")
    await button(turns, "C").click()
    await socket.asked()
    await socket.drop()
    await expect(turns.page.locator("#state-C")).to_have_text("Lost: The connection was lost.")
    await button(turns, "C").click()
    await (await turns.server.socket()).asked()


async def test_when_all_three_have_ended_it_tells_what_happened_from_the_figures(turns: Turns) -> None:
    play = Play(time.time() - 25)
    socket: Socket | None = None
    answers: dict[str, Answer] = {}
    for letter, tokens, output in (("A", 203, 400), ("B", 12_040, 20), ("C", 305, 128)):
        await button(turns, letter).click()
        socket = socket or await turns.server.socket()
        answers[letter] = await socket.asked()
        await answers[letter].begin("Well")
        play.ask(tokens, output, response_id=answers[letter].response_id)
        await turns.say(*play.frames(play.now + 0.4))
    await expect(turns.page.locator("#told")).to_contain_text("what happened is told here")
    await turns.say(*play.frames(time.time()))
    told = turns.page.locator("#told")
    await expect(told).to_have_text(
        re.compile(
            r"^B’s 12,040 tokens were read in \d+ chunks, \d\.\d\d s in all\. "
            r"A’s worst gap while B was read: \d+ ms, within its target of 150 ms\. "
            r"C’s worst gap while B was read: \d+ ms"
        )
    )
    chunks = int(re.findall(r"in (\d+) chunks", await told.inner_text())[0])
    assert 80 < chunks < 400
