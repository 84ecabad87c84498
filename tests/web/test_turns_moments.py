"""That `/turns` tells of one moment and of one story at a time, and says whose moment it is."""

import re
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from playwright.async_api import Page, expect

from protocol.turns import Frame, Life, Part, Pool, TurnStep
from tests.web.scripted_server import Socket
from tests.web.turns_page import Turns, hello, opened
from tests.web.turns_play import Play
from tests.web.turns_server import running


@pytest_asyncio.fixture(loop_scope="session")
async def turns(page: Page) -> AsyncIterator[Turns]:
    async with running() as server:
        turns = await opened(page, server)
        at = time.time() - 30
        await turns.say(hello(at), Frame(at))
        yield turns


async def test_who_is_asked_again_after_all_have_ended_begins_a_new_story(turns: Turns) -> None:
    play = Play(time.time() - 28)
    socket: Socket | None = None

    async def ask(letter: str, tokens: int, output: int) -> None:
        nonlocal socket
        await turns.page.get_by_role("button", name=f"Start {letter}").click()
        socket = socket or await turns.server.socket()
        answer = await socket.asked()
        await answer.begin("Well")
        play.ask(tokens, output, response_id=answer.response_id)
        await turns.say(*play.frames(play.now + 0.4))
        await answer.cut_off()
        await expect(turns.page.locator(f"#state-{letter}")).to_have_text("has ended")

    told = turns.page.locator("#told")
    for letter, tokens, output in (("A", 203, 200), ("B", 6_040, 20), ("C", 305, 20)):
        await ask(letter, tokens, output)
    await turns.say(*play.frames(time.time() - 10))
    await expect(told).to_contain_text("tokens were read in")
    await ask("A", 203, 5)
    await expect(turns.page.locator("#state-B")).to_have_text("")
    await turns.say(*play.frames(time.time()))
    await expect(turns.page.locator(".life-name").first).to_have_text("A2")
    await expect(told).to_have_text("When all three have ended, what happened is told here.")


async def test_a_worst_gap_is_the_same_in_the_story_as_in_the_list(page: Page) -> None:
    async with running() as server:
        await page.goto(f"{server.origin}/turns/words.js")
        told: str = await page.evaluate(
            """async () => {
              const { newHistory, receive } = await import("/turns/history.js");
              const { whatHappened } = await import("/turns/told.js");
              const history = newHistory();
              receive(history, { type: "turns.hello", at: 0 });
              const all = { state: "finished", received_at: 0, input_tokens: 9000, itl_target_ms: 440 };
              const parts = (who) => who.map((n) => [n, "decode", 1, 1, 1]);
              const step = (at, took_ms, ...who) => ({ step: at, at, took_ms, parts: parts(who) });
              receive(history, { type: "turns.frame", at: 20,
                steps: [step(1.5, 441, 1, 3), step(2.6, 441, 1), step(3.2, 281, 1, 3)],
                lives: [
                  { ...all, request: 1, id: "a", first_token_at: 2.6, ended_at: 9, worst_gap_ms: 440 },
                  { ...all, request: 2, id: "b", started_at: 2, first_token_at: 8, ended_at: 10 },
                  { ...all, request: 3, id: "c", first_token_at: 3.05, ended_at: 12, worst_gap_ms: 432 },
                ] });
              return whatHappened(history, new Map(["A", "B", "C"].map((each) => [each, { id: each.toLowerCase() }])));
            }"""
        )
    assert "A’s worst gap while B was read: 440 ms, within its target" in told
    assert "C’s worst gap while B was read: 432 ms" in told


async def test_the_panel_of_the_pool_has_the_numbers_of_the_picture_at_every_moment(turns: Turns) -> None:
    at = time.time() - 20
    for used in range(1, 40):
        await turns.say(Frame(at + used / 10, pool=Pool(1_000 - used, 0, used, 1_000)))
        await expect_pool(turns, used)
    await turns.page.keyboard.press("Space")
    await turns.say(Frame(time.time() + 30, pool=Pool(1, 0, 999, 1_000)))
    await expect_pool(turns, 39)
    await expect(turns.page.locator("#pool-moment")).to_contain_text("At the moment shown")
    assert "39 used" in (await turns.saved()).words()


