import sys

from hypothesis import given
from hypothesis import strategies as st

from actors.conversations import Conversation, Conversations, Keeping
from actors.prompt import Length
from protocol.input_items import Message


def _said(text: str, parent: Conversation | None = None) -> Conversation:
    return Conversation(parent, (Message("user", text),))


def _texts(conversation: Conversation | None) -> list[str] | None:
    return None if conversation is None else [turn.text for turn in conversation.history()]


def test_a_continued_conversation_has_all_its_turns_in_order() -> None:
    first = _said("a")
    assert _texts(_said("c", _said("b", first))) == ["a", "b", "c"]
    assert _texts(first) == ["a"]


def test_a_conversation_knows_its_length_without_being_read() -> None:
    first = Conversation(None, (Message("user", "a"), Message("user", "é")), "you")
    third = _said("😀", Conversation(first, (), None))
    assert (first.length, third.length) == (Length(3, 6), Length(4, 10))
    assert third.length == Length.of(third.history())


def test_an_answer_can_be_shortened_to_what_was_read_of_it() -> None:
    kept = Conversations()
    kept.keep("t", "a", Conversation(None, (Message("user", "q"),), "a long answer"), None, 0.0)
    kept.keep("t", "b", _said("q"), None, 0.0)
    for name in ("a", "b", "unknown"):
        kept.shorten(name, "a")
    assert _texts(kept.find("t", "a", 1, 0.0)) == ["q", "a"]
    assert _texts(kept.find("t", "b", 1, 0.0)) == ["q"]
    kept.shorten("a", "")
    assert _texts(kept.find("t", "a", 1, 0.0)) == ["q"]
    assert kept.size("t") == 2 * _said("q").size


def test_only_its_tenant_and_if_private_its_connection_find_it() -> None:
    kept = Conversations()
    kept.keep("t", "shared", _said("a"), None, 0.0)
    kept.keep("t", "private", _said("b"), 1, 0.0)
    assert _texts(kept.find("t", "shared", 2, 1.0)) == ["a"]
    assert kept.find("other", "shared", 1, 1.0) is None
    assert _texts(kept.find("t", "private", 1, 1.0)) == ["b"]
    assert kept.find("t", "private", 2, 1.0) is None


def test_a_closed_connection_takes_what_only_it_could_use() -> None:
    kept = Conversations()
    kept.keep("t", "private", _said("b"), 1, 0.0)
    kept.keep("t", "shared", _said("a"), None, 0.0)
    kept.forget_connection(1)
    kept.forget_connection(1)
    assert len(kept) == 1
    assert kept.find("t", "private", 1, 1.0) is None


def test_one_that_is_not_used_expires_even_before_it_is_swept() -> None:
    kept = Conversations(Keeping(retain_s=10.0))
    kept.keep("t", "a", _said("a"), None, 0.0)
    kept.keep("t", "b", _said("b"), None, 0.0)
    assert kept.find("t", "a", 1, 8.0) is not None
    assert kept.find("t", "b", 1, 11.0) is None
    kept.sweep(11.0)
    assert len(kept) == 1
    kept.sweep(19.0)
    assert len(kept) == 0
    assert kept.size("t") == 0


def test_past_the_number_the_least_recently_used_go_and_another_tenant_s_stay() -> None:
    kept = Conversations(Keeping(number=2))
    kept.keep("other", "z", _said("z"), None, 0.0)
    for name in ("a", "b"):
        kept.keep("t", name, _said(name), None, 0.0)
    kept.find("t", "a", 1, 1.0)
    kept.keep("t", "c", _said("c"), None, 2.0)
    assert [kept.find("t", name, 1, 3.0) is not None for name in "abc"] == [True, False, True]
    assert kept.find("other", "z", 1, 3.0) is not None


def test_one_too_big_to_keep_is_not_kept() -> None:
    kept = Conversations(Keeping(size=1_000))
    kept.keep("t", "a", _said("a" * 2_000), None, 0.0)
    assert len(kept) == 0
    assert kept.size("t") == 0


def test_a_long_conversation_is_not_counted_once_a_turn() -> None:
    kept = Conversations()
    conversation = None
    for turn in range(100):
        conversation = _said("x" * 1_000, conversation)
        kept.keep("t", str(turn), conversation, None, 0.0)
    assert kept.size("t") < 100 * (1_000 + 200)


_Step = tuple[str, int, int]
_steps = st.lists(st.tuples(st.sampled_from(["keep", "sweep", "close"]), st.integers(0, 5), st.integers(0, 5)))


@given(_steps)
def test_the_size_is_always_that_of_what_is_still_reachable(steps: list[_Step]) -> None:
    kept = Conversations(Keeping(number=4, size=3_000, retain_s=6.0))
    conversations: dict[int, Conversation] = {}
    for now, (what, name, parent) in enumerate(steps):
        if what == "keep":
            # The parent may long have been dropped: a request that continued it was under way.
            conversation = _said("x" * 100 * name, conversations.get(parent))
            conversations[name] = conversation
            kept.keep("t", str(name), conversation, name % 2 or None, float(now))
        elif what == "sweep":
            kept.sweep(float(now))
        else:
            kept.forget_connection(name)
        reachable = set()
        for one in conversations.values():
            at: Conversation | None = one if any(e is one for e in _entries(kept)) else None
            while at is not None:
                reachable.add(at)
                at = at.parent
        assert kept.size("t") == sum(one.size for one in reachable) <= 3_000


def _entries(kept: Conversations) -> list[Conversation]:
    tenant = kept._tenants.get("t")
    return [] if tenant is None else [entry.conversation for entry in tenant.entries.values()]


def test_a_very_long_conversation_can_be_dropped() -> None:
    kept = Conversations()
    conversation = None
    for turn in range(sys.getrecursionlimit() * 10):
        conversation = _said("x", conversation)
        kept.keep("t", str(turn), conversation, None, float(turn))
    del conversation
    kept.sweep(1e9)
    assert len(kept) == 0
