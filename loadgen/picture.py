"""Who ran and who waited, as one picture: each policy a band, all on the same time axis.

Knows the page: an SVG that needs nothing beside it, and an HTML page around it with its figures. Knows neither where
a timeline came from nor what is counted of it. Few requests are drawn a row each; of many, the crowd as a whole and
the first ones.
"""

import math
from collections.abc import Sequence
from importlib import resources
from itertools import count
from xml.etree.ElementTree import Element, SubElement, tostring

import msgspec
from jinja2 import Environment

from loadgen import picture_crowd as crowd
from loadgen.comparison import PolicyFigures, compare, span
from loadgen.picture_rows import COLOURS, Rows, Scale, pixels, printable, size_for, text
from protocol.timeline import Life, Timeline

TITLE = "Who ran, who waited"
WIDTH = 1200
LEFT, RIGHT = 180, 30
MOST_ROWS = 40
MOST_SHAPES = 60_000
"""Of all rows together, about twelve bytes each."""
CLOSEST_PX = 0.75
"""What is closer together than this becomes one shape, and what is farther as well when there are too many."""

_BAND_HEAD, _BAND_FOOT = 30, 16
_CROWD = 110
_LETTERS_A_LINE = 175

# Okabe and Ito's palette, which most colour-blind people can tell apart; its vermilion is kept for what is late.
_LIGHT = ("#0072b2", "#b0578d", "#008f68", "#8c7a00", "#5aa9dd", "#5b4fa8")
_DARK = ("#4ba6e0", "#e394c4", "#2cc498", "#d9c94a", "#9dd6f9", "#a79cf0")


def svg(timelines: Sequence[Timeline], *, title: str = "", about: str = "") -> str:
    """The picture of these timelines, of the same scenario."""
    return _svg(timelines, compare(timelines).policies, title, about)


