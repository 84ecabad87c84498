"""The policies by name, as `--policy` and `rota simulate` know them."""

from typing import Literal, get_args

from actors.scheduling.policy import DecodeFirst, FixedChunk, Policy, PrefillFirst
from actors.scheduling.slack import Slack

PolicyName = Literal["slack", "fixed_chunk", "decode_first", "prefill_first"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def policy_named(name: PolicyName, chunk_tokens: int) -> Policy:
    """A policy with a memory of its own. `chunk_tokens`: most prefill tokens in a step of those that cut chunks."""
    match name:
        case "slack":
            return Slack(chunk_tokens)
        case "fixed_chunk":
            return FixedChunk(chunk_tokens)
        case "decode_first":
            return DecodeFirst()
        case "prefill_first":
            return PrefillFirst()
