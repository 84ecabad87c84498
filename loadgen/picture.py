"""Who ran and who waited, as one picture: each policy a band, all on the same time axis.

Knows the page: an SVG that needs nothing beside it, and an HTML page around two of them, for wide and for narrow
screens, with its figures. Knows neither where a timeline came from nor what is counted of it. Few requests are drawn a
row each; of many, the crowd as a whole and some of them, where it matters (`picture_choice`).
"""

import math
from collections.abc import Sequence
from importlib import resources
from itertools import count
from xml.etree.ElementTree import Element, SubElement, tostring

import msgspec
from jinja2 import Environment
from msgspec import Struct

from loadgen import picture_crowd as crowd
from loadgen.comparison import PolicyFigures, compare, span
from loadgen.picture_choice import chosen
from loadgen.picture_legend import legend
from loadgen.picture_rows import COLOURS, LETTER_PX, Rows, Scale, pixels, printable, size_for, text
from protocol.timeline import Life, Timeline

TITLE = "Who ran, who waited"
MOST_ROWS = 40
MOST_SHAPES = 60_000
"""Of all rows together, about twelve bytes each."""
CLOSEST_PX = 0.75
"""What is closer together than this becomes one shape, and what is farther as well when there are too many."""

_BAND_HEAD, _BAND_FOOT = 30, 16
_CROWD = 110
_LINE, _TITLE_LINE = 18, 24

# Okabe and Ito's palette, which most colour-blind people can tell apart; its vermilion is kept for what is late.
_LIGHT = ("#0072b2", "#b0578d", "#008f68", "#8c7a00", "#5aa9dd", "#5b4fa8")
_DARK = ("#4ba6e0", "#e394c4", "#2cc498", "#d9c94a", "#9dd6f9", "#a79cf0")


class Page(Struct, frozen=True):
    """What is drawn on: pixels of all, of the margins, and of a letter in running text."""

    id: str
    width: int
    left: int
    right: int

    @property
    def letters(self) -> int:
        """As many as fit into a line."""
        return int((self.width - MARGIN - self.right) / 6.6)

    @property
    def end(self) -> int:
        return self.width - self.right


MARGIN = 20
WIDE = Page("turns", 1200, 180, 30)
NARROW = Page("turns-narrow", 400, 96, 20)


def svg(timelines: Sequence[Timeline], *, title: str = "", about: str = "") -> str:
    """The picture of these timelines, of the same scenario."""
    return _svg(timelines, compare(timelines).policies, title, about, WIDE)


def html(timelines: Sequence[Timeline], *, title: str = "", about: str = "") -> str:
    """A page with the picture and a table: one file, readable in a light and in a dark room, without scripts."""
    template = resources.files("loadgen").joinpath("picture.html").read_text(encoding="utf-8")
    page = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(template)
    policies = compare(timelines).policies
    return page.render(
        title=printable(title or TITLE),
        wide=_svg(timelines, policies, title, about, WIDE),
        narrow=_svg(timelines, policies, title, about, NARROW),
        policies=[msgspec.structs.replace(each, policy=printable(each.policy)) for each in policies],
        chunks=any(each.tokens_are_chunks for each in policies),
        span=span,
    )


