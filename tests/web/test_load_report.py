"""The report of `rota load --html` in a real browser, opened from disk.

Each test leaves pictures of what it saw in the folder that ROTA_TEST_ARTEFACTS names, or else in its temporary folder.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page

from loadgen.report_page import write_report
from tests.loadgen.made_runs import Made, Server, all_refused, nothing, open_run, together

DRAWN = """
() => [...document.querySelectorAll(".plot")].filter((place) => place.offsetParent !== null).map((place) => {
  const box = place.querySelector("svg.main-svg")?.getBoundingClientRect();
  const shapes = place.querySelectorAll("path.js-line, path.js-fill, path.point").length;
  return { width: box?.width ?? 0, height: box?.height ?? 0, shapes, screen: place.getBoundingClientRect().width };
})
"""
WIDER_THAN_THE_SCREEN = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
RATES = (1.0, 2.0, 4.0, 8.0)


def made(name: str) -> tuple[list[Made], int]:
    """The runs of this name, and how many plots a reader sees, with everything unfolded."""
    match name:
        case "one":
            return [open_run(3.0, requests=120)], 5
        case "groups":
            return [open_run(2.6, requests=24, groups=("laptop", "rush", "long-documents"))], 5
        case "sweep":
            return [open_run(per_s, requests=int(30 * per_s), seed=int(per_s)) for per_s in RATES], 3 + 2 * len(RATES)
        case "many":
            return [open_run(100.0, requests=5000, server=Server(places=300, prefill_s=0.3, most_waiting=4000))], 5
        case "together":
            return [together()], 4
        case "refused":
            return [all_refused()], 2
        case _:
            return [nothing()], 0


@dataclass(frozen=True)
class Seen:
    page: Page
    asked: list[str]
    """Addresses of everything the page asked for."""
    heard: list[str]
    """What it wrote to the console, and what went wrong."""


@asynccontextmanager
async def opened(browser: Browser, file: Path, **options: Any) -> AsyncIterator[Seen]:
    page = await browser.new_page(**options)
    seen = Seen(page, [], [])
    page.on("request", lambda request: seen.asked.append(request.url))
    page.on("console", lambda message: seen.heard.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: seen.heard.append(str(error)))
    await page.goto(file.as_uri())
    await page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    await until(page, "[...document.querySelectorAll('.plot')].every((place) => place.querySelector('svg.main-svg'))")
    yield seen
    await page.close()


async def until(page: Page, condition: str) -> None:
    """Wait for it frame by frame: the page's policy forbids playwright's own way, which makes code of text."""
    async with asyncio.timeout(20):
        await page.evaluate(f"async () => {{ while (!({condition})) await new Promise(requestAnimationFrame); }}")


def written(folder: Path, runs: Sequence[Made], title: str = "rota load: chat") -> Path:
    file = folder / "report.html"
    write_report(file, runs, title)
    return file


def artefact(tmp_path: Path, name: str) -> Path:
    folder = Path(os.environ.get("ROTA_TEST_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"load-report-{name}.png"


LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1200, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1200, "height": 900}},
    "narrow": {
        "color_scheme": "light",
        "viewport": {"width": 390, "height": 844},
        "is_mobile": True,
        "has_touch": True,
    },
}


@pytest.mark.parametrize(
    ("name", "look"),
    [
        ("one", "dark"),
        ("groups", "light"),
        ("sweep", "narrow"),
        ("many", "light"),
        ("together", "dark"),
        ("refused", "dark"),
        ("nothing", "narrow"),
    ],
)
async def test_a_report_opens_from_disk_and_every_plot_is_drawn(
    browser: Browser, tmp_path: Path, name: str, look: str
) -> None:
    runs, plots = made(name)
    file = written(tmp_path, runs)
    async with opened(browser, file, **LOOKS[look]) as seen:
        drawn = await seen.page.evaluate(DRAWN)
        await seen.page.screenshot(path=artefact(tmp_path, f"{name}-{look}"), full_page=True)
        assert len(drawn) == plots
        for plot in drawn:
            assert plot["width"] == pytest.approx(plot["screen"], abs=2)
            assert plot["height"] >= 250
            assert plot["shapes"] >= 1
        assert await seen.page.evaluate(WIDER_THAN_THE_SCREEN) <= 0
    assert seen.heard == []
    assert [url for url in seen.asked if not url.startswith("data:")] == [file.as_uri()]


async def test_what_servers_say_is_text_and_no_markup(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><script>document.title = 'stolen'</script><img src=x onerror=\"document.title = 'stolen'\">"
    figures, exchanges = open_run(2.0, requests=20, groups=(evil, f"b{evil}"), load_changes={"model": evil})
    refused = all_refused(message=evil, code=evil)
    for number, runs in enumerate([[(figures, exchanges)], [refused], [(figures, exchanges), refused]]):
        file = tmp_path / f"{number}.html"
        write_report(file, runs, evil)
        async with opened(browser, file) as seen:
            assert await seen.page.title() == evil
            assert await seen.page.locator("img").count() == 0
            assert evil in await seen.page.locator("body").inner_text()
        assert seen.heard == []


async def test_the_plots_change_with_the_room(browser: Browser, tmp_path: Path) -> None:
    colour = "document.querySelector('.plot path.js-line').style.stroke"
    async with opened(browser, written(tmp_path, made("one")[0]), color_scheme="light") as seen:
        light = await seen.page.evaluate(colour)
        await seen.page.emulate_media(color_scheme="dark")
        await until(seen.page, f"{colour} !== '{light}'")
    assert seen.heard == []


async def test_what_a_pointer_in_a_row_is_told_of_its_request(browser: Browser, tmp_path: Path) -> None:
    async with opened(browser, written(tmp_path, made("groups")[0]), **LOOKS["light"]) as seen:
        place = seen.page.locator("figure", has_text="What each request went through").locator(".nsewdrag").first
        await place.hover()
        told = seen.page.locator(".hovertext").first
        await told.wait_for()
        assert "first text after" in (await told.text_content() or "")
