"""Every actor raises once on every message of its inbox: the damage is as small as the law says, and nothing is left.

The whole engine in virtual time goes through one scene in which every actor gets every message that its inbox names, as
its type says it: a new message that the scene does not bring about fails here. Then the scene is played again for each
pair, and that actor raises once on such a message: before it has done anything, or after it has done everything.
"""

import pytest

import actors.engine  # noqa: F401  brings every actor
from actors.actor import Fate
from actors.connection import Connection
from actors.gallery import Gallery
from actors.gallery_watcher import Watcher
from actors.vocabulary import Vocabulary
from tests.actors.faulty_scene import PAIRS, Fault, Pair, Scene, play


@pytest.fixture(scope="module")
def undisturbed(vocabulary: Vocabulary) -> Scene:
    return play(Fault(None), vocabulary)


def test_the_scene_brings_every_message_to_every_actor_that_takes_it(undisturbed: Scene) -> None:
    never = [str(pair) for pair in PAIRS if not undisturbed.fault.seen[pair]]
    assert never == [], "let the scene bring these about, so that they can be raised on"
    assert undisturbed.codes["worker_failed"]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_a_handler_that_raises_once_costs_no_more_than_its_fate(
    pair: Pair, after: bool, undisturbed: Scene, vocabulary: Vocabulary
) -> None:
    usual = undisturbed
    # One is raised on at its first, the other in the midst of it all.
    at = max(1, usual.fault.seen[pair] // 2) if after else 1
    scene = play(Fault(pair, after=after, at=at), vocabulary)
    assert scene.fault.raised
    if pair.actor.fate is Fate.WORKER:
        assert scene.restarts <= usual.restarts + 1
        assert 1011 not in (*scene.closed, *scene.watchers_closed), "the sockets live on"
        return
    assert scene.restarts <= usual.restarts, "the worker has nothing to do with it"
    assert scene.closed.count(1011) <= (pair.actor is Connection)
    assert 1011 not in scene.watchers_closed or pair.actor in (Gallery, Watcher)
    assert pair.actor is Connection or scene.codes["internal_error"] <= 1
