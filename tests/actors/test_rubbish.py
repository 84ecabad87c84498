"""When rubbish is looked for: never all of it in the middle of answers, and yet all of it in the end."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from actors.rubbish import MOST, NEVER, NEW, Rubbish


class Scripted:
    """A collector of objects that are only counted. `rubbish` of them would be found."""

    def __init__(self) -> None:
        self.thresholds = (700, 10, 10)
        self.young = 0
        self.aside = 50_000
        self.rubbish = 0
        self.looked_through: list[int] = []
        self._back = 0

    def come(self, objects: int, rubbish: int = 0) -> None:
        self.young += objects
        self.rubbish += rubbish

    def get_threshold(self) -> tuple[int, int, int]:
        return self.thresholds

    def set_threshold(self, young: int, middle: int, old: int, /) -> None:
        self.thresholds = (young, middle, old)

    def get_count(self) -> tuple[int, int, int]:
        return 0, 0, self.young // 7000

    def collect(self) -> int:
        self.looked_through.append(self.young)
        if self._back:
            self.young -= self.rubbish
            self.rubbish = 0
        return 0

    def freeze(self) -> None:
        self.aside += self.young
        self.young = self._back = 0

    def unfreeze(self) -> None:
        self.young += self.aside
        self._back = self.aside
        self.aside = 0

    def get_freeze_count(self) -> int:
        return self.aside


class Scene:
    def __init__(self) -> None:
        self.collector = Scripted()
        self.written = 0
        self.rubbish = Rubbish(lambda: self.written, self.collector)

    def look(self, *, writing: bool) -> list[int]:
        """How many objects were looked through, each time that it was done."""
        self.written += writing
        self.collector.looked_through.clear()
        self.rubbish.look()
        return list(self.collector.looked_through)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    with scene.rubbish:
        yield scene


def test_inside_python_looks_through_the_young_only_and_outside_as_before() -> None:
    scene = Scene()
    with scene.rubbish:
        assert scene.collector.thresholds == (700, 10, NEVER)
        assert scene.collector.aside == 50_000
    assert scene.collector.thresholds == (700, 10, 10)
    assert scene.collector.aside == 0


def test_while_something_is_written_only_what_has_come_is_looked_through(scene: Scene) -> None:
    for _ in range(60):
        scene.collector.come(28_000)
        assert scene.look(writing=True) == [28_000]
    scene.collector.come(NEW // 2)
    assert scene.look(writing=True) == [], "so few are left for the next time"


def test_when_nothing_is_written_all_is_once_there_is_a_quarter_more(scene: Scene) -> None:
    scene.look(writing=True)
    scene.collector.come(10_000 + NEW)
    assert scene.look(writing=True) == [10_000 + NEW]
    assert scene.look(writing=False) == [80_000]
    assert scene.look(writing=False) == [], "and not again"
    scene.collector.come(18_000 + NEW // 2)
    assert scene.look(writing=False)[-1:] == [108_000]


def test_however_much_is_written_rubbish_is_found_before_there_are_too_many(scene: Scene) -> None:
    most = 0
    for _ in range(500):
        scene.collector.come(28_000, rubbish=28_000)
        scene.look(writing=True)
        most = max(most, scene.collector.aside)
    assert MOST <= most < 1.1 * MOST
    scene.look(writing=False)
    assert scene.collector.rubbish == 0


def test_those_that_went_by_themselves_are_no_reason(scene: Scene) -> None:
    for _ in range(1000):
        scene.collector.come(28_000)
        assert scene.look(writing=True) == [28_000]
        scene.collector.aside -= 28_000
    assert scene.look(writing=False) == []


def test_a_crowd_that_went_is_no_measure_for_the_next(scene: Scene) -> None:
    scene.look(writing=True)
    scene.collector.come(1_000_000)
    scene.look(writing=True)
    assert scene.look(writing=False) == [1_050_000]
    scene.collector.aside = 50_000
    scene.collector.come(300_000)
    assert scene.look(writing=False) == [300_000], "they are no more than there were, but are counted"
    scene.collector.come(100_000)
    assert scene.look(writing=False) == [100_000, 450_000]


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class Circle:
    def __init__(self) -> None:
        self.self = self


@pytest.mark.usefixtures("collector")
def test_pythons_own_collector_does_so() -> None:
    written = iter([0, 1, 2, 2])
    with Rubbish(lambda: next(written)) as rubbish:
        fulls = gc.get_stats()[2]["collections"]
        here = [[number] for number in range(300_000)]
        assert gc.get_stats()[2]["collections"] == fulls, "by itself it would have looked by now"
        circle = Circle()
        here_too = [[number] for number in range(100_000)]
        rubbish.look()
        assert gc.get_freeze_count() > 400_000
        circle.here = here  # type: ignore[attr-defined]
        seen = weakref.ref(circle)
        del circle, here
        rubbish.look()
        assert seen() is not None, "it was set aside, and something is written"
        rubbish.look()
        assert seen() is None
        assert len(here_too) == 100_000
    assert gc.get_freeze_count() == 0
