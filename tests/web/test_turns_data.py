"""The modules of `/turns` that hold plain data, run by themselves in a browser: history, lives, scales, texts, pens."""

import xml.etree.ElementTree as ET
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from playwright.async_api import Page

from tests.web.turns_server import running


@pytest_asyncio.fixture(loop_scope="session")
async def module(page: Page) -> AsyncIterator[Page]:
    """A page that can import them and runs none of them by itself."""
    async with running() as server:
        await page.goto(f"{server.origin}/turns/words.js")
        yield page


async def run(page: Page, module: str, work: str, *arguments: Any) -> Any:
    """What `work`, the body of a function of (the module, ...arguments), returns."""
    script = f"async (given) => {{ const m = await import('/turns/{module}.js'); const [a, b, c] = given; {work} }}"
    return await page.evaluate(script, list(arguments))


async def test_ten_minutes_are_kept_and_no_more_however_long_it_runs(module: Page) -> None:
    sizes = await run(
        module,
        "history",
        """
        const history = m.newHistory();
        m.receive(history, { type: "turns.hello", at: 0 });
        for (let second = 1; second <= 1500; second += 1) {
          const parts = Array.from({ length: 8 }, (_, place) => [second * 2 + place, "decode", 1, 1, 2]);
          const step = (n) => ({ step: second * 50 + n, at: second - 1 + n / 50, took_ms: 16, parts });
          const steps = Array.from({ length: 50 }, (_, n) => step(n));
          const times = { state: "finished", received_at: second - 1, ended_at: second };
          const lives = [0, 1].map((n) => ({ request: second * 2 + n, ...times }));
          const pool = { free: 1, cached: 1, used: second, total: 9999, held: parts.map(([request]) => [request, 4]) };
          m.receive(history, { type: "turns.frame", at: second, steps, lives, pool, left_out: [3, 5], missed: 1 });
        }
        const { steps, parts, pools, lives, leftOut, missed } = history;
        const sizes = [steps.length, parts, pools.length, lives.size, leftOut.length, missed.length];
        return [...sizes, steps[0].at, m.oldest(history)];
        """,
    )
    steps, parts, pools, lives, left_out, missed, first, oldest = sizes
    assert 20_000 < steps <= 30_000
    assert parts == steps * 8 <= 200_000
    assert 600 <= pools <= 612
    assert 1_200 <= lives <= 1_230
    assert left_out <= 612
    assert missed <= 612
    assert first >= 890
    assert oldest >= 890


async def test_who_runs_long_is_kept_while_thousands_come_and_go(module: Page) -> None:
    kept = await run(
        module,
        "history",
        """
        const history = m.newHistory();
        m.receive(history, { type: "turns.hello", at: 0 });
        m.receive(history, { type: "turns.frame", at: 1, lives: [{ request: 1, state: "decoding", received_at: 0 }] });
        for (let n = 2; n <= 6000; n += 1) {
          const life = { request: n, state: "finished", received_at: n / 100, ended_at: n / 100 };
          m.receive(history, { type: "turns.frame", at: 1 + n / 100, lives: [life] });
        }
        return [history.lives.has(1), history.lives.size, history.hues.size];
        """,
    )
    assert kept[0]
    assert kept[1] <= 2_001
    assert kept[2] <= 2_001


async def test_running_requests_have_hues_of_their_own_while_there_are_enough(module: Page) -> None:
    hues = await run(
        module,
        "history",
        """
        const history = m.newHistory();
        m.receive(history, { type: "turns.hello", at: 0 });
        const say = (at, lives) => m.receive(history, { type: "turns.frame", at, lives });
        const running = (request) => ({ request, state: "decoding", received_at: 0 });
        say(1, [1, 2, 3].map(running));
        for (let n = 4; n <= 30; n += 1) say(n, [{ request: n, state: "finished", received_at: 0, ended_at: n }]);
        say(31, [31, 32, 33, 34, 35, 36, 37].map(running));
        return [1, 2, 3, 31, 32, 33, 34, 35, 36, 37].map((n) => history.hues.get(n));
        """,
    )
    assert sorted(hues) == list(range(10))


async def test_a_life_that_was_there_before_anybody_watched_claims_no_times_it_does_not_know(module: Page) -> None:
    spans, ttft = await run(
        module,
        "lives",
        """
        const said = { state: "decoding", received_at: 100, first_seen_running: true, ttft_target_ms: 10 };
        const life = m.updateLife(undefined, { request: 1, ...said }, 1, 101);
        return [m.spansOf(life, 105), m.ttftOf(life, 105)];
        """,
    )
    assert spans == [{"what": "decode", "from": 100, "to": 105}]
    assert ttft == {"ms": None, "targetMs": 10, "verdict": "none"}


