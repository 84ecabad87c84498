"""What the picture on `/turns` shows, how it is pointed at and moved, and how it is saved: in a real browser."""

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from protocol.turns import Frame, Life, Part, Pool, TurnStep
from tests.web.turns_page import NEXT_FRAMES, Turns, centre, hatched, hello, number, opened, rects, two_requests
from tests.web.turns_play import Play, crowd
from tests.web.turns_server import minute, running


@pytest_asyncio.fixture(loop_scope="session")
async def turns(page: Page) -> AsyncIterator[Turns]:
    async with running() as server:
        yield await opened(page, server)


@pytest_asyncio.fixture(loop_scope="session")
async def two(turns: Turns) -> Turns:
    """With two requests side by side, twenty steps."""
    begins = time.time() - 12
    await turns.say(hello(begins), two_requests(begins), Frame(begins + 11.9))
    return turns


# --- what is drawn ----------------------------------------------------------------------------------------------------


async def test_each_step_is_a_column_as_high_as_its_time_its_parts_coloured_by_request_and_hatched_by_kind(
    two: Turns,
) -> None:
    picture = await two.saved()
    assert picture.titles("Step") == [f"Step {each}, {90 + 10 * each} ms" for each in range(1, 21)]
    columns = [rects(group) for group in picture.groups("Step")]
    heights = [sum(number(part, "height") for part in column) for column in columns]
    assert heights[19] / heights[0] == pytest.approx(2.9, rel=0.03)
    lefts = [number(column[0], "x") for column in columns]
    assert lefts == sorted(set(lefts))
    for decode, prefill in columns:
        assert (hatched(decode), hatched(prefill)) == (False, True)
        assert number(prefill, "height") > number(decode, "height")
    one, other = (picture.colour(part) for part in columns[0])
    assert one != other
    assert {tuple(map(picture.colour, column)) for column in columns} == {(one, other)}
    # The same request has the same colour in the pool and on its bar.
    pool = rects(picture.group("KV pool"))
    assert [picture.colour(part) for part in pool[:2]] == [one, other]
    assert number(pool[1], "height") / number(pool[0], "height") == pytest.approx(300 / 40, rel=0.1)
    assert one in [picture.colour(part) for part in rects(picture.group("1: decoding"))]
    bar = [part for part in rects(picture.group("2: prefilling")) if hatched(part)]
    assert [picture.colour(part) for part in bar] == [other]


async def test_steps_that_were_left_out_are_a_grey_mark_with_their_number(two: Turns) -> None:
    at = time.time()
    await two.say(Frame(at, left_out=(37, 420.0)))
    picture = await two.saved()
    assert picture.titles("37 steps") == ["37 steps not shown one by one, 420 ms in all"]
    assert "+37" in picture.words()


async def test_a_long_step_is_seen_among_many_that_share_its_pixel(turns: Turns) -> None:
    begins = time.time() - 20
    steps = tuple(
        TurnStep(each, begins + each * 0.002, 1.0 if each != 777 else 30.0, (Part(1, "decode", each, 1, 1.0),))
        for each in range(1, 2_001)
    )
    await turns.say(hello(begins), Frame(begins + 5, steps, lives=(Life(1, "decoding", begins),)))
    picture = await turns.saved()
    titles = picture.titles("Step")
    assert len(titles) < 100
    assert "Step 777, 30 ms" in titles


async def test_what_moved_on_looks_as_if_it_had_been_drawn_anew(turns: Turns) -> None:
    now = time.time()
    play = Play(now - 30)
    await turns.say(hello(now - 30))
    for frame in crowd(play, now):
        await turns.watcher.say(frame)
    await turns.say(*play.frames(now + 0.3))
    await turns.page.keyboard.press("Space")
    await expect(turns.page.locator("#state")).to_have_text("Paused")
    pixels = "() => { const c = document.getElementById('picture'); return c.toDataURL(); }"
    await turns.page.evaluate(NEXT_FRAMES)
    moved = await turns.page.evaluate(pixels)
    await turns.page.emulate_media(color_scheme="dark")
    await turns.page.evaluate(NEXT_FRAMES)
    dark = await turns.page.evaluate(pixels)
    await turns.page.emulate_media(color_scheme="light")
    await turns.page.evaluate(NEXT_FRAMES)
    assert await turns.page.evaluate(pixels) == moved != dark


