"""One request, one row: when it waited, was read, wrote, and paused for too long, as the shapes of an SVG.

Knows the row of a request and how to keep its shapes few: what lies closer than can be seen becomes one. Knows
neither the page nor the other policies.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element, SubElement

from msgspec import Struct

from loadgen.comparison import span
from protocol.timeline import Life, Timeline

COLOURS = 6
"""Classes `c0` to `c5`; the seventh request has the first one's again."""
MOST_LABELLED = 8
"""Rows up to which there is room for words in each."""
NAME_AND_TOKENS = 20
"""Letters from which on a row's name and its prompt stand beside each other."""
LETTER_PX = 6.1
"""Of the words in a row, on average."""

LEAST_LATE_PX = 2.5
_TICK_PX = 1.4
_SEAM_PX = 0.8
"""Left free between two chunks that are wide enough to show it."""
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Spans = list[tuple[float, float]]
"""Pixels from and to, in order."""


class Scale(Struct, frozen=True):
    """Which seconds lie where."""

    from_s: float
    to_s: float
    left: float
    width: float

    def x(self, at_s: float) -> float:
        clipped = min(max(at_s, self.from_s), self.to_s)
        return self.left + (clipped - self.from_s) / (self.to_s - self.from_s) * self.width


class Size(Struct, frozen=True):
    """Pixels: of a row, and within it of the words above the bar and of the bar."""

    row: float
    words: float
    bar: float

    @property
    def labelled(self) -> bool:
        return self.words > 0


def size_for(rows: int) -> Size:
    if rows <= MOST_LABELLED:
        return Size(row=38, words=15, bar=16)
    return Size(row=14, words=0, bar=10) if rows <= 20 else Size(row=11, words=0, bar=8)


def text(parent: Element, x: float, y: float, words: str, style: str, *more: tuple[str, str]) -> Element:
    """A line of text that starts at x; `style` is its classes."""
    made = SubElement(parent, "text", {"x": pixels(x), "y": pixels(y), "class": style, **dict(more)})
    made.text = printable(words)
    return made


def printable(words: str) -> str:
    """Without the characters that XML cannot hold."""
    return _UNPRINTABLE.sub("�", words)


