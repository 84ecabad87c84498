"""The picture of timelines: what it shows, that any XML reader can read it, and that it stays small."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import accumulate
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from msgspec.structs import replace

from loadgen.picture import MOST_SHAPES, html, svg
from loadgen.picture_crowd import counts_at
from loadgen.picture_rows import joined
from protocol.timeline import Life, Timeline, Turn
from tests.loadgen.timelines import as_seen_outside, crowd, laptops

SVG = "{http://www.w3.org/2000/svg}"


def drawn(timelines: list[Timeline], title: str = "", about: str = "") -> Element:
    return ElementTree.fromstring(svg(timelines, title=title, about=about))


def words(picture: Element) -> list[str]:
    return [element.text or "" for element in picture.iter(f"{SVG}text")]


def rows(picture: Element) -> Iterator[Element]:
    """The row of each request."""
    return (group for group in picture.iter(f"{SVG}g") if group.find(f"{SVG}title") is not None)


def shapes(element: Element, style: str) -> int:
    """How many spans of that class are drawn: boxes, and the parts of paths."""
    paths = [path for path in element.iter(f"{SVG}path") if style in path.attrib.get("class", "").split()]
    boxes = [box for box in element.iter(f"{SVG}rect") if style in box.attrib.get("class", "").split()]
    return sum(path.attrib["d"].count("M") for path in paths) + len(boxes)


def row(picture: Element, policy: int, request: int, requests: int = 3) -> Element:
    return list(rows(picture))[policy * requests + request]


def test_every_policy_and_every_request_is_named_with_what_became_of_it() -> None:
    picture = drawn(laptops(), "laptops", "Three customers.")
    said = words(picture)
    for policy in ("slack", "fixed_chunk", "decode_first", "prefill_first"):
        assert said.count(policy) == 1
    for name in "ACB":
        assert said.count(name) == 4
    assert said[:2] == ["laptops", "Three customers."]
    titles = [group.findtext(f"{SVG}title", "") for group in rows(picture)]
    assert len(titles) == 12
    assert titles[9].startswith("A: 200 tokens read, 128 written, the first after 1.02 s, the longest pause 24.0 s")


def test_it_is_told_to_those_who_do_not_see_it() -> None:
    picture = drawn(laptops(), about="Three customers.")
    assert picture.attrib["role"] == "img"
    known = {element.attrib.get("id"): element.text or "" for element in picture.iter()}
    title, description = (known[name] for name in picture.attrib["aria-labelledby"].split())
    assert title == "Who ran, who waited"
    assert description.startswith("Three customers. slack: ")
    assert "longest pause 24.0 s" in description


def test_a_pause_over_its_target_is_marked_and_told_and_one_within_it_is_not() -> None:
    picture = drawn(laptops())
    slack_a, prefill_first_a = row(picture, 0, 0), row(picture, 3, 0)
    assert shapes(slack_a, "late") == 0
    assert shapes(prefill_first_a, "late") == 1
    assert words(picture).count("24.0 s without text") == 2
    assert "47 late pauses, up to 532 ms" in words(row(picture, 1, 0))


def test_a_first_token_after_its_target_is_marked_from_the_target_on() -> None:
    [timeline] = [timeline for timeline in laptops() if timeline.policy == "slack"]
    hurried = replace(timeline.lives[2], ttft_target_s=5.0)
    picture = drawn([replace(timeline, lives=(*timeline.lives[:2], hurried))])
    late = [box for box in row(picture, 0, 2).iter(f"{SVG}rect") if box.attrib["class"] == "late"]
    wait = [box for box in row(picture, 0, 2).iter(f"{SVG}rect") if box.attrib["class"] == "wait"]
    assert len(late) == len(wait) == 1
    assert float(late[0].attrib["width"]) == pytest.approx(float(wait[0].attrib["width"]) * (25.2 - 5) / 5, rel=0.02)


def test_where_steps_are_known_each_is_drawn_and_where_they_are_not_a_wait_and_ticks_are() -> None:
    inside, outside = drawn(laptops()), drawn([as_seen_outside(timeline) for timeline in laptops()])
    assert shapes(row(inside, 0, 2), "read") == 60, "12,000 tokens in chunks of 200"
    assert shapes(row(inside, 3, 2), "read") == 1
    assert shapes(row(outside, 0, 2), "read") == 0
    assert shapes(row(outside, 0, 2), "wait") == 1
    assert shapes(row(outside, 0, 0), "tick") == shapes(row(inside, 0, 0), "tick") > 60
    assert "a chunk of text arrives" in words(outside)
    assert "its prompt is read, a block a step" in words(inside)


def test_what_a_server_says_of_its_queue_parts_the_wait_from_the_reading() -> None:
    life = Life("A", 10, 0.0, 50.0, 0.5, 4.0, (10.0, 20.0), 20.0, True, "length")
    known, unknown = (drawn([Timeline("slack", (replace(life, started_s=at_s),))]) for at_s in (4.0, None))
    widths = [
        float(box.attrib["width"])
        for picture in (known, unknown)
        for box in row(picture, 0, 0).iter(f"{SVG}rect")
        if box.attrib["class"] == "wait"
    ]
    assert widths[0] == pytest.approx(0.4 * widths[1], abs=0.2)
    assert shapes(row(known, 0, 0), "begun") == 1
    assert shapes(row(unknown, 0, 0), "begun") == 0
    assert "is being read" in words(known)


def test_a_request_that_came_to_nothing_says_why() -> None:
    refused = Life("B", 12_000, 1.0, 5.0, 0.5, ended_s=1.0, outcome="server_overloaded")
    waited = Life("C", 10, 1.0, 5.0, 0.5, ended_s=9.0, outcome="deadline")
    answered = Life("A", 10, 0.0, 5.0, 0.5, 0.0, (1.0, 2.0), 2.0, True, "length")
    picture = drawn([Timeline("slack", (answered, refused, waited))])
    assert "✕ server_overloaded" in words(row(picture, 0, 1))
    assert shapes(row(picture, 0, 2), "wait") == shapes(row(picture, 0, 2), "late") == 1, "8 s, its target being 5"


def test_what_cannot_stand_in_xml_is_escaped_or_replaced() -> None:
    name = "<b>&\"'\x00\x1b]]>\ud800"
    life = Life(name, 10, 0.0, 5.0, 0.5, 0.0, (1.0,), 1.0, True, "length")
    timelines = [Timeline(name, (life,), (Turn(0.0, 1.0, ((0, 10),)),))]
    picture = drawn(timelines, title=name, about=name)
    assert "<b>&\"'��]]>�" in words(picture)
    page = html(timelines, title=name, about=name)
    assert "<b>" not in page
    page.encode()


@pytest.mark.parametrize("timelines", [[], [Timeline("slack", ())], [Timeline("slack", (Life("A", 1, 0.0, 1, 1),))]])
def test_nothing_to_draw_is_drawn_as_well(timelines: list[Timeline]) -> None:
    drawn(timelines)
    html(timelines)


# -- many requests


def test_a_crowd_is_drawn_as_one_and_some_of_its_requests_each() -> None:
    picture = drawn([crowd(100), crowd(100, "prefill_first")])
    assert "All 100 requests: how many wait, and how many are being answered" in words(picture)
    assert any(line.startswith("40 of 100 requests, from number ") for line in words(picture))
    assert len(list(rows(picture))) == 80
    assert shapes(picture, "waiting") == 3, "two policies, and the legend"


def test_twenty_thousand_requests_make_a_picture_of_bounded_size() -> None:
    few = crowd(200).lives
    many = tuple(
        replace(
            life,
            arrived_s=life.arrived_s + again * 40,
            token_times=tuple(at_s + again * 40 for at_s in life.token_times),
            ended_s=(life.ended_s or 0) + again * 40,
        )
        for again in range(100)
        for life in few
    )
    picture = svg([Timeline("slack", many)])
    assert len(picture) < 500_000


def test_many_steps_are_merged_until_they_can_be_drawn() -> None:
    """Forty requests of 160 tokens that all lie apart, in sixteen policies: more than may be drawn."""
    times = tuple(accumulate(4.0 + number % 5 for number in range(160)))
    lives = tuple(Life(f"r{n}", 10, 0.0, 5.0, 9.0, 0.0, times, times[-1], True, "length") for n in range(40))
    assert shapes(drawn([Timeline("slack", lives)]), "tick") > 40 * 160
    picture = drawn([Timeline(f"policy {number}", lives) for number in range(16)])
    assert MOST_SHAPES / 4 < shapes(picture, "tick") <= MOST_SHAPES
    assert len(list(rows(picture))) == 640


def test_spans_closer_than_can_be_seen_become_one() -> None:
    assert joined([(0, 1), (1.5, 2), (4, 5), (4.5, 4.8)], 1.0) == [(0, 2), (4, 5)]
    assert joined([], 1.0) == []


def test_the_crowd_waits_pauses_and_is_answered_one_at_a_time() -> None:
    life = Life("A", 10, 1.0, 5.0, 2.0, 1.0, (3.0, 4.0, 9.0), 9.0, True, "length")
    refused = Life("B", 10, 1.0, 5.0, 2.0, ended_s=2.0, outcome="server_overloaded")
    at = [0.5, 1.5, 2.5, 3.5, 5.5, 6.5, 8.5, 9.5]
    assert counts_at([life, refused], at) == [
        (0, 0, 0),
        (2, 0, 0),
        (1, 0, 0),
        (0, 0, 1),
        (0, 0, 1),
        (0, 1, 0),
        (0, 1, 0),
        (0, 0, 0),
    ]


# -- the page


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] in (["td"], ["th"]) and data.strip():
            self.cells.append(data.strip())


def test_the_page_is_one_file_with_the_picture_a_table_and_no_script() -> None:
    page = html(laptops(), title="laptops")
    reader = Reader()
    reader.feed(page)
    assert (reader.tags.count("svg"), reader.tags.count("table")) == (2, 1), "one for wide and one for narrow screens"
    assert "script" not in reader.tags
    assert reader.addresses == []
    assert set(re.findall(r"url\((.*?)\)", page)) == {
        "#turns-wait",
        "#turns-late",
        "#turns-narrow-wait",
        "#turns-narrow-late",
    }, "each has hatching of its own: that of a hidden picture is not drawn"
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "prefers-color-scheme: dark" in page
    first = reader.cells.index("prefill_first")
    assert reader.cells[first : first + 6][-3:] == ["1.02 s", "24.0 s", "24.0 s"]


def narrow_one(timelines: list[Timeline], about: str = "") -> Element:
    page = html(timelines, title="A title that is long enough for a second line", about=about)
    found = re.search(r'<div class="turns narrow">\s*(<svg.*?</svg>)', page, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[1])


@pytest.mark.parametrize("timelines", [laptops(), [crowd(100), crowd(100, "prefill_first")]], ids=["few", "many"])
def test_on_a_narrow_screen_no_line_of_text_leaves_the_picture(timelines: list[Timeline]) -> None:
    picture = narrow_one(timelines, about="Three customers ask a shop about laptops, and two of them are waiting. " * 3)
    width = float(picture.attrib["width"])
    assert width == 400
    for each in picture.iter(f"{SVG}text"):
        styles = each.attrib["class"].split()
        letter_px = 10.5 if "title" in styles else 7.5 if "policy" in styles else 6.4 if "faint" in styles else 5.4
        length = len(each.text or "") * letter_px
        left = float(each.attrib["x"]) - (length if "end" in styles else length / 2 if "middle" in styles else 0)
        assert left > -5, each.text
        assert left + length < width + 5, each.text


def test_what_came_to_nothing_at_the_right_edge_is_told_left_of_it() -> None:
    late = Life("A", 10, 0.0, 5.0, 0.25, ended_s=100.0, outcome="deadline_exceeded")
    picture = drawn([Timeline("slack", (late,))])
    (told,) = (each for each in picture.iter(f"{SVG}text") if each.text == "✕ deadline_exceeded")
    assert "end" in told.attrib["class"].split()


def test_a_late_pause_can_be_seen_however_short_it_is_beside_the_whole() -> None:
    hour = Life("A", 10, 0.0, 5.0, 0.25, token_times=(1.0, 1.3, 3600.0), ended_s=3600.0, finished=True)
    picture = drawn([Timeline("slack", (hour,))])
    boxes = [box for box in next(rows(picture)).iter(f"{SVG}rect") if "late" in box.attrib["class"]]
    assert min(float(box.attrib["width"]) for box in boxes) >= 2.5


def test_the_legend_has_an_entry_for_all_that_is_drawn_and_for_nothing_else() -> None:
    done = Life("A", 10, 0.0, 5.0, 0.25, token_times=(1.0,), ended_s=1.0, finished=True)
    refused = Life("B", 10, 0.0, 5.0, 0.25, ended_s=1.0, outcome="server_overloaded")
    assert "did not finish" not in words(drawn([Timeline("slack", (done,))]))
    assert "did not finish" in words(drawn([Timeline("slack", (done, refused))]))
    assert "is being read" not in words(drawn([Timeline("slack", (done,))]))
    assert "is being read" in words(drawn([Timeline("slack", (replace(done, started_s=0.5),))]))


def test_names_of_rows_are_in_the_colour_of_text() -> None:
    style = svg(laptops()).partition("<style>")[2].partition("</style>")[0]
    assert not re.search(r"\.(name|tiny)\{fill", style)
