"""Requests as they are told to whoever watches: from a sequence or a guest to a row.

Plain code. Knows what is shown of each, and nothing of who looks.
"""

import math
from collections.abc import Iterable
from itertools import islice

from actors.scheduling.guests import Guest
from actors.scheduling.sequence import LONGEST_TARGET_S, Sequence
from protocol.messages import Enqueue, SeenRequest

MOST_SEEN = 512
"""Of those who wait to be let in: more cannot be drawn."""


def seen_sequence(sequence: Sequence, now: float) -> SeenRequest:
    stats = sequence.stats(now)
    return SeenRequest(
        sequence.request,
        sequence.tenant,
        sequence.state.value,
        sequence.received_at,
        sequence.prompt_tokens,
        sequence.max_output_tokens,
        _target(sequence.first_token_due - sequence.received_at),
        _target(sequence.itl_target_s),
        sequence.prompt_tokens_read,
        stats.cached_tokens,
        stats.output_tokens,
        sequence.started_at,
        stats.first_token_at,
        sequence.paused,
        stats.preemptions,
        len(sequence.table.blocks),
    )


def seen_guests(guests: Iterable[Guest], *, can_tell: bool) -> tuple[SeenRequest, ...]:
    """The first of them. `can_tell`: there is something to estimate a wait from."""
    return tuple(_seen_guest(guest, can_tell) for guest in islice(guests, MOST_SEEN))


def seen_enqueue(enqueue: Enqueue) -> SeenRequest:
    """One that has just come."""
    return SeenRequest(
        enqueue.request,
        enqueue.tenant,
        "queued",
        enqueue.received_at,
        len(enqueue.tokens) // 4,
        enqueue.max_output_tokens,
        _target(enqueue.ttft_target_s),
        _target(enqueue.itl_target_s),
    )


def _seen_guest(guest: Guest, can_tell: bool) -> SeenRequest:
    enqueue = guest.enqueue
    position, wait_s = guest.told or (0, 0.0)
    return SeenRequest(
        enqueue.request,
        enqueue.tenant,
        "queued",
        enqueue.received_at,
        guest.tokens,
        enqueue.max_output_tokens,
        _target(enqueue.ttft_target_s),
        _target(enqueue.itl_target_s),
        position=position or None,
        estimated_wait_s=wait_s if can_tell and position else None,
    )


def _target(seconds: float) -> float | None:
    """None: there is no target, or one so long that the scheduler has its own."""
    rounded = round(seconds, 6) if math.isfinite(seconds) else LONGEST_TARGET_S
    return rounded if rounded < LONGEST_TARGET_S else None