def html(timelines: Sequence[Timeline], *, title: str = "", about: str = "") -> str:
    """A page with the picture and a table: one file, readable in a light and in a dark room, without scripts."""
    template = resources.files("loadgen").joinpath("picture.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    policies = compare(timelines).policies
    return page.render(
        title=printable(title or TITLE),
        picture=_svg(timelines, policies, title, about),
        policies=[msgspec.structs.replace(each, policy=printable(each.policy)) for each in policies],
        chunks=any(each.tokens_are_chunks for each in policies),
        span=span,
    )


def _svg(timelines: Sequence[Timeline], figures: Sequence[PolicyFigures], title: str, about: str) -> str:
    everybody = max((len(timeline.lives) for timeline in timelines), default=0)
    shown = min(everybody, MOST_ROWS)
    picture = Element(
        "svg",
        {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-labelledby": "turns-title turns-desc"},
    )
    SubElement(picture, "title", {"id": "turns-title"}).text = printable(title or TITLE)
    SubElement(picture, "desc", {"id": "turns-desc"}).text = printable(_described(figures, about))
    SubElement(picture, "style").text = _STYLE
    _patterns(picture)
    SubElement(picture, "rect", {"width": "100%", "height": "100%", "class": "paper"})
    y = 34.0
    text(picture, 20, y, title or TITLE, "title")
    for line in _lines(about):
        y += 18
        text(picture, 20, y, line, "faint")
    y = _legend(picture, y + 26, timelines)
    if everybody > shown:
        y = _crowd_section(picture, timelines, figures, y + 34, everybody)
        first = [Timeline(timeline.policy, timeline.lives[:shown], timeline.turns) for timeline in timelines]
        caption = f"The first {shown} of {everybody:,} requests"
        y = _row_section(picture, first, compare(first).policies, y + 34, shown, caption)
    elif everybody:
        y = _row_section(picture, timelines, figures, y + 8, shown, "")
    height = math.ceil(y + 16)
    picture.attrib.update({"viewBox": f"0 0 {WIDTH} {height}", "width": str(WIDTH), "height": str(height)})
    return tostring(picture, encoding="unicode")


def _row_section(
    picture: Element,
    timelines: Sequence[Timeline],
    figures: Sequence[PolicyFigures],
    y: float,
    most_rows: int,
    caption: str,
) -> float:
    """A band a policy, in it a row a request. Returns where it ends."""
    if caption:
        text(picture, 20, y, caption, "policy")
        y += 8
    scale = _scale([life for timeline in timelines for life in timeline.lives])
    size = size_for(most_rows)
    closest_px = CLOSEST_PX
    bands = [Rows(timeline, scale, closest_px) for timeline in timelines]
    while sum(rows.shapes for rows in bands) > MOST_SHAPES:
        closest_px *= 1.5
        bands = [Rows(timeline, scale, closest_px) for timeline in timelines]
    heights = [_BAND_HEAD + len(timeline.lives) * size.row + _BAND_FOOT for timeline in timelines]
    _axis(picture, scale, y + 12, sum(heights))
    y += 20
    for rows, counted, height in zip(bands, figures, heights, strict=True):
        rows.draw(_band(picture, counted, y), y + _BAND_HEAD, size)
        y += height
    return y


def _crowd_section(
    picture: Element, timelines: Sequence[Timeline], figures: Sequence[PolicyFigures], y: float, everybody: int
) -> float:
    """A band a policy, in it how many waited. Returns where it ends."""
    text(picture, 20, y, f"All {everybody:,} requests: how many wait, and how many are being answered", "policy")
    y += 8
    scale = _scale([life for timeline in timelines for life in timeline.lives])
    counts = [crowd.counts_over(timeline.lives, scale) for timeline in timelines]
    highest = max(1, *map(crowd.most, counts))
    height = _BAND_HEAD + _CROWD + _BAND_FOOT
    _axis(picture, scale, y + 12, height * len(timelines))
    y += 20
    for each, counted in zip(counts, figures, strict=True):
        crowd.draw(_band(picture, counted, y), each, scale, y + _BAND_HEAD, _CROWD, highest)
        y += height
    return y


def _band(picture: Element, figures: PolicyFigures, y: float) -> Element:
    """With its line, its name and what came of it."""
    band = SubElement(picture, "g")
    SubElement(band, "path", {"d": f"M20 {pixels(y)}H{WIDTH - RIGHT}", "class": "rule"})
    text(band, 20, y + 16, figures.policy, "policy")
    text(band, WIDTH - RIGHT, y + 16, _summed_up(figures), "faint end")
    return band


def _summed_up(figures: PolicyFigures) -> str:
    said = [f"{figures.met:,} of {figures.requests:,} met their targets"]
    if figures.ttft_s is not None:
        said.append(f"slowest first token {span(figures.ttft_s.worst)}")
    if figures.gap_s is not None:
        said.append(f"longest pause {span(figures.gap_s.worst)}")
    return " · ".join(said)


def _described(figures: Sequence[PolicyFigures], about: str) -> str:
    """The picture in words, for those who do not see it."""
    return " ".join([about, *(f"{each.policy}: {_summed_up(each)}." for each in figures)]).strip()


# -- the axis, the legend, the style


def _scale(lives: Sequence[Life]) -> Scale:
    last_s = max((max(life.arrived_s, life.ended_s or 0.0, *life.token_times[-1:]) for life in lives), default=0.0)
    from_s = min((life.arrived_s for life in lives), default=0.0)
    return Scale(from_s, max(last_s, from_s + 1e-3), LEFT, WIDTH - LEFT - RIGHT)


def _axis(picture: Element, scale: Scale, y: float, height: float) -> None:
    """Seconds from the start, and a faint line down at each."""
    step_s = _round_step((scale.to_s - scale.from_s) / 9)
    axis = SubElement(picture, "g")
    for number in count(math.ceil(scale.from_s / step_s - 1e-9)):
        at_s = number * step_s
        if at_s > scale.to_s:
            return
        SubElement(axis, "path", {"d": f"M{pixels(scale.x(at_s))} {pixels(y + 4)}v{pixels(height)}", "class": "rule"})
        text(axis, scale.x(at_s), y, f"{at_s:,.10g} s", "faint small middle")


def _round_step(about: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(about))
    return next((power * step for step in (1, 2, 5) if power * step >= about), power * 10)


def _legend(picture: Element, y: float, timelines: Sequence[Timeline]) -> float:
    """What the shapes mean. Returns where it ends."""
    steps = any(timeline.turns for timeline in timelines)
    begun = any(life.started_s is not None for timeline in timelines for life in timeline.lives)
    crowded = any(len(timeline.lives) > MOST_ROWS for timeline in timelines)
    x = 20.0

    def entry(words: str, *shapes: tuple[str, dict[str, str]]) -> None:
        nonlocal x
        for tag, attributes in shapes:
            SubElement(picture, tag, attributes)
        text(picture, x + 34, y, words, "small")
        x += 34 + len(words) * 5.9 + 26

    def box(style: str) -> tuple[str, dict[str, str]]:
        return "rect", {"x": pixels(x), "y": pixels(y - 10), "width": "26", "height": "12", "class": style}

    def strokes(style: str, height: int, marks: str) -> tuple[str, dict[str, str]]:
        return "path", {
            "d": f"M{pixels(x)} {pixels(y - 4)}{marks}",
            "stroke-width": str(height),
            "class": f"{style} neutral",
        }

    if steps:
        entry("its prompt is read, a block a step", strokes("read", 12, "h12m1 0h12"))
        entry("a token of its answer", strokes("tick", 8, "m2 0h1.4m5 0h1.4m5 0h1.4m5 0h1.4"))
    else:
        if begun:
            entry("is being read", strokes("begun", 12, "h26"))
        entry("a chunk of text arrives", strokes("tick", 8, "m2 0h1.4m5 0h1.4m5 0h1.4m5 0h1.4"))
    entry("waits for its first token", box("wait"))
    entry("waits longer than its target", box("late"))
    if crowded:
        x, y = 20.0, y + 20
        entry("waiting for their first token", box("waiting"))
        entry("without text for longer than their target", box("paused"))
        entry("being answered in time", box("answered"))
    return y


def _patterns(picture: Element) -> None:
    """Hatching, so that waiting is told from running without colour."""
    defs = SubElement(picture, "defs")
    for name, style, turn in (("turns-wait", "wait-line", "45"), ("turns-late", "late-line", "-45")):
        size = {"width": "6", "height": "6", "patternUnits": "userSpaceOnUse", "patternTransform": f"rotate({turn})"}
        pattern = SubElement(defs, "pattern", {"id": name, **size})
        SubElement(pattern, "rect", {"width": "6", "height": "6", "class": f"{style}-ground"})
        SubElement(pattern, "path", {"d": "M0 0V6", "class": style})


def _lines(words: str) -> list[str]:
    """As many words a line as fit."""
    lines: list[str] = []
    for word in words.split():
        if lines and len(lines[-1]) + len(word) < _LETTERS_A_LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _colours(of: Sequence[str]) -> str:
    return "".join(
        f".c{index} .read,.c{index} .begun,.c{index} .tick,.c{index} .life{{stroke:{of[index]}}}"
        f".c{index} .name,.c{index} .tiny{{fill:{of[index]}}}"
        for index in range(COLOURS)
    )


_STYLE = f"""
text{{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#1d2329}}
.title{{font-size:20px;font-weight:650}}
.policy{{font-size:14px;font-weight:650}}
.name{{font-size:13px;font-weight:650}}
.small{{font-size:11px}}
.tiny{{font-size:9px}}
text.end{{text-anchor:end}}
text.middle{{text-anchor:middle}}
text.faint{{fill:#5b6570}}
text.late-words{{fill:#a63c00;font-weight:600}}
.paper{{fill:#fff}}
path{{fill:none}}
.rule{{stroke:#dfe3e8}}
.life{{opacity:.55}}
.neutral{{stroke:#5b6570}}
.tick{{opacity:.85}}
.begun{{opacity:.45}}
.wait{{fill:url(#turns-wait)}}
.late{{fill:url(#turns-late)}}
.wait-line{{stroke:#aab2bb;stroke-width:2}}
.wait-line-ground{{fill:#f1f3f5}}
.late-line{{stroke:#d55e00;stroke-width:2.6}}
.late-line-ground{{fill:#ffe9da}}
.waiting{{fill:#b3bac2}}
.paused{{fill:#d55e00}}
.answered{{fill:#0072b2}}
{_colours(_LIGHT)}
@media (prefers-color-scheme:dark){{
text{{fill:#e6e9ec}}
text.faint{{fill:#9aa4ae}}
text.late-words{{fill:#ff9e63}}
.paper{{fill:#14181d}}
.rule{{stroke:#2a3138}}
.neutral{{stroke:#9aa4ae}}
.wait-line{{stroke:#5d6771}}
.wait-line-ground{{fill:#22282f}}
.late-line{{stroke:#f0772b}}
.late-line-ground{{fill:#4a2613}}
.waiting{{fill:#5d6771}}
.paused{{fill:#f0772b}}
.answered{{fill:#4ba6e0}}
{_colours(_DARK)}
}}
"""
