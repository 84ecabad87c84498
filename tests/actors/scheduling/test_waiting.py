"""Those who hold no blocks, in order of arrival and of when their first token is due, beside a plain list."""

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from actors.scheduling.sequence import Sequence
from actors.scheduling.waiting import Waiting
from tests.actors.scheduling.views import NOW, waiting


class Line(RuleBasedStateMachine):
    """They come, come back, pause, go on and leave."""

    def __init__(self) -> None:
        super().__init__()
        self.line = Waiting()
        self.here: list[Sequence] = []
        self.gone: list[Sequence] = []
        self.came = 0

    @rule(due_in=st.sampled_from([-2.0, 0.0, 1.0, 1.0, 3.0, math.inf]), paused=st.booleans())
    def come(self, due_in: float, paused: bool) -> None:
        self.came += 1
        one = waiting(self.came, 4, due_in=due_in, paused=paused)
        self.line.add(one)
        self.here.append(one)

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """One that was preempted: it is behind none of those that came after it."""
        one = self.gone.pop(data.draw(st.integers(0, len(self.gone) - 1)))
        self.line.add(one)
        self.here.append(one)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        one = self.here.pop(data.draw(st.integers(0, len(self.here) - 1)))
        self.line.remove(one)
        self.gone.append(one)
        with pytest.raises(ValueError, match=f"{one.request} does not wait"):
            self.line.remove(one)

    @precondition(lambda self: self.here)
    @rule(data=st.data())
    def pause_or_go_on(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.here))
        one.paused = not one.paused

    @invariant()
    def both_orders_hold(self) -> None:
        by_arrival = sorted(self.here, key=lambda one: one.order)
        by_due = sorted(self.here, key=lambda one: (one.first_token_due, one.order))
        runnable = [one for one in by_due if not one.paused]
        assert len(self.line) == len(self.here)
        assert list(self.line) == by_arrival
        assert list(self.line.by_arrival()) == [one for one in by_arrival if not one.paused]
        for moment in (NOW - 2.0, NOW, NOW + 1.5):
            for most in (0, 2, 100):
                assert (
                    self.line.due_by(moment, most) == [one for one in runnable if one.first_token_due <= moment][:most]
                )
                assert (
                    self.line.due_after(moment, most)
                    == [one for one in runnable if one.first_token_due > moment][:most]
                )


Line.TestCase.settings = settings(max_examples=50, stateful_step_count=40)
TestLine = Line.TestCase


def test_one_that_never_came_cannot_leave() -> None:
    line = Waiting()
    line.add(waiting(1, 4))
    with pytest.raises(ValueError, match="r2 does not wait"):
        line.remove(waiting(2, 4))
    with pytest.raises(ValueError, match="r1 does not wait"):
        line.remove(waiting(1, 4))
