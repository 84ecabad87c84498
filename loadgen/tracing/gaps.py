"""Why a token came so long after the one before it: who held the device meanwhile, or what else kept it.

Knows one gap of one request. Which gaps are worth it is for those to say who show them.
"""

from loadgen.comparison import span
from loadgen.tracing.causes import CLOSE, NAMED, kept_busy
from loadgen.tracing.device import Held
from loadgen.tracing.life import Life
from loadgen.tracing.lives import Lives
from loadgen.tracing.words import Names, count, share


def gap_sentence(
    life: Life, gap: tuple[float, float], lives: Lives, names: Names, at: str, what: str = "The longest gap"
) -> str:
    """Who held the device from one token of it to the next. `at`: when the gap began, in words."""
    return f"{what}, {span(gap[1] - gap[0])} at {at}, {gap_cause(life, gap, lives, names)}."


def gap_cause(life: Life, gap: tuple[float, float], lives: Lives, names: Names) -> str:
    began, ended = gap
    device = lives.device
    length_s = ended - began
    held = device.held(began, ended, life.request)
    paused_s = sum(max(0.0, min(to or ended, ended) - max(since, began)) for since, to in life.pauses)
    if paused_s >= 0.5 * length_s:
        return f"was its reader's: it had fallen behind, and the answer was paused for {span(paused_s)} of it"
    busy = [(step, overlap) for step, overlap in device.between(began, ended)]
    if held.down_s >= 0.5 * length_s:
        return f"was the worker's, which was away for {span(held.down_s)} of it"
    busy_s = sum(overlap for _, overlap in busy)
    absent = sum(1 for each, _ in busy if each.chunk_of(life.request) is None)
    off = ""
    if any(began <= at <= ended for at in life.preempted):
        off = "; it was off the device for memory (preempted), and what it had read was read again"
    elif life.preemptions > len(life.preempted) and absent > 0.5 * len(busy):
        off = "; it was off the device for memory (preempted)"
    if busy_s < 0.5 * length_s:
        idle_s = length_s - busy_s
        kept = kept_busy(held.idle, idle_s, lives)
        return f"held no step for {span(idle_s)}: the device was idle{kept}{off}"
    step, overlap = max(busy, key=lambda each: each[1])
    if overlap >= 0.6 * length_s:
        one = device.held(step.began, step.ended, life.request)
        holder = _holder(life, one, names, step.took_s)
        return f"was a step of {span(step.took_s)}, {holder}{off}"
    without = f" ({absent} without it)" if absent else ""
    return f"was {count(len(busy), 'step')}{without}, {_holder(life, held, names, busy_s)}{off}"


def _holder(life: Life, held: Held, names: Names, busy_s: float) -> str:
    """`93 % of it resp_B's prefill of 412 tokens`, and who comes close to that."""
    said: list[tuple[float, str]] = []
    if held.prefill:
        most = max(held.prefill, key=lambda each: held.prefill[each])
        alone = held.prefill[most] >= NAMED * sum(held.prefill.values())
        of = [most] if alone else list(held.prefill)
        tokens = sum(chunk[2] for step in held.steps for chunk in step.chunks if chunk[0] in of and chunk[2] > 1)
        who = f"{names.of(most)}'s prefill of" if alone else f"{len(of)} prefills of"
        said.append((sum(held.prefill[each] for each in of), f"{who} {count(tokens, 'token')}"))
    own = [chunk for step in held.steps if (chunk := step.chunk_of(life.request)) is not None]
    read_again = [chunk for chunk in own if chunk[2] > 1]
    if read_again:
        said.append((held.own_s, f"its own prefill of {count(sum(each[2] for each in read_again), 'token')}"))
    decode_s = sum(held.decode.values()) + (0.0 if read_again else held.own_s)
    rows = len(held.decode) + (1 if own and not read_again else 0)
    if rows:
        its = ", its own among them" if own and not read_again and held.decode else ""
        who = f"the decoding of {count(rows, 'answer')}{its}" if held.decode else "the decoding of this answer alone"
        said.append((decode_s, who))
    said.sort(key=lambda each: -each[0])
    if not said or busy_s <= 0:
        return "of which the trace does not say what was in it"
    text = f"{share(said[0][0] / busy_s)} of it {said[0][1]}"
    if len(said) > 1 and said[1][0] >= CLOSE * said[0][0]:
        text += f" and {share(said[1][0] / busy_s)} {said[1][1]}"
    return text
