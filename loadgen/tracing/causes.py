"""Why the first text of a request came when it did: its time in parts that add up, and the one sentence about it.

Knows what each stretch of a request's life is called, and who is to be blamed for a wait: whoever held the device in
it. Knows no terminal and no files.
"""

from msgspec import Struct, structs

from loadgen.comparison import span
from loadgen.tracing.device import Held
from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.words import Names, count, listed
from protocol.kinds import RequestId

CLOSE = 0.75
"""A second cause of at least so much of the first is named beside it."""
NAMED = 0.6
"""A single request is named for a wait behind several when it held so much of it."""
_LEAST_WAIT_S = 0.001
"""In a lane: less is the frame's own way, and nobody is in it."""
_WORTH_SAYING = 0.01
"""Of a prefill, what was given to others."""


class Parts(Struct, frozen=True):
    """Seconds from receiving a request to its first text (or to where it stood when that never came), which add up."""

    lane_s: float = 0.0
    """On its socket: until the frame was read, and until its turn in its lane had come."""
    tokeniser_s: float = 0.0
    waiting_room_s: float = 0.0
    """At admission."""
    queued_s: float = 0.0
    """At the scheduler, before its first step."""
    own_prefill_s: float = 0.0
    """The device's, for its own chunks."""
    shared_s: float = 0.0
    """The device's, for others in the steps that held its chunks."""
    without_s: float = 0.0
    """The device's, for steps between its chunks in which it had no part."""
    idle_s: float = 0.0
    """Between its chunks, while no step ran."""
    restarting_s: float = 0.0
    """There was no worker: loading, or lost and being started again."""
    delivery_s: float = 0.0
    """From its first token to its first text at the socket."""

    @property
    def whole_s(self) -> float:
        return float(sum(structs.astuple(self)))


class Account(Struct, frozen=True):
    """Where the time went, and who had the device meanwhile."""

    request: RequestId
    until: str
    """To what the parts lead, in words that follow "2.4 s"."""
    parts: Parts
    whole_s: float
    queue: Held
    """While it waited for its first step."""
    phase: Held
    """From its first step to its first token."""
    behind: RequestId | None = None
    """Whose answer its lane was waiting for."""


def account(life: Life, lives: Lives) -> Account:
    """Take its time to the first text apart; of one that has none, until it ended, or until the trace does."""
    ends_at, until = _end(life, lives)
    points = _points(life, ends_at)
    began, asked, tokenised, let_in, started, first_token, text = points
    device = lives.device
    room = device.held(tokenised, let_in, life.request)
    waiting = device.held(let_in, started, life.request)
    phase = device.held(started, first_token, life.request)
    parts = Parts(
        lane_s=asked - began,
        tokeniser_s=tokenised - asked,
        waiting_room_s=(let_in - tokenised) - room.down_s,
        queued_s=(started - let_in) - waiting.down_s,
        own_prefill_s=phase.own_s,
        shared_s=phase.beside_s,
        without_s=phase.without_s,
        idle_s=phase.idle_s,
        restarting_s=room.down_s + waiting.down_s + phase.down_s,
        delivery_s=text - first_token,
    )
    room.add(waiting)
    return Account(
        request=life.request,
        until=until,
        parts=parts,
        whole_s=text - began,
        queue=room,
        phase=phase,
        behind=_behind(life, lives, began, asked),
    )


def _end(life: Life, lives: Lives) -> tuple[float, str]:
    if life.first_text_at is not None:
        return life.first_text_at, "to the first token"
    over = life.over_at
    if over is None:
        return max(lives.last_at, life.began_at), "until the trace ends"
    if life.reason == "prefilled":
        return over, "to the end of its prefill"
    words = {"cancelled": "until it was cancelled", "failed": "until it failed", "deadline": "until its deadline"}
    word = "until it was refused" if life.refused_at is not None else words.get(life.reason or "", "until it ended")
    return over, word


def _points(life: Life, ends_at: float) -> list[float]:
    """When it was received, asked for, tokenised, let in, started, had its first token and its first text.

    What it never came to ends with it; what the trace does not show, though it shows what followed, took no time.
    """
    known = [
        life.began_at,
        life.asked_at,
        life.tokenised_at,
        life.let_in_at,
        life.first_step_at,
        life.first_token_at,
        life.first_text_at,
    ]
    last = max(index for index, at in enumerate(known) if at is not None)
    points: list[float] = []
    for index, at in enumerate(known):
        before = points[-1] if points else life.began_at
        reached = ends_at if index > last else before if at is None else at
        points.append(min(max(before, reached), max(ends_at, before)))
    return points


