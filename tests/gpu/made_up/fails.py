"""Finds something, and fails then."""

from collections.abc import Iterator

from tests.gpu.findings import Conditions, Finding


def measure(conditions: Conditions) -> Iterator[Finding]:
    yield Finding("found before it failed", 3.0, "things", most=4.0)
    raise RuntimeError("the device is on fire")
