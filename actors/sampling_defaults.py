"""How a request's tokens are to be chosen, where the client, the model and OpenAI's documents each have a say.

The client's word counts first, then the model's own `generation_config.json` (when it asks for sampling at all), then
OpenAI's defaults: temperature 1, top_p 1. Knows nothing of tokens or tensors.
"""

import json
from pathlib import Path

from msgspec import Struct

from protocol.messages import Sampling
from protocol.responses import ResponseCreate


class SamplingDefaults(Struct, frozen=True):
    """What holds for a request that does not say."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @classmethod
    def load(cls, folder: Path | str) -> "SamplingDefaults":
        """What the model's folder says. Of a model that is meant to be greedy (`do_sample: false`), nothing."""
        file = Path(folder) / "generation_config.json"
        given = json.loads(file.read_text("utf-8")) if file.exists() else {}
        if given.get("do_sample") is False:
            return cls()
        return cls(**{name: given[name] for name in cls.__struct_fields__ if given.get(name) is not None})


def sampling_of(create: ResponseCreate, defaults: SamplingDefaults, seed: int) -> Sampling:
    """`seed` is for a request that names none; greedy requests have no use for it, and get 0."""
    temperature = _first(create.temperature, defaults.temperature)
    given_seed = 0 if temperature == 0 else seed
    return Sampling(
        temperature=temperature,
        top_p=_first(create.top_p, defaults.top_p),
        top_k=int(_first(create.top_k, defaults.top_k)),
        min_p=_first(create.min_p, defaults.min_p),
        seed=given_seed if create.seed is None else create.seed,
        logprobs=create.logprobs,
    )


def _first(given: float | None, default: float) -> float:
    return default if given is None else given