async def test_a_life_shows_waiting_reading_writing_preemption_and_its_end(turns: Turns) -> None:
    at = time.time() - 20
    asked = Life(
        1,
        "decoding",
        at,
        started_at=at + 2,
        first_token_at=at + 4,
        ttft_target_ms=1_000,
        worst_gap_ms=40.0,
        itl_target_ms=50,
    )
    away = Life(1, "preempted", at, started_at=at + 2, first_token_at=at + 4, preemptions=1)
    ended = Life(
        1,
        "finished",
        at,
        started_at=at + 2,
        first_token_at=at + 4,
        ended_at=at + 10,
        ttft_target_ms=1_000,
        itl_target_ms=3_000,
        worst_gap_ms=2_100.0,
        preemptions=1,
        reason="length",
        output_tokens=128,
        max_output_tokens=128,
    )
    gone = Life(2, "refused", at + 11, ended_at=at + 11.5, reason="server_overloaded")
    await turns.say(
        hello(at),
        Frame(at + 5, lives=(asked,)),
        Frame(at + 6, lives=(away,)),
        Frame(at + 8, lives=(asked,)),
        Frame(at + 12, lives=(ended, gone)),
    )
    picture = await turns.saved()
    bar = rects(picture.group("1: finished"))
    waiting = next(part for part in bar if part.get("fill") == "none")
    prefill = next(part for part in bar if hatched(part))
    decode = next(part for part in bar if part.get("fill") == picture.colour(prefill))
    seconds = number(prefill, "width") / 2
    assert number(waiting, "width") == pytest.approx(2 * seconds, abs=2)
    assert number(decode, "width") == pytest.approx(6 * seconds, abs=3)
    text = " ".join(picture.words())
    assert "first 4.00 s ✗ · gap 2.10 s ✓" in text
    life = turns.page.locator(".life", has_text="request 1")
    await expect(life.locator(".life-state")).to_have_text("reached its output limit")
    await expect(life.locator(".life-ttft")).to_have_text("4.00 s, missed (target 1.00 s)")
    await expect(life.locator(".life-gap")).to_have_text("2.10 s, met (target 3.00 s)")
    await expect(turns.page.locator(".life", has_text="request 2").locator(".life-state")).to_have_text(
        "refused: server_overloaded"
    )
    # The time off the device is drawn over, with a line through it.
    assert len([line for line in picture.group("1: finished").iter() if line.get("stroke-dasharray") == "4 3"]) == 1


async def test_the_waiting_room_is_in_order_with_places_waits_and_tokens(turns: Turns) -> None:
    at = time.time()
    await turns.say(hello(at), Frame(at))
    await expect(turns.page.get_by_text("Nobody is waiting.")).to_be_visible()
    second = Life(7, "queued", at, input_tokens=12_000, position=2, estimated_wait_ms=4_200.0)
    first = Life(9, "queued", at, input_tokens=40, position=1)
    let_in = Life(4, "queued", at - 1, input_tokens=200)
    await turns.say(Frame(at + 0.1, lives=(second, let_in, first)))
    await expect(turns.page.locator("#waiting li")).to_have_text(
        [
            "9 next, 40 tokens to read",
            "7 place 2, about 4.20 s to wait, 12,000 tokens to read",
            "4 let in, waits for its first step, 200 tokens to read",
        ]
    )
    await expect(turns.page.get_by_text("Nobody is waiting.")).to_be_hidden()


# --- pointing ---------------------------------------------------------------------------------------------------------