def _svg(timelines: Sequence[Timeline], figures: Sequence[PolicyFigures], title: str, about: str, page: Page) -> str:
    everybody = max((len(timeline.lives) for timeline in timelines), default=0)
    shown = min(everybody, MOST_ROWS)
    names = {"title": f"{page.id}-title", "desc": f"{page.id}-desc"}
    picture = Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "id": page.id,
            "role": "img",
            "aria-labelledby": f"{names['title']} {names['desc']}",
        },
    )
    SubElement(picture, "title", {"id": names["title"]}).text = printable(title or TITLE)
    SubElement(picture, "desc", {"id": names["desc"]}).text = printable(_described(figures, about))
    SubElement(picture, "style").text = _STYLE + _hatched(page)
    _patterns(picture, page)
    SubElement(picture, "rect", {"width": "100%", "height": "100%", "class": "paper"})
    y = 34.0 - _TITLE_LINE
    for line in _lines(title or TITLE, int(page.letters * 0.58)):
        y += _TITLE_LINE
        text(picture, MARGIN, y, line, "title")
    for line in _lines(about, page.letters):
        y += _LINE
        text(picture, MARGIN, y, line, "faint")
    some, caption = chosen(timelines, shown) if everybody > shown else (timelines, "")
    y = legend(picture, y + 26, some, page.end, crowded=everybody > shown)
    if everybody > shown:
        y = _crowd_section(picture, timelines, figures, y + 34, everybody, page)
        y = _row_section(picture, some, compare(some).policies, y + 34, shown, caption, page)
    elif everybody:
        y = _row_section(picture, timelines, figures, y + 8, shown, "", page)
    height = math.ceil(y + 16)
    size = {"viewBox": f"0 0 {page.width} {height}", "width": str(page.width), "height": str(height)}
    picture.attrib.update(size)
    return tostring(picture, encoding="unicode")


def _row_section(
    picture: Element,
    timelines: Sequence[Timeline],
    figures: Sequence[PolicyFigures],
    y: float,
    most_rows: int,
    caption: str,
    page: Page,
) -> float:
    """A band a policy, in it a row a request. Returns where it ends."""
    if caption:
        y = _caption(picture, y, caption, page)
    scale = _scale([life for timeline in timelines for life in timeline.lives], page)
    size = size_for(most_rows)
    closest_px = CLOSEST_PX
    bands = [Rows(timeline, scale, closest_px) for timeline in timelines]
    while sum(rows.shapes for rows in bands) > MOST_SHAPES:
        closest_px *= 1.5
        bands = [Rows(timeline, scale, closest_px) for timeline in timelines]
    heads = [_head(counted, page) for counted in figures]
    heights = [
        head + len(timeline.lives) * size.row + _BAND_FOOT for head, timeline in zip(heads, timelines, strict=True)
    ]
    _axis(picture, scale, y + 12, sum(heights), page)
    y += 20
    for rows, counted, head, height in zip(bands, figures, heads, heights, strict=True):
        rows.draw(_band(picture, counted, y, page), y + head, size)
        y += height
    return y


def _crowd_section(
    picture: Element,
    timelines: Sequence[Timeline],
    figures: Sequence[PolicyFigures],
    y: float,
    everybody: int,
    page: Page,
) -> float:
    """A band a policy, in it how many waited. Returns where it ends."""
    y = _caption(picture, y, f"All {everybody:,} requests: how many wait, and how many are being answered", page)
    scale = _scale([life for timeline in timelines for life in timeline.lives], page)
    counts = [crowd.counts_over(timeline.lives, scale) for timeline in timelines]
    highest = max(1, *map(crowd.most, counts))
    heads = [_head(counted, page) for counted in figures]
    _axis(picture, scale, y + 12, sum(heads) + (_CROWD + _BAND_FOOT) * len(timelines), page)
    y += 20
    for each, counted, head in zip(counts, figures, heads, strict=True):
        crowd.draw(_band(picture, counted, y, page), each, scale, y + head, _CROWD, highest)
        y += head + _CROWD + _BAND_FOOT
    return y


def _caption(picture: Element, y: float, words: str, page: Page) -> float:
    """Returns where what it stands over begins."""
    lines = _lines(words, int(page.letters * 0.75))
    for number, line in enumerate(lines):
        text(picture, MARGIN, y + number * _LINE, line, "policy")
    return y + (len(lines) - 1) * _LINE + 8


def _beside_name(figures: PolicyFigures, page: Page) -> bool:
    """Whether there is room for what came of it in the line of its name."""
    return len(figures.policy) * 8 + len(_summed_up(figures)) * 6.6 < page.end - MARGIN - 20


def _head(figures: PolicyFigures, page: Page) -> int:
    """How high the head of its band is."""
    return _BAND_HEAD + (0 if _beside_name(figures, page) else _LINE * len(_below_name(figures, page)))


