"""A profile of this machine, from what the engine's own worker says of itself."""

from collections.abc import Callable

import pytest
from msgspec import structs

from actors.simulator.calibrate import STARTS, measure
from actors.simulator.hardware import HardwareError
from protocol.messages import FromWorker, LoadModel, Measured, ModelFound, ModelRefused, Step
from tests.actors.recorders import model_ready
from tests.actors.simulator.plain import PLAIN


class Worker:
    """A child that says what it is told to, and is gone when it has nothing more to say."""

    def __init__(self, *says: FromWorker) -> None:
        self.says = says
        self.loads: list[LoadModel] = []
        self.closed = False

    def start(self, load: LoadModel, deliver: Callable[[FromWorker], None], gone: Callable[[str], None]) -> None:
        self.loads.append(load)
        for message in self.says:
            deliver(message)
        gone("the worker process ended with exit code 1")

    def send(self, step: Step) -> None:
        raise AssertionError("a calibration runs no step of ours")

    def signs_of_life(self) -> None: ...

    def kill(self) -> None: ...

    def abandon(self) -> None: ...

    async def close(self) -> None:
        self.closed = True


def test_of_each_kind_of_step_the_middle_one_of_several_starts_counts() -> None:
    workers = [
        Worker(
            ModelFound("tiny", "/nowhere"),
            structs.replace(
                model_ready(blocks=1000, block_size=16),
                max_context=4096,
                calibration=tuple(Measured(each.work, each.took_s * slower) for each in PLAIN.calibration()),
            ),
        )
        for slower in (1.0, 9.0, 0.7)
    ]
    left = iter(workers)
    profile = measure("tiny", "mine", lambda: next(left))
    assert len(workers) == STARTS
    assert profile.coefficients == pytest.approx(PLAIN.coefficients, rel=1e-6, abs=1e-9)
    assert (profile.name, profile.blocks, profile.max_context) == ("mine", 1000, 4096)
    assert "tiny in float32 on cpu" in profile.about
    assert [worker.loads[0].model for worker in workers] == ["tiny"] * STARTS
    assert all(worker.closed for worker in workers)


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        ([ModelRefused("There is no model tiny.")], "There is no model tiny."),
        ([], "Nothing was measured: the worker process ended with exit code 1."),
        ([model_ready()], "The worker has measured no steps of tiny."),
    ],
)
def test_a_worker_that_measures_nothing_is_a_sentence(says: list[FromWorker], sentence: str) -> None:
    with pytest.raises(HardwareError) as caught:
        measure("tiny", "mine", lambda: Worker(*says))
    assert str(caught.value) == sentence
