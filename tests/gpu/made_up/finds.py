"""Finds one thing that is as wanted and two that are not."""

from collections.abc import Iterator

from tests.gpu.findings import Conditions, Finding


def measure(conditions: Conditions) -> Iterator[Finding]:
    yield Finding("enough", 0.8, "of copy", least=0.75)
    yield Finding("too much", 2.0, "of norm", most=1.0, note="a note")
    yield Finding("too slow", 0.1, "of copy", least=0.75, timed=True)