def _below_name(figures: PolicyFigures, page: Page) -> list[str]:
    """In lines that part no figure from its unit."""
    return _lines(_summed_up(figures).replace(" ", "\xa0").replace("\xa0·\xa0", "\xa0· "), page.letters)


def _band(picture: Element, figures: PolicyFigures, y: float, page: Page) -> Element:
    """With its line, its name and what came of it."""
    band = SubElement(picture, "g")
    SubElement(band, "path", {"d": f"M{MARGIN} {pixels(y)}H{page.end}", "class": "rule"})
    text(band, MARGIN, y + 16, figures.policy, "policy")
    if _beside_name(figures, page):
        text(band, page.end, y + 16, _summed_up(figures), "faint end")
    else:
        for number, line in enumerate(_below_name(figures, page), 1):
            text(band, MARGIN, y + 16 + number * _LINE, line, "faint")
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


# -- the axis and the style


def _scale(lives: Sequence[Life], page: Page) -> Scale:
    last_s = max((max(life.arrived_s, life.ended_s or 0.0, *life.token_times[-1:]) for life in lives), default=0.0)
    from_s = min((life.arrived_s for life in lives), default=0.0)
    return Scale(from_s, max(last_s, from_s + 1e-3), page.left, page.end - page.left)


def _axis(picture: Element, scale: Scale, y: float, height: float, page: Page) -> None:
    """Seconds from the start, and a faint line down at each."""
    step_s = _round_step((scale.to_s - scale.from_s) / max(2, scale.width / 110))
    axis = SubElement(picture, "g")
    for number in count(math.ceil(scale.from_s / step_s - 1e-9)):
        at_s = number * step_s
        if at_s > scale.to_s:
            return
        SubElement(axis, "path", {"d": f"M{pixels(scale.x(at_s))} {pixels(y + 4)}v{pixels(height)}", "class": "rule"})
        words = f"{at_s:,.10g} s"
        # The last one where it would leave the page.
        fits = scale.x(at_s) + len(words) * LETTER_PX / 2 < page.width
        text(axis, scale.x(at_s), y, words, "faint small middle" if fits else "faint small end")


def _round_step(about: float) -> float:
    """The next of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(about))
    return next((power * step for step in (1, 2, 5) if power * step >= about), power * 10)


def _patterns(picture: Element, page: Page) -> None:
    """Hatching, so that waiting is told from running without colour."""
    defs = SubElement(picture, "defs")
    for name, style, turn in (("wait", "wait-line", "45"), ("late", "late-line", "-45")):
        size = {"width": "6", "height": "6", "patternUnits": "userSpaceOnUse", "patternTransform": f"rotate({turn})"}
        pattern = SubElement(defs, "pattern", {"id": f"{page.id}-{name}", **size})
        SubElement(pattern, "rect", {"width": "6", "height": "6", "class": f"{style}-ground"})
        SubElement(pattern, "path", {"d": "M0 0V6", "class": style})


def _hatched(page: Page) -> str:
    """Each picture on a page has patterns of its own: those of a hidden one are not drawn."""
    return "".join(f"#{page.id} .{name}{{fill:url(#{page.id}-{name})}}" for name in ("wait", "late"))


def _lines(words: str, letters: int) -> list[str]:
    """As many words a line as fit."""
    lines: list[str] = []
    for word in filter(None, words.split(" ")):
        if lines and len(lines[-1]) + len(word) < letters:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _colours(of: Sequence[str]) -> str:
    return "".join(
        f".c{index} .read,.c{index} .begun,.c{index} .tick,.c{index} .life{{stroke:{of[index]}}}"
        for index in range(COLOURS)
    )


_STYLE = f"""
text{{font:12.5px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#1d2329}}
.title{{font-size:20px;font-weight:650}}
.policy{{font-size:14px;font-weight:650}}
.name{{font-size:13px;font-weight:650}}
.small{{font-size:11px}}
.tiny{{font-size:10px}}
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