async def test_a_first_token_is_met_missed_or_open(module: Page) -> None:
    said = {"request": 1, "state": "prefilling", "received_at": 100, "ttft_target_ms": 2_000}
    cases: list[tuple[dict[str, Any], float, str]] = [
        ({"first_token_at": 101.0}, 110, "met"),
        ({"first_token_at": 103.0}, 110, "missed"),
        ({}, 101, "open"),
        ({}, 103, "missed"),
        ({"state": "finished", "ended_at": 101.0}, 110, "none"),
    ]
    judge = "return m.ttftOf(m.updateLife(undefined, a, 1, b), b).verdict;"
    for fields, now, verdict in cases:
        assert await run(module, "lives", judge, said | fields, now) == verdict


async def test_the_scale_of_milliseconds_is_round_grows_at_once_and_shrinks_late(module: Page) -> None:
    found = await run(
        module,
        "scale",
        """
        let state = null;
        const tops = [[48, 0], [130, 1], [20, 2], [20, 5], [20, 7]].map(([tallest, now]) => {
          state = m.calm(state, m.wantedTop([tallest]), now);
          return state.top;
        });
        const usual = Array.from({ length: 100 }, () => 10);
        return { tops, ticks: m.msTicks(150), one: m.wantedTop([...usual, 5000]), some: m.wantedTop([...usual, 60]) };
        """,
    )
    assert found["tops"] == [50, 150, 150, 150, 20]
    assert found["ticks"] == [50, 100, 150]
    assert found["one"] == 30  # the outlier is cut off at the top, and marked
    assert found["some"] == 60


async def test_a_column_stands_at_the_same_time_wherever_the_picture_has_moved(module: Page) -> None:
    moves = await run(
        module,
        "scale",
        """
        const at = 1_700_000_000.123;
        return Array.from({ length: 50 }, (_, n) => {
          const time = m.timeScale(at + 10 + n * 0.0137, 60, 58, 701);
          return time.x(at) + time.endPixel;
        });
        """,
    )
    assert len(set(moves)) == 1


async def test_a_story_with_what_the_picture_did_not_see_says_so(module: Page) -> None:
    told = await run(
        module,
        "told",
        """
        const { newHistory, receive } = await import("/turns/history.js");
        const history = newHistory();
        receive(history, { type: "turns.hello", at: 0 });
        const all = { state: "finished", received_at: 0, input_tokens: 12000, itl_target_ms: 150 };
        const life = (request, id, times) => ({ ...all, request, id, ...times });
        receive(history, { type: "turns.frame", at: 1 });
        receive(history, { type: "turns.frame", at: 20, left_out: [40, 900], lives: [
          life(1, "a", { first_token_at: 1, ended_at: 9, worst_gap_ms: 480 }),
          life(2, "b", { started_at: 2, first_token_at: 8, ended_at: 10 }),
          life(3, "c", { first_token_at: 9, ended_at: 12 }),
        ] });
        const runs = new Map(["A", "B", "C"].map((letter) => [letter, { letter, id: letter.toLowerCase() }]));
        return m.whatHappened(history, runs);
        """,
    )
    assert told == (
        "B’s 12,000 tokens were read in more than 0 chunks, 6.00 s in all. "
        "A’s worst gap in all: 480 ms: its target of 150 ms was missed. "
        "C began to write only after that, 9.00 s after it was asked."
    )


async def test_no_text_can_leave_its_place_in_a_saved_picture(module: Page) -> None:
    text = await run(
        module,
        "pens",
        """
        const evil = '</text><script>alert(1)</script>"&\\u0000\\u001b\\ud800\\ufffe';
        const pen = new m.SvgPen({ width: 10, height: 10, title: evil, ground: evil, measure: () => 5 });
        pen.words(0, 0, evil, evil);
        pen.fill(0, 0, 1, 1, evil, { hatched: true });
        pen.group(() => evil, () => pen.line([[0, 0], [1, 1]], evil));
        return pen.document();
        """,
    )
    root = ET.fromstring(text)
    assert [each.tag for each in root.iter() if each.tag.endswith("script")] == []
    assert (
        root.findtext("{http://www.w3.org/2000/svg}text")
        == '</text><script>alert(1)</script>"&\ufffd\ufffd\ufffd\ufffd'
    )