def _behind(life: Life, lives: Lives, began: float, asked: float) -> RequestId | None:
    """Who was being answered on its socket while it waited in its lane: the one that ended last before its turn."""
    found: tuple[float, RequestId] | None = None
    if asked - began < _LEAST_WAIT_S:
        return None
    for other in lives.beside(life):
        over = other.over_at
        if other is life or over is None or not began < over <= asked + 1e-3 or other.began_at > asked:
            continue
        if found is None or over > found[0]:
            found = over, other.request
    return None if found is None else found[1]


# --- the sentence -----------------------------------------------------------------------------------------------------


class Cause(Struct, frozen=True):
    """One of the things that took the time, and how it is said after "1.9 s of 2.4 s to the first token was"."""

    kind: str
    seconds: float
    words: str


def causes(life: Life, lives: Lives, names: Names, told: Account | None = None) -> list[Cause]:
    """What took its time, the most first."""
    found = told or account(life, lives)
    parts, queue, phase = found.parts, found.queue, found.phase
    behind = f" behind {names.of(found.behind)}'s answer" if found.behind else ""
    prompt = "" if life.input_tokens is None else f" ({count(life.input_tokens, 'token')})"
    down = "being started again" if lives.device.restarts else "still loading"
    all_of_them = [
        Cause("lane", parts.lane_s, f"waiting in its lane on the socket{behind}"),
        Cause("tokeniser", parts.tokeniser_s, f"the tokeniser's, for its prompt{prompt}"),
        _prefills(queue, phase, lives, names),
        _decodes(queue, phase),
        Cause("own", parts.own_prefill_s, ""),
        Cause("idle", queue.idle_s + phase.idle_s, _idle(queue, phase, lives)),
        Cause("worker", parts.restarting_s, f"waiting for the worker, which was {down}"),
        Cause("delivery", parts.delivery_s, "between its first token and its text at the socket"),
    ]
    all_of_them.sort(key=lambda cause: -cause.seconds)
    if all_of_them[0].kind == "own":
        # All of its prefill is told as one, so what ran beside it is no second cause.
        phase_s = parts.own_prefill_s + parts.shared_s + parts.without_s + parts.idle_s
        all_of_them[0] = Cause("own", phase_s, _own(life, found, lives, names))
        alone = Held()
        rest = [
            _prefills(queue, alone, lives, names),
            _decodes(queue, alone),
            Cause("idle", queue.idle_s, _idle(queue, alone, lives)),
        ]
        all_of_them[1:] = [each for each in all_of_them[1:] if each.kind not in ("prefills", "decodes", "idle")] + rest
        all_of_them[1:] = sorted(all_of_them[1:], key=lambda cause: -cause.seconds)
    return [
        Cause("own", cause.seconds, _own(life, found, lives, names)) if not cause.words else cause
        for cause in all_of_them
        if cause.seconds > 0
    ]


def sentence(life: Life, lives: Lives, names: Names, told: Account | None = None) -> str:
    """Where the time to its first text went."""
    if not life.whole:
        return "The trace does not hold its beginning, so where the time to its first token went is not known."
    found = told or account(life, lives)
    if life.refused_at is not None and life.first_step_at is None and found.whole_s < 0.05:
        return f"It was refused after {span(found.whole_s)}: {life.ended_reason or 'no reason is told'}."
    said = causes(life, lives, names, found)
    if not said:
        return f"Nothing took time: {span(found.whole_s)} {found.until}."
    first = said[0]
    text = f"{span(first.seconds)} of {span(found.whole_s)} {found.until} was {first.words}"
    if len(said) > 1 and said[1].seconds >= CLOSE * first.seconds:
        text += f"{';' if ', ' in first.words else ','} and {span(said[1].seconds)} was {said[1].words}"
    return f"{text}."


