"""Long prompts are tokenised elsewhere and hold up nobody; and a cancel ends a request wherever it is."""

from collections.abc import Sequence

from actors.scheduling.allowances import Allowances
from protocol.input_items import Message
from protocol.messages import (
    Cancel,
    CloseStream,
    Ended,
    Enqueue,
    Forget,
    Remember,
    Stats,
)
from tests.actors.tokeniser_stage import LONG, Stage, ask, chat


async def test_a_long_prompt_does_not_hold_up_a_short_one() -> None:
    stage = Stage()
    await stage.send(ask("long", input=LONG), ask("short"))
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["short"]
    stage.work[0]()
    await stage.send()
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["short", "long"]
    assert stage.prompt() == chat(("user", LONG))


async def test_only_so_many_long_prompts_wait() -> None:
    stage = Stage(most_offloaded=1)
    await stage.send(ask("a", input=LONG), ask("b", input=LONG))
    assert stage.refusal() == "server_overloaded"
    stage.work[0]()
    await stage.send(ask("c", input=LONG))
    assert len(stage.work) == 2


async def test_no_key_takes_all_places_for_long_prompts_from_the_others() -> None:
    stage = Stage(most_offloaded=8)
    await stage.send(*(ask(f"a{n}", tenant="anna", input=LONG) for n in range(20)))
    assert len(stage.work) == 4
    assert stage.refusal() == "server_overloaded"
    await stage.send(*(ask(f"b{n}", connection=2, tenant="bert", input=LONG) for n in range(20)))
    assert len(stage.work) == 6
    await stage.send(ask("c", connection=2, tenant="cleo", input=LONG))
    assert len(stage.work) == 7


async def test_what_a_key_asks_beyond_its_minute_is_not_tokenised_and_the_others_go_on() -> None:
    allowances = Allowances({"anna": 2})
    stage = Stage(allowances=allowances)
    await stage.send(*(ask(name, tenant="anna", input=LONG) for name in "abc"))
    assert len(stage.work) == 2, "two are being read, and that is all it may ask"
    assert stage.refusal() == "rate_limit_exceeded"
    await stage.send(ask("other", connection=2, tenant="bert", input=LONG))
    assert len(stage.work) == 3
    assert stage.refusal(2) is None
    for work in stage.work:
        work()
    await stage.send()
    for _ in range(2):
        allowances.count("anna", stage.now)  # as admission does
    await stage.send(ask("d", tenant="anna", input=LONG), ask("short", tenant="anna"))
    assert len(stage.work) == 3
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["a", "b", "other"]
    stage.now += 60.0
    await stage.send(ask("e", tenant="anna", input=LONG))
    assert len(stage.work) == 4


async def test_many_short_messages_are_a_long_prompt() -> None:
    stage = Stage()
    await stage.ask("few", input=(Message("user", ""),) * 30)
    await stage.ask("many", input=(Message("user", ""),) * 35)
    await stage.answered("half", "", input=(Message("user", ""),) * 20)
    await stage.ask("both", input=(Message("user", ""),) * 20, previous_response_id="half")
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["few", "half"]
    assert len(stage.work) == 2


async def test_a_long_prompt_that_nobody_wants_any_more_is_not_tokenised() -> None:
    class Counting:
        longest_token = None
        asked = 0

        def prompt(self, messages: Sequence[Message]) -> list[int]:
            self.asked += 1
            return [1, 2, 3]

    prompts = Counting()
    stage = Stage(prompts, most_offloaded=6)
    for request in ("a", "b", "c"):
        await stage.ask(request, input=LONG)
    await stage.send(Cancel("a", 1.0), Cancel("c", 1.0, keep=""))
    for work in stage.work:
        work()
    await stage.send()
    assert prompts.asked == 1
    assert [enqueue.request for enqueue in stage.admission.of(Enqueue)] == ["b"]
    # Their places are free again, and what was cancelled can be continued.
    await stage.ask("d", input=LONG, previous_response_id="c")
    assert stage.refusal() is None


async def test_a_cancel_while_its_prompt_is_tokenised_ends_it_here() -> None:
    stage = Stage()
    await stage.ask(input=LONG)
    await stage.send(Cancel("r", 1.0))
    assert stage.readers[0].messages == [Ended("r", "cancelled", Stats())]
    stage.work[0]()
    await stage.send()
    assert stage.admission.messages == stage.detokeniser.messages == []
    assert len(stage.readers[0].messages) == 1


async def test_a_cancel_that_overtakes_its_request_is_enough() -> None:
    stage = Stage()
    await stage.send(ask(), Cancel("r", 1.0), Cancel("r", 2.0))
    assert stage.readers[0].messages == [Ended("r", "cancelled", Stats())]
    assert stage.admission.messages == []


async def test_a_cancel_follows_a_request_that_was_passed_on() -> None:
    stage = Stage()
    await stage.ask()
    await stage.send(Cancel("r", 1.0))
    assert stage.admission.of(Cancel) == [Cancel("r", 1.0)]
    assert stage.detokeniser.of(CloseStream) == [CloseStream("r")]
    assert stage.readers[0].messages == []


async def test_a_cancelled_answer_can_be_continued_from_what_was_read_of_it() -> None:
    stage = Stage()
    await stage.ask("r", input="Count.")
    await stage.send(Cancel("r", 1.0, keep="One, two"))
    await stage.send(Remember("r", "One, two, three"))
    await stage.ask("s", previous_response_id="r", input="Go on.")
    assert stage.prompt() == chat(("user", "Count."), ("assistant", "One, two"), ("user", "Go on."))


async def test_what_was_read_counts_even_if_the_whole_answer_was_remembered_first() -> None:
    stage = Stage()
    await stage.ask("r", input="Count.")
    await stage.send(Remember("r", "One, two, three"))
    await stage.send(Cancel("r", 1.0, keep="One"))
    await stage.ask("s", previous_response_id="r", input="Go on.")
    assert stage.prompt() == chat(("user", "Count."), ("assistant", "One"), ("user", "Go on."))


async def test_a_cancel_by_a_reader_who_has_gone_keeps_nothing() -> None:
    stage = Stage()
    await stage.ask("r")
    await stage.send(Cancel("r", 1.0))
    await stage.send(Forget("r"))
    await stage.ask("s", previous_response_id="r")
    assert stage.refusal() == "previous_response_not_found"
