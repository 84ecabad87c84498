"""What the log says of a response when it has ended. Knows nothing of who finds it out, nor of who writes it down."""

from msgspec import Struct

from protocol.messages import FinishReason


class Figures(Struct, frozen=True):
    """What the log says of a response when it has ended. Durations in milliseconds; None: it never happened."""

    input_tokens: int
    cached_tokens: int
    output_tokens: int
    lane_ms: float
    """From receiving the request to its turn in its own lane."""
    queue_ms: float
    prefill_ms: float | None
    first_token_ms: float | None
    """From receiving the request to its first token in the engine."""
    first_text_ms: float | None
    """From receiving the request to its first text at the socket."""
    gap_p50_ms: float | None
    gap_p99_ms: float | None
    gap_max_ms: float | None
    preemptions: int
    paused_ms: float
    finish_reason: FinishReason
    delivered_chars: int
    error_code: str | None
    service_tier: str
    """Used, as are the targets."""
    ttft_target_ms: float
    ttft_met: bool | None
    """By the first text at the socket."""
    itl_target_ms: float
    itl_met: bool | None
    detached: int
    """How often its socket was lost and it was kept for its reader."""
    resumed: int
    """How often that reader came back, on whichever socket."""
