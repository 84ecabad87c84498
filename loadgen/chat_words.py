"""The sentences of `rota chat`: where a question stands, why an answer ended, and what it cost.

Knows words and figures. Knows no socket and no screen.
"""

from loadgen.chat_wire import FINISHED, Answer, Event, Response, Rota, Usage, harmless_line

_ENDS = {
    "stop": "End of answer",
    "stop_text": "Stop text",
    "length": "Output limit",
    "prefilled": "Prompt read",
    "deadline": "Deadline",
    "cancelled": "Stopped by the server",
}


def time_of(ms: float) -> str:
    """41 ms, 1.2 s."""
    return f"{ms:.0f} ms" if ms < 1000 else f"{ms / 1e3:.1f} s"


def standing(event: Event, reading_tokens: int | None) -> str | None:
    """Where the question stands, as this event tells it. None: as before.

    `reading_tokens` is about how long its prompt is, for a server that does not say.
    """
    if event.type == "response.queued" and event.response is not None:
        rota = event.response.rota or Rota()
        if rota.position is None:
            return "waiting"
        place = "next in the queue" if rota.position == 1 else f"number {rota.position:,} in the queue"
        return f"{place}, about {time_of(rota.estimated_wait_ms)}" if rota.estimated_wait_ms is not None else place
    if event.type == "response.in_progress":
        return _reading((event.response and event.response.rota) or Rota(), reading_tokens)
    return None


def _reading(rota: Rota, about_tokens: int | None) -> str:
    if rota.input_tokens is None:
        return "reading" if about_tokens is None else f"reading about {about_tokens:,} tokens"
    if not rota.prefilled_tokens:
        return f"reading {rota.input_tokens:,} tokens"
    return f"reading, {rota.prefilled_tokens:,} of {rota.input_tokens:,} tokens"


def why(answer: Answer) -> str:
    """Why it ended, without a full stop."""
    if answer.error is not None:
        said = answer.error.message or answer.code or "the server does not say why"
        return f"{'Refused' if answer.refused else 'Failed'}: {harmless_line(said).rstrip('.')}"
    reason = _reason(answer.last)
    if answer.stopped and reason not in FINISHED:
        return "Stopped by you"
    return _ENDS.get(reason, f"Ended: {harmless_line(reason)}")


def cost(answer: Answer) -> str:
    """What it cost, in the parts that are known. Nothing is known of what was refused."""
    usage = answer.last.usage if answer.last is not None else None
    rota = (answer.last.rota if answer.last is not None else None) or Rota()
    parts = []
    if usage is not None:
        parts += [tokens_in(usage.input_tokens, usage.cached_tokens), f"{usage.output_tokens:,} out"]
    first_ms = rota.ttft_ms
    if first_ms is None and answer.first_text_s is not None and answer.sent_s is not None:
        first_ms = (answer.first_text_s - answer.sent_s) * 1e3
    if first_ms is not None:
        parts.append(f"first token {time_of(first_ms)}")
    rate = _rate(answer, usage)
    if rate is not None:
        parts.append(f"{rate:.1f} tokens/s")
    if rota.itl_ms is not None and rota.itl_ms.p50 is not None:
        gaps = [f"gaps {time_of(rota.itl_ms.p50)}"]
        gaps += [f"{name} {time_of(ms)}" for name, ms in _tails(rota) if ms is not None]
        parts.append(", ".join(gaps))
    if rota.queue_ms is not None:
        parts.append(f"queue {time_of(rota.queue_ms)}")
    if rota.preemptions:
        parts.append("preempted once" if rota.preemptions == 1 else f"preempted {rota.preemptions} times")
    verdict = _targets(rota)
    if verdict is not None:
        parts.append(verdict)
    return " · ".join(parts)


def ending(answer: Answer) -> str:
    """The one line below an answer."""
    costs = cost(answer)
    return f"{why(answer)} · {costs}" if costs else f"{why(answer)}."


def tokens_in(tokens: int, cached: int) -> str:
    return f"{tokens:,} tokens in ({cached:,} cached)" if cached else f"{tokens:,} tokens in"


def _reason(last: Response | None) -> str:
    """The finish reason; of a server that is no rota, what its status says."""
    if last is None:
        return "cancelled"
    if last.rota is not None and last.rota.finish_reason is not None:
        return last.rota.finish_reason
    if last.incomplete_details is not None and last.incomplete_details.reason == "max_output_tokens":
        return "length"
    return "stop" if last.status == "completed" else last.status or "stop"


def _rate(answer: Answer, usage: Usage | None) -> float | None:
    """Tokens per second from the first text on. The first token is where the counting begins."""
    if usage is None or usage.output_tokens < 2 or answer.first_text_s is None or answer.ended_s is None:
        return None
    took_s = answer.ended_s - answer.first_text_s
    return (usage.output_tokens - 1) / took_s if took_s > 0 else None


def _tails(rota: Rota) -> tuple[tuple[str, float | None], ...]:
    assert rota.itl_ms is not None
    return ("99 %", rota.itl_ms.p99), ("worst", rota.itl_ms.max)


def _targets(rota: Rota) -> str | None:
    if rota.met is None or (rota.met.ttft is None and rota.met.itl is None):
        return None
    wanted = rota.targets
    missed = []
    if rota.met.ttft is False:
        missed.append("first token" + (f" ({time_of(wanted.ttft_ms)})" if wanted and wanted.ttft_ms else ""))
    if rota.met.itl is False:
        missed.append("gaps" + (f" ({time_of(wanted.itl_ms)})" if wanted and wanted.itl_ms else ""))
    return f"target missed: {' and '.join(missed)}" if missed else "targets met"