async def test_pointing_at_a_step_the_pool_or_a_life_shows_its_numbers(two: Turns) -> None:
    await two.page.keyboard.press("Space")
    picture = await two.saved()
    await two.point(*centre(rects(picture.group("Step 5,"))[1]))
    step = await two.readout()
    assert step["title"] == "Step 5"
    assert step["Time"].startswith("140 ms, begun at ")
    assert step["Ran"] == "96 tokens read (prefill) and a next token for 1 answer (decode)"
    assert step["parts"] == "1 decode at position 104: 30 ms; 2 prefill 96 tokens from position 384: 110 ms"

    pool = rects(picture.group("KV pool"))
    await two.point(*centre(pool[0]))
    at = await two.readout()
    assert at["Blocks"] == "free 812, cached 96, used 340 of 1,248 blocks of 32 tokens"
    assert at["parts"] == "1 holds 40 blocks; 2 holds 300 blocks"

    bar = next(part for part in rects(picture.group("2: prefilling")) if hatched(part))
    await two.point(*centre(bar))
    life = await two.readout()
    assert life["title"] == "Request 2"
    assert life["State"] == "reading its prompt (prefill)"
    assert life["Prompt"] == "12,000 tokens, 1,920 read"
    assert life["First token (TTFT)"] == "none yet (target 60.0 s)"
    assert life["Memory"] == "300 KV blocks"

    await two.point(5, 5)
    await expect(two.page.get_by_role("heading", name="Point at anything")).to_be_visible()


async def test_a_click_keeps_what_is_pointed_at_until_it_is_let_go(two: Turns) -> None:
    await two.page.keyboard.press("Space")
    picture = await two.saved()
    await two.point(*centre(rects(picture.group("Step 5,"))[1]))
    await two.page.mouse.down()
    await two.page.mouse.up()
    await two.point(*centre(rects(picture.group("Step 9,"))[1]))
    assert (await two.readout())["title"] == "Step 5"
    await two.page.get_by_role("button", name="Unpin").click()
    await expect(two.page.get_by_role("heading", name="Point at anything")).to_be_visible()
    # A name in the list does the same, and shows where that request is by dimming the others.
    name = two.page.get_by_role("button", name="request 1")
    await name.click()
    await expect(name).to_have_attribute("aria-pressed", "true")
    dimmed = [part.get("opacity") for part in rects((await two.saved()).group("Step 5,"))]
    assert dimmed == [None, "0.22"]


async def test_the_keyboard_alone_goes_from_step_to_step_pins_pauses_and_scrolls(two: Turns) -> None:
    page = two.page
    while await page.evaluate("document.activeElement.id") != "picture":
        await page.keyboard.press("Tab")
    slider = page.get_by_role("slider", name="Step")
    await page.keyboard.press("ArrowLeft")
    await expect(slider).to_have_attribute("aria-valuenow", "20")
    await page.keyboard.press("ArrowLeft")
    await expect(slider).to_have_attribute(
        "aria-valuetext",
        "Step 19, 280 ms; request 1 decode at position 118: 30 ms; "
        "request 2 prefill 96 tokens from position 1,728: 250 ms",
    )
    await expect(page.locator("#state")).to_have_text("Paused")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("button", name="Unpin")).to_be_visible()
    await page.keyboard.press("ArrowRight")
    await expect(page.get_by_role("heading", name="Step 20")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("heading", name="Point at anything")).to_be_visible()
    await page.keyboard.press("End")
    await expect(page.locator("#state")).to_have_text("Live")
    await page.keyboard.press("Space")
    await expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "true")
    await page.keyboard.press("Space")
    await expect(page.locator("#state")).to_have_text("Live")


# --- standing still and looking back ----------------------------------------------------------------------------------


async def test_a_paused_picture_stands_still_while_the_engine_goes_on(two: Turns) -> None:
    await two.page.get_by_role("button", name="Pause").click()
    before = (await two.saved()).titles("Step")
    at = time.time() + 1
    await two.say(Frame(at, (TurnStep(21, at - 0.5, 100, (Part(1, "decode", 1, 1, 100.0),)),)))
    assert (await two.saved()).titles("Step") == before
    await expect(two.page.locator("#paused-words")).to_have_text("1 step since")
    await two.page.get_by_role("button", name="Back to live").click()
    await expect(two.page.locator("#state")).to_have_text("Live")
    assert (await two.saved()).titles("Step") == [*before, "Step 21, 100 ms"]


