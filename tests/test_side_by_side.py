"""Whoever is alone has waited for those who were there, and keeps out those who come later."""

import tempfile
import threading
from pathlib import Path

import pytest

from tests.side_by_side import place

SOON_S = 0.3
"""Whoever may come in has come by then; that nobody does cannot be waited for."""


def test_one_who_is_alone_waits_for_those_inside_and_those_who_come_later_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    came = {name: threading.Event() for name in ("alone", "later")}
    leave = threading.Event()

    def come(name: str) -> None:
        with place(alone=name == "alone"):
            came[name].set()
            assert leave.wait(10)

    threads = [threading.Thread(target=come, args=(name,)) for name in came]
    with place(alone=False), place(alone=False):
        threads[0].start()
        assert not came["alone"].wait(SOON_S), "it came in beside others"
    assert came["alone"].wait(10)
    threads[1].start()
    assert not came["later"].wait(SOON_S), "another came in beside it"
    leave.set()
    assert came["later"].wait(10)
    for thread in threads:
        thread.join(10)
