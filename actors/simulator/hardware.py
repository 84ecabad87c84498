"""Hardware to simulate: what a step takes, how many KV blocks there are, and how rota would be set up on it.

Knows profiles, their TOML files and the two that come with rota. Knows no requests and no policy.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from actors.scheduling.costs import Costs, pairs
from actors.simulator import roofline
from protocol.messages import Measured, Work

Seconds = Annotated[float, Meta(ge=0, le=3600)]
Count = Annotated[int, Meta(ge=1, le=1 << 30)]
MOST_BLOCKS = 1 << 22
"""67 million tokens in blocks of 16, several times what eight GPUs hold. A pool has a list entry for each block."""


class HardwareError(Exception):
    """A profile that cannot be used. The message is one sentence for the person who named it."""


class StepCosts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds for each part of a step; a step takes their sum (`scheduling/costs.py`)."""

    base_s: Seconds
    """Any step at all."""
    prefill_token_s: Seconds
    prefill_pair_s: Seconds
    """A query-key pair of a prefill chunk."""
    prefill_context_s: Seconds
    """A cached token that a prefill chunk reads."""
    decode_row_s: Seconds
    decode_context_s: Seconds
    """A cached token that a decode row reads."""


class Hardware(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A device with a model on it, and the settings it would be served with."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    about: str
    """Where the numbers come from, in a sentence."""
    step: StepCosts
    overhead_s: Seconds = 0.0
    """What passes between two steps, beside the time on the device: planning, messages, the pipe."""
    spread: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Sigma of the log-normal noise on step times; 0: every step takes what it costs."""
    blocks: Count
    block_size: Annotated[int, Meta(ge=1, le=1024)] = 16
    max_context: Count
    max_step_tokens: Count = 1024
    max_running: Count = 64
    chunk_tokens: Count = 512

    @property
    def coefficients(self) -> tuple[float, ...]:
        """In the order of `Costs`."""
        return msgspec.structs.astuple(self.step)

    def calibration(self) -> tuple[Measured, ...]:
        """What a worker on this hardware would tell of itself at its start, with a perfect clock."""
        costs = Costs(coefficients=self.coefficients)
        return tuple(Measured(work, costs.step_s(work)) for work in self._steps())

    def _steps(self) -> Sequence[Work]:
        """The kinds of steps that `kernels/calibration.py` runs."""
        long = min(4096, self.max_context // 2)

        def prefill(tokens: int, start: int) -> Work:
            tokens = min(tokens, self.max_step_tokens)
            return Work(tokens, pairs(start, tokens), start, 0, 0)

        def decode(rows: int, mean: int) -> Work:
            rows = min(rows, self.max_running, self.max_step_tokens)
            return Work(0, 0, 0, rows, rows * min(mean, long))

        kinds = (
            decode(1, 16),
            prefill(256, 0),
            decode(128, 16),
            prefill(128, long),
            decode(8, 1024),
            prefill(16, long),
            prefill(16, 0),
            decode(1, long),
            decode(8, 16),
            decode(128, 128),
        )
        return tuple(dict.fromkeys(kinds))


def named(name: str) -> Hardware:
    """A profile that comes with rota, or the one in a TOML file. Raises HardwareError."""
    for profile in BUILT_IN:
        if profile.name == name:
            return profile
    path = Path(name)
    if path.suffix or len(path.parts) > 1:
        return _read(path)
    names = " and ".join(profile.name for profile in BUILT_IN)
    raise HardwareError(f"There is no hardware {name!r}: rota comes with {names}; a file of your own ends in .toml.")


def _read(path: Path) -> Hardware:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise HardwareError(f"The hardware profile {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise HardwareError(f"The hardware profile {path} is not TOML: {error}.") from None
    try:
        hardware = msgspec.convert({"name": path.stem, **table}, Hardware)
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$")
        what = what.replace("Object contains unknown field", "there is no key")
        what = what.replace("Object missing required field", "it lacks the key")
        raise HardwareError(f"{path}: {key.strip('.`') or 'the file'}: {what}.") from None
    if hardware.blocks > MOST_BLOCKS:
        raise HardwareError(
            f"{path}: {hardware.blocks:,} blocks are more than can be simulated; the most is {MOST_BLOCKS:,}."
        )
    room = hardware.blocks * hardware.block_size
    if room < hardware.max_context:
        raise HardwareError(
            f"{path}: {hardware.blocks:,} blocks of {hardware.block_size} hold {room:,} tokens, and max_context is "
            f"{hardware.max_context:,}: one request of the full context has to fit."
        )
    return hardware


def as_toml(hardware: Hardware) -> str:
    """A file that `named` reads as `hardware`."""
    plain = msgspec.to_builtins(hardware)
    step = plain.pop("step")
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in plain.items()]
    return "\n".join([*lines, "", "[step]", *(f"{key} = {value!r}" for key, value in step.items()), ""])


def _h200() -> Hardware:
    """A model of 8 billion parameters on one GPU, by arithmetic alone."""
    model, device = roofline.LLAMA_3_1_8B, roofline.H200
    block_size = 16
    return Hardware(
        name="h200",
        about=f"By arithmetic (actors/simulator/roofline.py), not measured: {model.name} in bf16 on one {device.name}.",
        step=StepCosts(
            base_s=device.read_s(model.weight_bytes),
            prefill_token_s=device.compute_s(model.token_flops) + device.read_s(model.kv_token_bytes),
            prefill_pair_s=device.compute_s(model.pair_flops),
            prefill_context_s=device.read_s(model.kv_token_bytes),
            decode_row_s=device.compute_s(model.token_flops + model.head_flops) + device.read_s(model.kv_token_bytes),
            decode_context_s=device.read_s(model.kv_token_bytes),
        ),
        overhead_s=0.001,
        spread=0.03,
        blocks=device.room_bytes(model.all_bytes) // (model.kv_token_bytes * block_size),
        block_size=block_size,
        max_context=model.max_context,
        max_step_tokens=8192,
        max_running=256,
        chunk_tokens=2048,
    )


_LAPTOP = Hardware(
    name="laptop",
    about=(
        "Measured: SmolLM2-135M-Instruct in bf16 on two cores of an x86-64 server, with rota's own kernels on AMX "
        "tiles; the context is that of --max-context 16384. `rota simulate --calibrate FILE` measures another machine."
    ),
    # kernels/calibration.py's steps, the better of two calibrations; overhead between steps of 1 to 64 rows.
    step=StepCosts(
        base_s=8.6e-3,
        prefill_token_s=1.6e-4,
        prefill_pair_s=1.2e-7,
        prefill_context_s=1.0e-6,
        decode_row_s=2.3e-4,
        decode_context_s=1.0e-6,
    ),
    overhead_s=0.001,
    spread=0.1,
    blocks=5_825,
    block_size=32,
    max_context=16_384,
)

BUILT_IN = (_LAPTOP, _h200())
