"""What became of a scenario: how a share of those that met their targets is written."""

import pytest

from protocol.timeline import percent


@pytest.mark.parametrize(
    ("share", "digits", "text"),
    [
        (1.0, 0, "100%"),
        (598 / 600, 0, "99%"),
        (0.9999, 1, "99.9%"),
        (1.0, 1, "100.0%"),
        (0.994, 0, "99%"),
        (0.826, 0, "83%"),
        (0.0, 0, "0%"),
    ],
)
def test_a_share_is_a_hundred_per_cent_only_when_it_is_all(share: float, digits: int, text: str) -> None:
    assert percent(share, digits) == text
