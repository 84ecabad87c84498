"""What the shapes of the picture mean: an entry for each kind that is drawn.

Knows the shapes by their classes. Knows nothing of where they stand in the picture.
"""

from collections.abc import Sequence
from xml.etree.ElementTree import Element, SubElement

from loadgen.picture_rows import pixels, text
from protocol.timeline import Timeline

_LEFT, _LINE, _WORDS, _LETTER, _APART = 20.0, 20, 34, 5.9, 26


class _Legend:
    """Entries one after the other, in lines that end at `right`."""

    def __init__(self, parent: Element, y: float, right: float) -> None:
        self._parent = parent
        self._right = right
        self._x = _LEFT
        self.y = y

    def entry(self, words: str, tag: str, **attributes: str) -> None:
        """A shape that is drawn for a place at 0, 0, and what it means."""
        width = _WORDS + len(words) * _LETTER
        if self._x > _LEFT and self._x + width > self._right:
            self.next_line()
        at = SubElement(self._parent, "g", {"transform": f"translate({pixels(self._x)} {pixels(self.y)})"})
        shape = SubElement(at, tag, {name.replace("_", "-"): value for name, value in attributes.items()})
        if tag == "text":
            shape.text = "✕"
        text(self._parent, self._x + _WORDS, self.y, words, "small")
        self._x += width + _APART

    def box(self, words: str, style: str) -> None:
        self.entry(words, "rect", x="0", y="-10", width="26", height="12", **{"class": style})

    def strokes(self, words: str, style: str, height: float, marks: str) -> None:
        self.entry(words, "path", d=f"M0 -4{marks}", stroke_width=pixels(height), **{"class": f"{style} neutral"})

    def next_line(self) -> None:
        self._x, self.y = _LEFT, self.y + _LINE


def legend(parent: Element, y: float, timelines: Sequence[Timeline], right: float, *, crowded: bool) -> float:
    """Draw what there is an example of in the picture. Returns where it ends."""
    lives = [life for timeline in timelines for life in timeline.lives]
    read = {
        (number, index) for number, each in enumerate(timelines) for turn in each.turns for index, _ in turn.prefills
    }
    begun = any(
        life.started_s is not None and (number, index) not in read
        for number, each in enumerate(timelines)
        for index, life in enumerate(each.lives)
    )
    steps = any(timeline.turns for timeline in timelines)
    made = _Legend(parent, y, right)
    if steps:
        made.strokes("its prompt is read, a block a step", "read", 12, "h12m1 0h12")
    if begun:
        made.strokes("is being read", "begun", 12, "h26")
    made.strokes(
        "a token of its answer" if steps else "a chunk of text arrives", "tick", 8, "m2 0h1.4m5 0h1.4m5 0h1.4m5 0h1.4"
    )
    made.strokes("under way", "life", 1.2, "h26")
    made.box("waits for its first token", "wait")
    made.box("waits longer than its target", "late")
    if not all(life.finished for life in lives):
        made.entry("did not finish", "text", x="8", y="0", **{"class": "late-words small"})
    if crowded:
        made.next_line()
        made.box("waiting for their first token", "waiting")
        made.box("without text for longer than their target", "paused")
        made.box("being answered in time", "answered")
    return made.y