async def test_the_past_is_reached_by_dragging_by_the_wheel_and_by_keys(turns: Turns) -> None:
    now = time.time()
    play = Play(now - 180)
    await turns.say(hello(now - 180), *crowd(play, now))

    async def first_step() -> int:
        title = (await turns.saved()).titles("Step")[0]
        return int(title.removeprefix("Step ").split(" ms")[0].rsplit(",", 1)[0].replace(",", ""))

    live = await first_step()
    box = await turns.box()
    await turns.page.mouse.move(box["x"] + 200, box["y"] + 100)
    await turns.page.mouse.down()
    await turns.page.mouse.move(box["x"] + 500, box["y"] + 100, steps=4)
    await turns.page.mouse.up()
    dragged = await first_step()
    assert dragged < live
    await expect(turns.page.locator("#state")).to_have_text("Paused")
    await expect(turns.page.get_by_role("button", name="Unpin")).to_be_hidden()

    await turns.point(500, 100)
    await turns.page.keyboard.down("Shift")
    await turns.page.mouse.wheel(0, -200)
    await turns.page.keyboard.up("Shift")
    await turns.page.evaluate(NEXT_FRAMES)
    wheeled = await first_step()
    assert wheeled < dragged

    await turns.page.locator("#picture").focus()
    await turns.page.keyboard.press("PageUp")
    paged = await first_step()
    assert paged < wheeled
    await turns.page.locator("#picture").focus()
    await turns.page.keyboard.press("Home")
    assert await first_step() == 1
    await turns.page.get_by_role("button", name="Back to live").click()
    assert await first_step() >= live


async def test_ten_seconds_are_seen_closer(two: Turns) -> None:
    await two.page.keyboard.press("Space")
    wide = rects((await two.saved()).group("Step 15,"))
    await two.page.get_by_role("button", name="10 s").click()
    near = rects((await two.saved()).group("Step 15,"))
    assert number(near[0], "width") > 4 * number(wide[0], "width")


# --- saving -----------------------------------------------------------------------------------------------------------


async def test_a_saved_picture_opens_alone_with_legend_and_axis(turns: Turns) -> None:
    await turns.say(*minute(time.time()))
    picture = await turns.saved()
    assert picture.name.startswith("rota-turns-20")
    assert picture.name.endswith(".svg")
    words = " ".join(picture.words())
    for expected in (
        "prefill: reading a prompt",
        "decode: writing a token",
        "step cut off at the top",
        "KV pool",
        "Lives",
        "0 ms",
        "SmolLM2-135M",
    ):
        assert expected in words
    for outside in ("href", "src=", "<style", "<script", "url(http", "@import"):
        assert outside not in picture.text
    used = {each.get("fill", "") for each in rects(picture.root) if hatched(each)}
    patterns = {f"url(#{each.get('id')})" for each in picture.root.iter("{http://www.w3.org/2000/svg}pattern")}
    assert used == patterns


async def test_what_the_feed_says_is_text_wherever_it_stands(turns: Turns) -> None:
    at = time.time() - 2
    evil = "<img src=x onerror=alert(1)>\u202e&\"'\u0000\ud7ff"
    life = Life(1, "finished", at, id=evil, ended_at=at + 1, reason=evil)
    step = TurnStep(1, at, 900.0, (Part(1, "decode", 0, 1, 900.0),))
    await turns.say(
        hello(at, model=evil, policy=evil, device=evil, kernels=evil),
        Frame(at + 2, (step,), lives=(life,), pool=Pool(1, 2, 3, 6, ((1, 3),))),
    )
    assert await turns.page.evaluate("document.getElementById('model').textContent") == evil
    picture = await turns.saved()
    assert picture.root.find(".//{http://www.w3.org/2000/svg}img") is None
    assert "\\0" not in picture.text
    await turns.page.get_by_role("button", name="request 1").click()
    assert await turns.page.locator("img").count() == 0
    assert "onerror" in (await turns.readout())["State"]