async def expect_pool(turns: Turns, used: int) -> None:
    """At once: it is drawn with the picture."""
    assert f"used {used} of" in await turns.page.locator("#pool-words").inner_text()


async def test_what_is_not_of_now_says_of_when_it_is(turns: Turns) -> None:
    at = time.time()
    await turns.say(Frame(at, lives=(Life(1, "queued", at - 1, position=1),), pool=Pool(1, 2, 3, 6)))
    page = turns.page
    moments = [page.locator(f"#{about}-moment") for about in ("pool", "waiting", "lives")]
    for moment in moments:
        await expect(moment).to_be_hidden()
    await page.keyboard.press("Space")
    await expect(moments[0]).to_have_text(re.compile(r"^At the moment shown, \d\d:\d\d:\d\d\.$"))
    await expect(moments[1]).to_have_text("As it is now, not at the moment shown.")
    await expect(moments[2]).to_have_text("As they are now, not at the moment shown.")
    await page.keyboard.press("Space")
    turns.server.up = False
    await turns.watcher.drop()
    heard = await page.evaluate(f"new Date({at * 1000}).toLocaleTimeString('en-GB')")
    for moment in moments:
        await expect(moment).to_have_text(f"As at {heard}, when last heard.")
    await expect(page.locator("#pool-title")).to_have_text("KV pool")


async def test_beside_the_buttons_it_says_whose_choice_the_targets_are(turns: Turns) -> None:
    said = turns.page.locator("#chosen-targets")
    await expect(said).to_contain_text("this page’s own choice")
    await expect(said).to_contain_text("busy with other things")
    asked: list[Any] = []
    socket: Socket | None = None
    for letter in "ABC":
        await turns.page.get_by_role("button", name=f"Start {letter}").click()
        socket = socket or await turns.server.socket()
        asked.append((await socket.asked()).create["targets"])
    first = [f"{targets['ttft_ms'] / 1000:g} s" for targets in asked]
    await expect(said).to_contain_text(f"within {first[0]} (B: {first[1]}), gaps of at most {asked[0]['itl_ms']} ms")
    assert first[2] == first[0]
    assert len({targets["itl_ms"] for targets in asked}) == 1


async def test_who_has_no_part_of_any_step_while_others_have_is_set_aside(turns: Turns) -> None:
    await turns.page.get_by_role("button", name="Start B").click()
    answer = await (await turns.server.socket()).asked()
    await answer.created()
    await answer.in_progress()
    at = time.time() - 20
    life = Life(1, "prefilling", at, id=answer.response_id, started_at=at, input_tokens=9_000, prefilled_tokens=90)

    def step(number: int, who: int, took_ms: float = 90) -> TurnStep:
        return TurnStep(number, at + number / 10, took_ms, (Part(who, "prefill" if who == 1 else "decode", 1, 1, 9.0),))

    button, listed = turns.page.locator("#state-B"), turns.page.locator(".life-state")
    await turns.say(Frame(at, lives=(life,)), Frame(at + 0.4, (step(1, 1), step(2, 2), step(3, 2))))
    await expect(listed).to_have_text("reading its prompt (prefill)")
    await expect(button).to_have_text("being read…")
    await turns.say(Frame(at + 1.1, tuple(step(number, 2) for number in range(4, 11))))
    await expect(listed).to_have_text("set aside: others are due sooner")
    await expect(button).to_have_text("set aside: others are due sooner")
    await turns.say(Frame(at + 1.3, (step(11, 1),)))
    await expect(listed).to_have_text("reading its prompt (prefill)")
    await expect(button).to_have_text("being read…")
