"""An executor beside a worker that says what the test says, on a clock that the test holds."""

from collections.abc import Callable

from actors.actor import Mailbox
from actors.executor import Executor, ExecutorInbox
from actors.metrics import Metrics
from actors.worker_process import Child
from protocol.messages import (
    FromWorker,
    LoadModel,
    Step,
    StepDone,
    Sweep,
)
from tests.actors.recorders import HandClock, Recorder


class ScriptedChild:
    """A worker that says what the test says, and keeps what it is told."""

    def __init__(self) -> None:
        self.starts: list[tuple[LoadModel, Callable[[FromWorker], None], Callable[[str], None]]] = []
        self.steps: list[Step] = []
        self.kills = 0
        self.signs: object = None

    def start(self, load: LoadModel, deliver: Callable[[FromWorker], None], gone: Callable[[str], None]) -> None:
        self.starts.append((load, deliver, gone))

    def send(self, step: Step) -> None:
        self.steps.append(step)

    def signs_of_life(self) -> object:
        return self.signs

    def kill(self) -> None:
        self.kills += 1

    def abandon(self) -> None:
        raise AssertionError("the engine abandons a worker, not the executor")

    async def close(self) -> None:
        raise AssertionError("the engine closes a worker, not the executor")


class Bench:
    """An executor that has started its first worker."""

    def __init__(self, worker: Child | None = None) -> None:
        self.clock = HandClock()
        self.child = ScriptedChild()
        self.worker = self.child if worker is None else worker
        self.scheduler, self.engine = Recorder(), Recorder()
        self.metrics = Metrics()
        self.mailbox: Mailbox[ExecutorInbox] = Mailbox(self.clock, 8)
        self.actor = Executor(
            self.mailbox,
            child=self.worker,
            load=LoadModel("tiny"),
            scheduler=self.scheduler.address,
            engine=self.engine.address,
            metrics=self.metrics,
            clock=self.clock,
            hang_s=10.0,
            load_s=20.0,
            first_delay_s=0.5,
            longest_delay_s=3.0,
        )
        self.actor.start()

    def say(self, *messages: ExecutorInbox) -> None:
        for message in messages:
            self.actor.handle(message)

    async def worker_says(self, *messages: FromWorker, worker: int = -1) -> None:
        for message in messages:
            self.child.starts[worker][1](message)
        await self.handle_waiting()

    async def worker_ends(self, why: str = "it ended", worker: int = -1) -> None:
        self.child.starts[worker][2](why)
        await self.handle_waiting()

    async def handle_waiting(self) -> None:
        while any(lane.depth for lane in self.mailbox.statistics().values()):
            self.say(await self.mailbox.take())

    async def hear(self, kind: type[ExecutorInbox]) -> ExecutorInbox:
        """Handle what comes, up to the first of this kind."""
        while True:
            self.say(message := await self.mailbox.take())
            if isinstance(message, kind):
                return message

    def sweep(self, after_s: float = 0.0) -> None:
        self.say(Sweep(self.clock.pass_(after_s)))


def done(number: int) -> StepDone:
    return StepDone(number, (), 0.01)
