from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from actors.stop_text import StopText

_letters = st.text("ab#", max_size=40)
_stops = st.lists(st.text("ab#", min_size=1, max_size=4), max_size=3).map(tuple)


def _expected(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Where the first stop text is complete, by trying every prefix."""
    for length in range(1, len(text) + 1):
        starts = [length - len(stop) for stop in stops if text[:length].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


def _fed(pieces: list[str], stops: tuple[str, ...]) -> tuple[list[str], StopText]:
    stop, shown = StopText(stops), []
    for piece in pieces:
        shown.append(stop.push(piece))
        if stop.found:
            break
    return shown, stop


@given(_letters, _stops, st.lists(st.integers(0, 40)))
def test_the_end_does_not_depend_on_how_the_text_is_cut(text: str, stops: tuple[str, ...], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    shown, stop = _fed([text[a:b] for a, b in pairwise(edges)], stops)
    assert ("".join(shown) + stop.release(), stop.found) == _expected(text, stops)


@given(_letters, _stops)
def test_text_is_held_only_while_it_may_become_a_stop_text(text: str, stops: tuple[str, ...]) -> None:
    shown, stop = _fed(list(text), stops)
    if not stop.found:
        held = stop.release()
        assert "".join(shown) + held == text
        assert not held or any(one.startswith(held) for one in stops)


def test_of_two_complete_with_the_same_character_the_longer_one_counts() -> None:
    stop = StopText(("c", "abc"))
    assert stop.push("xabc") == "x"
    assert stop.found


def test_a_stop_text_within_another_ends_the_answer_first() -> None:
    stop = StopText(("abcd", "bc"))
    assert stop.push("abcd") == "a"
    assert stop.found
