"""Measures the machine it runs on: starts the engine's own worker, which times a few kinds of steps, and fits them.

Knows the worker's first words. Knows no scenario and no policy.
"""

import asyncio
import statistics
from collections.abc import Callable

from actors.engine import MAX_STEP_TOKENS
from actors.scheduling.costs import Costs
from actors.simulator.hardware import Hardware, HardwareError, StepCosts
from actors.worker_process import Child
from protocol.messages import FromWorker, LoadModel, Measured, ModelReady, ModelRefused, Work

STARTS = 3
"""Of each kind of step the middle one of so many counts: anything else that runs on the machine is measured as well."""
OVERHEAD_S = 0.002
SPREAD = 0.05
"""What cannot be measured by one step alone, and is taken to be usual."""


def measure(model: str, name: str, new_child: Callable[[], Child]) -> Hardware:
    """A profile of this machine with `model` on it. Raises HardwareError."""
    return asyncio.run(_measure(LoadModel(model, max_step_tokens=MAX_STEP_TOKENS), name, new_child))


async def _measure(load: LoadModel, name: str, new_child: Callable[[], Child]) -> Hardware:
    times: dict[Work, list[float]] = {}
    for _ in range(STARTS):
        ready = await _start(load, new_child())
        for measured in ready.calibration:
            times.setdefault(measured.work, []).append(measured.took_s)
    costs = Costs(Measured(work, statistics.median(took_s)) for work, took_s in times.items())
    if not costs.known:
        raise HardwareError(f"The worker has measured no steps of {ready.name}.")
    return Hardware(
        name=name,
        about=f"Measured: {ready.name} in {ready.dtype} on {ready.device}; overhead and spread are assumed.",
        step=StepCosts(**dict(zip(StepCosts.__struct_fields__, costs.coefficients, strict=True))),
        overhead_s=OVERHEAD_S,
        spread=SPREAD,
        blocks=ready.blocks,
        block_size=ready.block_size,
        max_context=min(ready.max_context, ready.blocks * ready.block_size),
        max_step_tokens=load.max_step_tokens,
    )


async def _start(load: LoadModel, child: Child) -> ModelReady:
    """One worker, from its start until it is ready, and to its end. Raises HardwareError when it cannot be."""
    said: asyncio.Future[ModelReady] = asyncio.get_running_loop().create_future()

    def deliver(message: FromWorker) -> None:
        match message:
            case ModelReady():
                said.set_result(message)
            case ModelRefused():
                said.set_exception(HardwareError(message.message))

    def gone(why: str) -> None:
        if not said.done():
            said.set_exception(HardwareError(f"Nothing was measured: {why}."))

    child.start(load, deliver, gone)
    try:
        return await said
    finally:
        await child.close()
