"""The page `/turns` as a test holds it: opened in a browser, fed by a scripted server, read back as SVG.

Knows Playwright and how a saved picture is built. Decides nothing about what the page should show.
"""

import asyncio
import os
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs
from playwright.async_api import Page

from protocol.turns import Frame, Hello, Life, Part, Pool, TurnStep
from tests.web.turns_play import HELLO
from tests.web.turns_server import TurnsServer, Watcher

SVG = "{http://www.w3.org/2000/svg}"
NEXT_FRAMES = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))"
WIDER_THAN_THE_SCREEN = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"

READOUT = """() => {
  const text = (node) => node.innerText.replaceAll("\\n", " ");
  const all = (selector) => [...document.querySelectorAll(selector)];
  const lines = all("#readout-lines dt").map((dt) => [dt.textContent, dt.nextSibling.textContent]);
  const title = document.getElementById("readout-title").textContent;
  return Object.fromEntries([["title", title], ...lines, ["parts", all("#readout-parts li").map(text).join("; ")]]);
}"""


@dataclass(frozen=True)
class Turns:
    """A page that watches, and the server's end of its socket."""

    page: Page
    server: TurnsServer
    watcher: Watcher

    async def say(self, *frames: Hello | Frame) -> None:
        """Tells the page, and waits until it has drawn what it was told."""
        await self.watcher.say(*frames)
        newest = next((frame.at for frame in reversed(frames) if isinstance(frame, Frame)), None)
        if newest is not None:
            await until(self.page, f"document.getElementById('picture').dataset.heard >= {newest}")
        await self.page.evaluate(NEXT_FRAMES)

    async def saved(self) -> "Picture":
        async with self.page.expect_download() as download:
            await self.page.get_by_role("button", name="Save as SVG").click()
        file = await download.value
        return Picture(file.suggested_filename, (await file.path()).read_text())

    async def point(self, x: float, y: float) -> None:
        """The mouse, to a place on the picture."""
        box = await self.box()
        await self.page.mouse.move(box["x"] + x, box["y"] + y)
        await self.page.evaluate(NEXT_FRAMES)

    async def box(self) -> Any:
        return await self.page.locator("#picture").bounding_box()

    async def readout(self) -> dict[str, str]:
        """The lines of the readout, its title first."""
        found: dict[str, str] = await self.page.evaluate(READOUT)
        return found


@dataclass(frozen=True)
class Picture:
    """A saved picture: its name and text."""

    name: str
    text: str

    @property
    def root(self) -> ET.Element:
        return ET.fromstring(self.text)

    def groups(self, begins: str) -> list[ET.Element]:
        """Those whose title begins so, from left to right as they were drawn."""
        return [
            group
            for group in self.root.iter(f"{SVG}g")
            if (title := group.find(f"{SVG}title")) is not None and (title.text or "").startswith(begins)
        ]

    def group(self, begins: str) -> ET.Element:
        (group,) = self.groups(begins)
        return group

    def titles(self, begins: str) -> list[str]:
        return [group.findtext(f"{SVG}title") or "" for group in self.groups(begins)]

    def words(self) -> list[str]:
        return [text.text or "" for text in self.root.iter(f"{SVG}text")]

    def colour(self, rect: ET.Element) -> str:
        """Of a rectangle, hatched or not."""
        fill = rect.get("fill", "")
        if fill.startswith("url(#"):
            name = fill.removeprefix("url(#").removesuffix(")")
            pattern = next(each for each in self.root.iter(f"{SVG}pattern") if each.get("id") == name)
            fill = next(pattern.iter(f"{SVG}rect")).get("fill", "")
        return fill


def rects(group: ET.Element) -> list[ET.Element]:
    return list(group.iter(f"{SVG}rect"))


def hatched(rect: ET.Element) -> bool:
    return rect.get("fill", "").startswith("url(")


def number(rect: ET.Element, name: str) -> float:
    return float(rect.get(name, "nan"))


def centre(rect: ET.Element) -> tuple[float, float]:
    return (
        number(rect, "x") + number(rect, "width") / 2,
        number(rect, "y") + number(rect, "height") / 2,
    )


async def opened(page: Page, server: TurnsServer, *, tall: bool = True) -> Turns:
    """`tall`: a screen on which the whole picture can be pointed at."""
    if tall:
        await page.set_viewport_size({"width": 1280, "height": 1500})
    await page.goto(f"{server.origin}/turns")
    return Turns(page, server, await server.watcher())


async def until(page: Page, condition: str) -> None:
    """Wait for it a little at a time: the page's policy forbids playwright's own way, which makes code of text."""
    async with asyncio.timeout(10):
        await page.evaluate(
            f"async () => {{ while (!({condition})) await new Promise((done) => setTimeout(done, 10)); }}"
        )


def artefact(tmp_path: Path, name: str) -> Path:
    folder = Path(os.environ.get("ROTA_TEST_ARTEFACTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


# --- a small story ----------------------------------------------------------------------------------------------------


def hello(at: float, **changes: Any) -> Hello:
    return structs.replace(HELLO, at=at, **changes)


def two_requests(at: float) -> Frame:
    """Request 1 writes, request 2 is read beside it: 20 steps, half a second apart, of 100 to 290 ms."""
    steps = tuple(
        TurnStep(
            step=number,
            at=at + number * 0.5,
            took_ms=90.0 + 10 * number,
            parts=(
                Part(2, "prefill", 96 * (number - 1), 96, 60.0 + 10 * number),
                Part(1, "decode", 99 + number, 1, 30.0),
            ),
        )
        for number in range(1, 21)
    )
    lives = (
        Life(
            1,
            "decoding",
            at - 0.5,
            input_tokens=100,
            max_output_tokens=64,
            prefilled_tokens=100,
            output_tokens=21,
            started_at=at - 0.4,
            first_token_at=at + 0.1,
            ttft_target_ms=5_000,
            itl_target_ms=150,
            worst_gap_ms=510.0,
        ),
        Life(
            2,
            "prefilling",
            at,
            input_tokens=12_000,
            max_output_tokens=256,
            prefilled_tokens=1_920,
            started_at=at + 0.5,
            ttft_target_ms=60_000,
        ),
    )
    return Frame(at + 10.3, steps, lives=lives, pool=Pool(812, 96, 340, 1_248, ((1, 40), (2, 300))))