def pixels(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Rows:
    """The rows of one policy, measured before they are drawn: `shapes` says how many there would be."""

    def __init__(self, timeline: Timeline, scale: Scale, closest_px: float) -> None:
        self._lives = timeline.lives
        self._scale = scale
        self._reads = [joined(spans, closest_px) for spans in _prefills(timeline, scale)]
        self._ticks = [
            joined(((x, x + _TICK_PX) for x in map(scale.x, life.token_times)), closest_px) for life in self._lives
        ]
        self._late = [joined(_late_gaps(life, scale), closest_px) for life in self._lives]

    @property
    def shapes(self) -> int:
        return sum(len(spans) for each in (self._reads, self._ticks, self._late) for spans in each)

    def draw(self, parent: Element, top: float, size: Size) -> None:
        for index, life in enumerate(self._lives):
            row = SubElement(parent, "g", {"class": f"c{index % COLOURS}"})
            SubElement(row, "title").text = printable(_told(life))
            middle = top + index * size.row + size.words + size.bar / 2
            self._name(row, life, middle, size)
            self._bar(row, index, life, middle, size)
            if size.labelled:
                self._words(row, life, middle - size.bar / 2 - 4)

    def _name(self, row: Element, life: Life, middle: float, size: Size) -> None:
        tokens = f"{life.prompt_tokens:,}"
        room = int((self._scale.left - 32) / LETTER_PX)
        if size.labelled and room > NAME_AND_TOKENS:
            text(row, 20, middle + 4, _short(life.name, 14), "name")
            text(row, self._scale.left - 12, middle + 4, f"{tokens} tokens", "faint end")
        elif size.labelled:
            text(row, 20, middle + 4, _short(life.name, max(1, room - 2)), "name")
        else:
            name = _short(life.name, min(16, room))
            text(row, 20, middle + 3, f"{name} · {tokens}" if room > NAME_AND_TOKENS else name, "tiny")

    def _bar(self, row: Element, index: int, life: Life, middle: float, size: Size) -> None:
        x = self._scale.x
        first_s = life.token_times[0] if life.token_times else life.ended_s
        last_s = max(life.arrived_s, life.ended_s or 0.0, *life.token_times[-1:])
        _stroke(row, [(x(life.arrived_s), x(last_s))], middle, 1.2, "life")
        begun_s = None if self._reads[index] or not life.token_times else life.started_s
        if first_s is not None:
            due_s = min(first_s, life.arrived_s + life.ttft_target_s)
            _box(row, x(life.arrived_s), x(due_s if begun_s is None else min(due_s, begun_s)), middle, size.bar, "wait")
            _box(row, x(due_s), x(first_s), middle, size.bar, "late")
            if begun_s is not None:
                _stroke(row, [(x(begun_s), x(first_s))], middle, size.bar, "begun")
        _stroke(row, self._reads[index], middle, size.bar, "read")
        _stroke(row, self._ticks[index], middle, round(size.bar * 0.62), "tick")
        for from_px, to_px in self._late[index]:
            # Upon the ticks, and as wide as can be seen, however short beside the whole.
            _box(row, from_px, max(to_px, from_px + LEAST_LATE_PX), middle, size.bar, "late")
        if not life.finished:
            words = f"✕ {life.outcome}" if size.labelled else "✕"
            fits = x(last_s) + 3 + len(words) * LETTER_PX < self._scale.left + self._scale.width + 20
            at_px = x(last_s) + 3 if fits else self._scale.left + self._scale.width
            text(row, at_px, middle + 3.5, words, "late-words small" if fits else "late-words small end")

    def _words(self, row: Element, life: Life, baseline: float) -> None:
        """What can be said without running into each other, the most important first."""
        x = self._scale.x
        wanted: list[tuple[float, str, bool]] = []
        worst = max(pairwise(life.token_times), key=lambda gap: gap[1] - gap[0], default=None)
        if worst is not None and worst[1] - worst[0] > life.itl_target_s:
            late = sum(gap > life.itl_target_s for gap in life.gaps_s)
            longest = span(worst[1] - worst[0])
            said = f"{longest} without text" if late == 1 else f"{late:,} late pauses, up to {longest}"
            wanted.append((x(worst[0]), said, True))
        if life.ttft_s is not None:
            late_first = life.ttft_s > life.ttft_target_s
            wanted.append((x(life.token_times[0]), f"first token after {span(life.ttft_s)}", late_first))
        taken: Spans = []
        for from_px, words, late_words in wanted:
            width = len(words) * LETTER_PX + 8
            # Left of its point where it would leave the picture, or run into what stands there already.
            places = (from_px, from_px - width + 8)
            right = self._scale.left + self._scale.width
            for at in places:
                free = all(at + width <= low or at >= high for low, high in taken)
                if self._scale.left <= at and at + width <= right + 8 and free:
                    taken.append((at, at + width))
                    text(row, at, baseline, words, "late-words small" if late_words else "faint small")
                    break


def joined(spans: Iterable[tuple[float, float]], closest_px: float) -> Spans:
    """Spans in the order of their start, those less than `closest_px` apart made one."""
    made: Spans = []
    for from_px, to_px in spans:
        if made and from_px - made[-1][1] < closest_px:
            made[-1] = (made[-1][0], max(made[-1][1], to_px))
        else:
            made.append((from_px, to_px))
    return made


def _prefills(timeline: Timeline, scale: Scale) -> list[Spans]:
    """Of each request the steps that read some of it, a seam after each that is wide enough for one."""
    found: list[Spans] = [[] for _ in timeline.lives]
    for turn in timeline.turns:
        if turn.start_s > scale.to_s:
            break
        for index, _ in turn.prefills:
            if index < len(found):
                from_px, to_px = scale.x(turn.start_s), scale.x(turn.end_s)
                found[index].append((from_px, to_px - _SEAM_PX if to_px - from_px > 4 * _SEAM_PX else to_px))
    return found


def _late_gaps(life: Life, scale: Scale) -> Iterable[tuple[float, float]]:
    for earlier, later in pairwise(life.token_times):
        if later - earlier > life.itl_target_s and earlier < scale.to_s:
            yield scale.x(earlier) + _TICK_PX, scale.x(later)


def _box(row: Element, from_px: float, to_px: float, middle: float, height: float, style: str) -> None:
    if to_px - from_px >= 0.5:
        place = {"x": pixels(from_px), "y": pixels(middle - height / 2)}
        SubElement(row, "rect", {**place, "width": pixels(to_px - from_px), "height": pixels(height), "class": style})


def _stroke(row: Element, spans: Sequence[tuple[float, float]], middle: float, height: float, style: str) -> None:
    """All in one path: as thick a line as the spans are high."""
    if spans:
        drawn = "".join(f"M{pixels(low)} {pixels(middle)}h{max(high - low, 0.5):.1f}" for low, high in spans)
        SubElement(row, "path", {"d": drawn, "stroke-width": pixels(height), "class": style})


def _short(name: str, letters: int) -> str:
    return name if len(name) <= letters else name[: letters - 1] + "…"


def _told(life: Life) -> str:
    """What a pointer that rests on the row is told."""
    said = [f"{life.name}: {life.prompt_tokens:,} tokens read, {len(life.token_times):,} written"]
    said.append("no first token" if life.ttft_s is None else f"the first after {span(life.ttft_s)}")
    if len(life.token_times) > 1:
        said.append(f"the longest pause {span(max(life.gaps_s))}")
    if life.preemptions:
        said.append(f"preempted {life.preemptions} times")
    said.append("met its targets" if life.met else f"missed its targets ({life.outcome})")
    return ", ".join(said) + "."
