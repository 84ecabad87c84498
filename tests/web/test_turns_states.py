"""What `/turns` says of itself: connecting, live, away, refused, locked, slow, no worker, nothing to show."""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from protocol.turns import Frame, Life, Part, TurnStep
from tests.web.conftest import try_now, watched_page
from tests.web.turns_page import NEXT_FRAMES, Turns, centre, hello, opened, rects, two_requests, until
from tests.web.turns_server import TurnsServer, running

COUNT_RECTANGLES = """() => {
  window.drawn = 0;
  const draw = CanvasRenderingContext2D.prototype.fillRect;
  CanvasRenderingContext2D.prototype.fillRect = function (...place) { window.drawn += 1; draw.apply(this, place); };
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def turns_server() -> AsyncIterator[TurnsServer]:
    async with running() as server:
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def turns(page: Page, turns_server: TurnsServer) -> Turns:
    return await opened(page, turns_server)


async def test_it_is_connecting_then_live_and_says_in_words_that_nothing_happens(turns: Turns) -> None:
    state = turns.page.locator("#state")
    await expect(state).to_have_text("Connecting")
    at = time.time()
    await turns.say(hello(at, model="Tiny", policy="slack", device="cpu", kernels="native"), Frame(at))
    await expect(state).to_have_text("Live")
    await expect(turns.page.locator("#model")).to_have_text("Tiny")
    await expect(
        turns.page.get_by_text("policy slack, on cpu with native, up to 12 requests at a time")
    ).to_be_visible()
    nothing = turns.page.get_by_text("Nothing is happening.")
    await expect(nothing).to_be_visible()
    await turns.say(two_requests(at))
    await expect(nothing).to_be_hidden()


async def test_a_server_that_goes_away_is_told_of_and_found_again_and_the_past_is_kept(turns: Turns) -> None:
    at = time.time() - 30
    await turns.say(hello(at), two_requests(at))
    turns.server.up = False
    await turns.watcher.drop()
    page = turns.page
    await expect(page.locator("#state")).to_have_text("Server away")
    await expect(page.locator("#notice-text")).to_contain_text("Trying again in")
    await expect(page.get_by_role("button", name="Start A")).to_have_attribute("aria-disabled", "true")
    turns.server.up = True
    await try_now(page)
    again = Turns(page, turns.server, await turns.server.watcher())
    # The new socket counts its requests from 1: this one is another than the 1 of before.
    life = Life(1, "decoding", at + 25, first_token_at=at + 26)
    step = TurnStep(1, at + 27, 100, (Part(1, "decode", 1, 1, 100.0),))
    await again.say(hello(at + 24), Frame(at + 29, (step,), lives=(life,)))
    await expect(page.locator("#state")).to_have_text("Live")
    await expect(page.locator("#notice")).to_be_hidden()
    picture = await again.saved()
    assert len(picture.titles("Step")) == 21
    assert picture.titles("not connected") == ["not connected"]
    old, new = picture.group("1: decoding"), picture.group("3: decoding")
    assert {picture.colour(part) for part in rects(old)} != {picture.colour(part) for part in rects(new)}
    await expect(page.locator(".life", has_text="request 1").locator(".life-state")).to_have_text(
        "out of sight since the connection was lost"
    )


async def test_one_of_the_pages_own_requests_is_known_again_on_the_next_socket(turns: Turns) -> None:
    at = time.time() - 10
    await turns.say(hello(at), Frame(at + 1, lives=(Life(5, "decoding", at, id="resp_own", first_token_at=at + 1),)))
    await turns.watcher.drop()
    again = Turns(turns.page, turns.server, await turns.server.watcher())
    await again.say(
        hello(at + 3),
        Frame(at + 4, lives=(Life(1, "decoding", at, id="resp_own", first_token_at=at + 1, output_tokens=9),)),
    )
    await expect(turns.page.locator(".life")).to_have_count(1)
    await expect(turns.page.locator(".life-name")).to_have_text("request 5")
    await expect(turns.page.locator(".life-output")).to_have_text("9")


async def test_a_key_is_asked_for_kept_in_the_tab_and_sent_with_both_sockets(
    page: Page, turns_server: TurnsServer
) -> None:
    turns_server.key = "sk-right"
    await page.goto(f"{turns_server.origin}/turns")
    field = page.get_by_label("Enter the key you were given.")
    await expect(page.locator("#state")).to_have_text("Key needed")
    await field.fill("sk wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_contain_text("has no spaces")
    await field.fill("sk-wrong")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("alert")).to_have_text("The server did not accept that key.")
    await field.fill("sk-right")
    await page.keyboard.press("Enter")
    turns = Turns(page, turns_server, await turns_server.watcher())
    at = time.time()
    await turns.say(hello(at), Frame(at))
    await expect(field).to_be_hidden()
    assert await page.evaluate("sessionStorage.getItem('rota.key:' + location.origin)") == "sk-right"
    await page.get_by_role("button", name="Start A").click()
    await (await turns_server.socket()).asked()
    await page.reload()
    await turns_server.watcher()


async def test_an_absence_is_told_once_and_what_had_the_focus_in_it_gives_it_to_the_picture(
    page: Page, turns_server: TurnsServer
) -> None:
    await page.clock.install()
    turns_server.refusal = (503, "The server is starting.")
    await page.goto(f"{turns_server.origin}/turns")
    await expect(page.locator("#state")).to_have_text("Refused")
    await page.evaluate(
        """() => {
            window.said = [];
            const announcer = document.getElementById("announcer");
            new MutationObserver(() => window.said.push(announcer.textContent)).observe(announcer, { childList: true });
        }"""
    )
    await page.get_by_role("button", name="Try now").focus()
    for _ in range(3):
        async with page.expect_response("**/v1/turns"):
            await page.clock.fast_forward(10_000)
        await expect(page.locator("#state")).to_have_text("Refused")
    assert await page.evaluate("window.said") == []
    turns_server.refusal = None
    await page.clock.fast_forward(10_000)
    await turns_server.watcher()
    await expect(page.locator("#notice")).to_be_hidden()
    assert await page.evaluate("document.activeElement.id") == "picture"


@pytest.mark.parametrize(
    ("status", "told", "shown"),
    [
        (404, "There is nothing at '/v1/turns'.", "There is nothing at '/v1/turns'."),
        (426, "rota shows whose turn it is over a WebSocket only.", "let no watcher in: perhaps as many watch already"),
    ],
)
async def test_a_refusal_says_why(page: Page, turns_server: TurnsServer, status: int, told: str, shown: str) -> None:
    turns_server.refusal = (status, told)
    await page.goto(f"{turns_server.origin}/turns")
    await expect(page.locator("#state")).to_have_text("Refused")
    await expect(page.locator("#notice-text")).to_contain_text(shown)
    turns_server.refusal = None
    await page.get_by_role("button", name="Try now").click()
    await turns_server.watcher()


async def test_a_server_that_closes_the_feed_says_why(turns: Turns) -> None:
    await turns.watcher.connection.close(1013, "Eight watch already.")
    await expect(turns.page.locator("#notice-text")).to_contain_text("Eight watch already.")
    await expect(turns.page.locator("#state")).to_have_text("Refused")


async def test_a_slow_page_and_a_worker_that_is_down_are_told_of(turns: Turns) -> None:
    at = time.time()
    await turns.say(hello(at), Frame(at, missed=12))
    await expect(turns.page.locator("#slow")).to_contain_text("too slow for 12 frames of the feed")
    await turns.say(Frame(at + 0.2, worker_up=False))
    down = turns.page.get_by_text("The worker is down: no step is run until it is back.")
    await expect(down).to_be_visible()
    await turns.say(Frame(at + 3.0, worker_up=False))
    picture = await turns.saved()
    assert picture.titles("worker down") == ["worker down"]
    assert picture.titles("12 frames lost") == ["12 frames lost"]
    await turns.say(Frame(at + 4, worker_up=True))
    await expect(down).to_be_hidden()
    await expect(turns.page.locator("#slow")).to_be_hidden()


async def test_leaving_the_page_closes_both_sockets_at_once(turns: Turns) -> None:
    at = time.time()
    await turns.say(hello(at), Frame(at))
    await turns.page.get_by_role("button", name="Start A").click()
    asking = await turns.server.socket()
    await asking.asked()
    await turns.page.goto("about:blank")
    assert await asking.close_code() == 1000
    await turns.watcher.connection.wait_closed()
    assert turns.watcher.connection.close_code == 1000


async def test_with_less_motion_it_is_drawn_by_a_slow_clock_and_not_by_the_screens(
    browser: Browser, turns_server: TurnsServer
) -> None:
    async with watched_page(browser, reduced_motion="reduce") as page:
        await page.add_init_script(
            "window.asked = 0; const ask = window.requestAnimationFrame;"
            "window.requestAnimationFrame = (work) => { window.asked += 1; return ask(work); };"
        )
        turns = await opened(page, turns_server)
        at = time.time()
        await turns.watcher.say(hello(at), two_requests(at))
        await until(page, "document.getElementById('picture').style.height !== ''")
        assert await page.evaluate("window.asked") == 0


async def test_nothing_is_drawn_while_nothing_changes(turns: Turns) -> None:
    at = time.time() - 12
    await turns.say(hello(at), two_requests(at))
    await turns.page.keyboard.press("Space")
    place = centre(rects((await turns.saved()).group("Step 20,"))[0])
    await turns.page.evaluate(NEXT_FRAMES)
    await turns.page.evaluate(COUNT_RECTANGLES)
    for _ in range(5):
        await turns.page.evaluate(NEXT_FRAMES)
    assert await turns.page.evaluate("window.drawn") == 0
    await turns.point(*place)
    assert await turns.page.evaluate("window.drawn") > 0
