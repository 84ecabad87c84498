"""Who held the device from one token to the next, of traces whose truth is known."""

from loadgen.tracing.gaps import gap_sentence
from loadgen.tracing.words import Names
from tests.loadgen.tracing.scenes import Scene, lives_of

A, B, C = "resp_aaaa1", "resp_bbbb1", "resp_cccc1"


def gap_said(scene: Scene, request: str) -> str:
    lives = lives_of(scene)
    life = lives.all[request]
    assert life.longest_gap is not None
    return gap_sentence(life, life.longest_gap, lives, Names(lives.all), "noon")


def test_a_gap_that_was_one_step_names_the_prefill_in_it() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10, connection=1)
    scene.ask(B, 0.0, tokens=412, connection=2)
    at = scene.decode(scene.prefill(A, 0.01, 10), 5, A)
    at = scene.step(at + 0.002, 0.151, (B, 0, 412, True), scene.row(A))
    scene.decode(at, 5, A)
    assert gap_said(scene, A) == (
        "The longest gap, 153 ms at noon, was a step of 151 ms, 99 % of it resp_bbbb's prefill of 412 tokens."
    )


def test_a_gap_of_several_steps_says_how_many_it_had_no_row_in() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10, connection=1)
    scene.ask(B, 0.0, tokens=800, connection=2)
    at = scene.decode(scene.prefill(A, 0.01, 10), 5, A)
    at = scene.prefill(B, at, 800, chunk=200)
    scene.decode(at, 3, A)
    text = gap_said(scene, A)
    assert "was 5 steps (4 without it), 99 % of it resp_bbbb's prefill of 800 tokens." in text


def test_a_gap_of_ordinary_decoding_counts_the_answers() -> None:
    scene = Scene()
    for number, request in enumerate((A, B, C), 1):
        scene.ask(request, 0.0, tokens=10, connection=number)
    at = 0.01
    for request in (A, B, C):
        at = scene.prefill(request, at, 10)
    scene.decode(at, 1, A, B, C, took_s=0.2)
    assert gap_said(scene, A).endswith("a step of 200 ms, 100 % of it the decoding of 3 answers, its own among them.")


def test_a_gap_while_its_reader_had_fallen_behind_is_the_readers() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10)
    at = scene.decode(scene.prefill(A, 0.01, 10), 5, A)
    scene.pause(A, at, at + 1.0)
    scene.decode(at + 1.0, 2, A)
    assert "was its reader's: it had fallen behind, and the answer was paused for 1.00 s of it" in gap_said(scene, A)


def test_a_gap_in_which_no_step_ran_blames_nobody() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10)
    at = scene.decode(scene.prefill(A, 0.01, 10), 5, A)
    scene.decode(at + 0.8, 2, A)
    assert gap_said(scene, A) == "The longest gap, 812 ms at noon, held no step for 800 ms: the device was idle."


def test_a_gap_that_a_slow_handler_made_names_it() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=10)
    at = scene.decode(scene.prefill(A, 0.01, 10), 5, A)
    scene.say("Sweep", "reaper", "tokeniser", at + 0.01, handled_s=0.7)
    scene.decode(at + 0.8, 2, A)
    assert "the device was idle and the event loop was kept for 700 ms, longest by tokeniser's Sweep." in gap_said(
        scene, A
    )


def test_a_gap_after_a_preemption_says_that_it_was_read_again() -> None:
    scene = Scene()
    scene.ask(A, 0.0, tokens=100)
    at = scene.step(0.01, 0.1, (A, 0, 100, True))
    at = scene.step(at, 0.01, (A, 100, 1, True))
    scene.step(at, 0.3, (A, 0, 102, True))
    lives = lives_of(scene)
    assert len(lives.all[A].preempted) == 1
    said = gap_said(scene, A)
    assert "was a step of 300 ms" in said
    assert said.endswith("; it was off the device for memory (preempted), and what it had read was read again.")


def test_a_preemption_that_only_its_end_tells_of_is_said_and_counted() -> None:
    """What it had read was found in the cache again, so no step shows that it was read twice."""
    scene = Scene()
    for request in (A, B):
        scene.ask(request, 0.0, tokens=100)
    at = scene.step(0.01, 0.1, (A, 0, 100, True), (B, 0, 100, True))
    at = scene.step(at, 0.01, (A, 100, 1, True), (B, 100, 1, True))
    for position in range(101, 141):
        at = scene.step(at, 0.02, (B, position, 1, True))
    at = scene.step(at, 0.01, (A, 101, 1, True), (B, 141, 1, True))
    scene.say("Ended", "scheduler", "connection 1", at, request=A, connection=1, reason="length", preemptions=1)
    life = lives_of(scene).all[A]
    assert (life.preempted, life.preemptions) == ([], 1)
    assert gap_said(scene, A).endswith("; it was off the device for memory (preempted).")


def test_two_who_share_a_gap_alike_are_both_named() -> None:
    scene = Scene()
    running = [f"resp_{number:04d}" for number in range(50)]
    for number, request in enumerate(running):
        scene.ask(request, 0.0, tokens=2, connection=number)
    scene.ask(B, 0.0, tokens=60, connection=99)
    at = 0.01
    for request in running:
        at = scene.step(at, 0.001, (request, 0, 2, True))
    at = scene.decode(at, 1, *running)
    scene.step(at, 0.4, (B, 0, 45, True), *(scene.row(request) for request in running))
    assert (
        "53 % of it the decoding of 50 answers, its own among them and 47 % resp_bbbb's prefill of 45 tokens"
        in gap_said(scene, running[0])
    )