def _prefills(queue: Held, phase: Held, lives: Lives, names: Names) -> Cause:
    """The prefill of others: before its first step it queued behind them, afterwards they ran beside its own."""
    total = _sum(queue.prefill, phase.prefill)
    if not total:
        return Cause("prefills", 0.0, "")
    ordered = sorted(total, key=lambda request: -total[request])
    all_s = sum(total.values())
    named = ordered[: 1 if total[ordered[0]] >= NAMED * all_s else 2]
    if len(ordered) > 2 and sum(total[each] for each in named) < NAMED * all_s:
        longest = names.of(ordered[0])
        who = f"the prefills of {count(len(ordered), 'other')} ({longest}'s the longest, {span(total[ordered[0]])})"
        seconds, named = all_s, ordered
    else:
        who = listed([f"{names.of(each)}'s prefill{_tokens(each, lives, (queue, phase))}" for each in named])
        seconds = sum(total[each] for each in named)
    return Cause("prefills", seconds, _behind_or_beside(who, queue.prefill, phase.prefill, named))


def _decodes(queue: Held, phase: Held) -> Cause:
    total = _sum(queue.decode, phase.decode)
    if not total:
        return Cause("decodes", 0.0, "")
    who = f"the decoding of {count(len(total), 'answer')}"
    return Cause("decodes", sum(total.values()), _behind_or_beside(who, queue.decode, phase.decode, list(total)))


def _behind_or_beside(
    who: str, queue: dict[RequestId, float], phase: dict[RequestId, float], of: list[RequestId]
) -> str:
    before = sum(queue.get(each, 0.0) for each in of)
    beside = sum(phase.get(each, 0.0) for each in of)
    if before >= 0.8 * (before + beside):
        return f"queueing behind {who}"
    if beside >= 0.8 * (before + beside):
        return f"{who}, between and beside the chunks of its own prefill"
    return f"{who}: {span(before)} before its first step and {span(beside)} between and beside its chunks"


def _idle(queue: Held, phase: Held, lives: Lives) -> str:
    idle_s = queue.idle_s + phase.idle_s
    why = f"the device was idle{kept_busy(queue.idle + phase.idle, idle_s, lives)}"
    if queue.idle_s >= phase.idle_s:
        return f"waiting for its first step while {why}"
    return f"between the steps of its prefill, while {why}"


def kept_busy(idle: list[tuple[float, float]], idle_s: float, lives: Lives) -> str:
    """Whether it was idle because the event loop was held up, and by whom."""
    slow_s, whose = lives.slow_in(idle)
    return f" and the event loop was kept for {span(slow_s)}, longest by {whose}" if slow_s >= 0.5 * idle_s > 0 else ""


def _own(life: Life, found: Account, lives: Lives, names: Names) -> str:
    chunks = life.prefill_steps()
    tokens = sum(each[2] for each in chunks)
    text = f"its own prefill: {count(tokens, 'token')} in {count(len(chunks), 'chunk')}"
    if life.preempted:
        text += ", some of them read again after it had been preempted"
    phase = found.phase
    given: list[str] = []
    if phase.span_s <= 0:
        return text
    if (decode_s := sum(phase.decode.values())) >= _WORTH_SAYING * phase.span_s:
        given.append(f"{span(decode_s)} of it given to {count(len(phase.decode), 'answer')} that ran beside it")
    if (prefill_s := sum(phase.prefill.values())) >= _WORTH_SAYING * phase.span_s:
        most = max(phase.prefill, key=lambda each: phase.prefill[each])
        who = f"{names.of(most)}'s prefill" if len(phase.prefill) == 1 else f"{len(phase.prefill)} other prefills"
        given.append(f"{span(prefill_s)}{'' if given else ' of it'} to {who}")
    if phase.idle_s > 0.25 * phase.span_s:
        given.append(f"{span(phase.idle_s)}{'' if given else ' of it'} while the device was idle")
    return f"{text}, {listed(given)}" if given else text


def _tokens(request: RequestId, lives: Lives, held: tuple[Held, ...]) -> str:
    """How long that prefill was: its prompt as far as it was not in the cache, else what is seen of it here."""
    life = lives.all.get(request)
    if life is not None and life.input_tokens:
        return f" ({count(life.input_tokens - (life.cached_tokens or 0), 'token')})"
    seen = sum(chunk[2] for one in held for step in one.steps if (chunk := step.chunk_of(request)) is not None)
    return f" ({count(seen, 'token')})" if seen else ""


def _sum(*of: dict[RequestId, float]) -> dict[RequestId, float]:
    total: dict[RequestId, float] = {}
    for each in of:
        for request, seconds in each.items():
            total[request] = total.get(request, 0.0) + seconds
    return total
