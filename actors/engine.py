"""The one picture of the whole: which actors there are, who knows whose address, and the life of the server.

Builds the actors, supervises them by their two fates, and says what the person who started rota needs to know. Knows no
event of the wire and no step.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, assert_never

import structlog

from actors import limits as limits_of
from actors.actor import Actor, Address, Clock, Mailbox
from actors.admission import Admission, AdmissionInbox
from actors.back_off import BackOff
from actors.config import Config
from actors.connection import ConnectionLimits
from actors.conversations import Keeping
from actors.detokeniser import Detokeniser, DetokeniserInbox
from actors.directory import Directory
from actors.executor import Executor, ExecutorInbox
from actors.gallery import Gallery, GalleryInbox
from actors.gallery_taps import Taps
from actors.health import Health
from actors.metrics import Metrics
from actors.offload import Offload, promised
from actors.reaper import Patience, Reaper, ReaperInbox
from actors.reception import Reception
from actors.sampling_defaults import SamplingDefaults
from actors.scheduler import Scheduler, SchedulerInbox
from actors.scheduling.allowances import Allowances
from actors.scheduling.bounds import Bounds
from actors.scheduling.policies import policy_named
from actors.socket import Socket
from actors.tokeniser import Tokeniser, TokeniserInbox
from actors.tracing import Tracer, mailboxes
from actors.vocabulary import Vocabulary
from actors.worker_process import Child
from protocol.messages import (
    Drain,
    Drained,
    LoadModel,
    ModelFound,
    ModelReady,
    ModelRefused,
    WorkerLost,
)

EngineInbox = ModelFound | ModelReady | ModelRefused | WorkerLost | Drained

TOKENS_AHEAD = 32
MOST_STEPS_IN_FLIGHT = 2
"""Whatever the worker asks for: one that runs, and one that is planned behind it."""
MAX_STEP_TOKENS = 1024
ASKED_AHEAD = 256
"""Prompts that wait for the tokeniser, and tokenised requests that wait for admission."""

log = structlog.get_logger()


class EngineStopped(Exception):
    """The engine cannot serve (any more). The message is one sentence for the person who started it."""


class Engine:
    """The actors of one server, from the first mailbox to the last socket.

    Sockets come in by `open_connection` and `open_watcher`; workers come from `new_child`. Time, ids, chance and
    threads are given, so that the simulation runs this same class.
    """

    def __init__(
        self,
        config: Config,
        *,
        new_child: Callable[[], Child],
        load_vocabulary: Callable[[str], Vocabulary],
        offload: Offload,
        clock: Clock = time.monotonic,
        unix_clock: Callable[[], float] = time.time,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
        chance: random.Random | None = None,
        patience: Patience | None = None,
        limits: ConnectionLimits | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._config = config
        self._new_child = new_child
        self._load_vocabulary = load_vocabulary
        self._offload = offload
        self._clock = clock
        self._unix_clock = unix_clock
        self._chance = chance if chance is not None else random.Random()
        self._patience = patience if patience is not None else limits_of.patience(config)
        self.metrics = Metrics()
        self.health = Health(unix_clock())
        self.metrics.worker_up.set_function(lambda: float(self.health.ready))
        self.directory = Directory()
        # In the order in which they began, so that they end in one order too: sets have another in every run.
        self._tasks: list[asyncio.Task[None]] = []
        self._worker_tasks: list[asyncio.Task[None]] = []
        self._restart: asyncio.Task[None] | None = None
        self._back_off = BackOff()
        self._away_since: float | None = None
        """When there last was a worker, if there is none now and was one."""
        self._stopping = False
        self._stopped = asyncio.Event()
        self._drain: Drain | None = None
        self._allowances = Allowances(config.keys.per_minute)
        self._taps = Taps(clock)
        self._mailbox = mailboxes(clock, tracer, self._taps.at)
        if tracer is not None:
            self.metrics.trace_lost.count = lambda: tracer.lost + tracer.unwritten
        self._inbox: Mailbox[EngineInbox] = self._mailbox("engine", 1)
        self.tokeniser: Mailbox[TokeniserInbox] = self._mailbox("tokeniser", ASKED_AHEAD)
        self.admission: Mailbox[AdmissionInbox] = self._mailbox("admission", ASKED_AHEAD)
        self.scheduler: Mailbox[SchedulerInbox] = self._mailbox("scheduler", config.max_running)
        self.executor: Mailbox[ExecutorInbox] = self._mailbox("executor", MOST_STEPS_IN_FLIGHT)
        self.detokeniser: Mailbox[DetokeniserInbox] = self._mailbox("detokeniser", TOKENS_AHEAD + MOST_STEPS_IN_FLIGHT)
        self.reaper: Mailbox[ReaperInbox] = self._mailbox("reaper", 1)
        self.gallery: Mailbox[GalleryInbox] = self._mailbox("gallery", 1)
        self._child: Child
        self.metrics.mailboxes.statistics = lambda: {
            name: mailbox.statistics() for name, mailbox in self.mailboxes.items()
        }
        self._reception = Reception(
            config,
            new_mailbox=self._mailbox,
            tokeniser=_to(self.tokeniser),
            scheduler=_to(self.scheduler),
            reaper=_to(self.reaper),
            gallery=_to(self.gallery),
            directory=self.directory,
            clock=clock,
            unix_clock=unix_clock,
            new_id=new_id,
            metrics=self.metrics,
            limits=limits if limits is not None else limits_of.connection_limits(config),
        )

    # --- building ---

    def _reaper(self) -> Reaper:
        return Reaper(
            self.reaper,
            patience=self._patience,
            admission=_to(self.admission),
            scheduler=_to(self.scheduler),
            executor=_to(self.executor),
            tokeniser=_to(self.tokeniser),
            engine=_to(self._inbox),
            directory=self.directory,
            metrics=self.metrics,
            clock=self._clock,
        )

    def _gallery(self) -> Gallery:
        config = self._config
        return Gallery(
            self.gallery,
            taps=self._taps,
            policy=config.policy,
            max_running=config.max_running,
            # Without a key whoever knows a response's id may continue it: then only this machine may come in.
            tell_ids=not config.allow_no_key,
            scheduler=_to(self.scheduler),
            admission=_to(self.admission),
            directory=self.directory,
            clock=self._clock,
            unix_clock=self._unix_clock,
        )

    def _worker(self) -> tuple[Admission, Scheduler, Executor]:
        """The three that start anew as one. A fresh child: what an old one still says must not reach a new executor."""
        config = self._config
        admission = Admission(
            self.admission,
            bounds=Bounds(config.max_waiting, config.max_waiting_work_s, config.max_wait_s),
            max_running=config.max_running,
            chunk_tokens=config.chunk_tokens,
            scheduler=_to(self.scheduler),
            tokeniser=_to(self.tokeniser),
            detokeniser=_to(self.detokeniser),
            reaper=_to(self.reaper),
            gallery=_to(self.gallery),
            directory=self.directory,
            metrics=self.metrics,
            clock=self._clock,
            allowances=self._allowances,
            running_of=config.keys.running,
        )
        scheduler = Scheduler(
            self.scheduler,
            policy=policy_named(config.policy, config.chunk_tokens),
            max_running=config.max_running,
            max_step_tokens=MAX_STEP_TOKENS,
            admission=_to(self.admission),
            executor=_to(self.executor),
            detokeniser=_to(self.detokeniser),
            tokeniser=_to(self.tokeniser),
            reaper=_to(self.reaper),
            gallery=_to(self.gallery),
            directory=self.directory,
            metrics=self.metrics,
            clock=self._clock,
            tokens_ahead=TOKENS_AHEAD,
        )
        self._child = self._new_child()
        executor = Executor(
            self.executor,
            child=self._child,
            load=LoadModel(
                config.model,
                device=config.device,
                dtype=config.dtype,
                kernels=config.kernels,
                kv_memory=config.kv_memory_bytes,
                max_context=config.max_context,
                gpu_memory_fraction=config.gpu_memory_fraction,
                steps_in_flight=config.steps_in_flight,
                max_step_tokens=MAX_STEP_TOKENS,
                max_step_rows=config.max_running,
            ),
            scheduler=_to(self.scheduler),
            engine=_to(self._inbox),
            metrics=self.metrics,
            clock=self._clock,
            hang_s=config.hang_s,
            load_s=config.load_s,
            has_served=self.health.model is not None,
        )
        return admission, scheduler, executor

    def _text(self, ready: ModelReady, vocabulary: Vocabulary) -> tuple[Tokeniser, Detokeniser]:
        """The two that need to know the model: they come when it has loaded, and stay when a worker is lost."""
        config = self._config
        tokeniser = Tokeniser(
            self.tokeniser,
            vocabulary=vocabulary,
            admission=_to(self.admission),
            detokeniser=_to(self.detokeniser),
            directory=self.directory,
            clock=self._clock,
            offload=self._offload,
            random=self._chance,
            defaults=SamplingDefaults.load(ready.folder),
            default_max_output_tokens=config.max_output_tokens,
            tiers=config.tiers,
            keeping=Keeping(retain_s=config.retain_s),
            allowances=self._allowances,
        )
        detokeniser = Detokeniser(
            self.detokeniser,
            vocabulary=vocabulary,
            tokeniser=_to(self.tokeniser),
            scheduler=_to(self.scheduler),
            directory=self.directory,
            clock=self._clock,
        )
        return tokeniser, detokeniser

    # --- life ---

    async def run(self, on_ready: Callable[[ModelReady], None]) -> None:
        """From the first actor to the last. `on_ready` is called once, when the first real step has run.

        Returns when it has drained (`drain`). Raises EngineStopped when the model cannot be served.
        """
        self._supervise(self._reaper(), self._tasks)
        self._supervise(self._gallery(), self._tasks)
        self._start_worker()
        vocabulary: asyncio.Future[Vocabulary] | None = None
        try:
            while True:
                match message := await self._inbox.take():
                    case ModelFound():
                        vocabulary = vocabulary or promised(
                            self._offload, partial(self._load_vocabulary, message.folder)
                        )
                    case ModelReady():
                        assert vocabulary is not None, "a model is found before it is ready"
                        child, words = self._child, await _usable(vocabulary)
                        if self._restart is not None or child is not self._child:
                            continue  # One of its three has raised since it said so.
                        if self.health.model is None:
                            for actor in self._text(message, words):
                                self._supervise(actor, self._tasks)
                            on_ready(message)
                        self.tokeniser.tell(message)
                        self.admission.tell(message)
                        self.gallery.tell(message)
                        if self._away_since is not None:
                            log.info("worker.back", away_s=round(self._clock() - self._away_since, 3))
                            self._away_since = None
                        self.health.serving(message)
                        self.metrics.show_model(message, self._config.policy)
                    case ModelRefused():
                        raise EngineStopped(message.message)
                    case WorkerLost():
                        self.admission.tell(message)
                        self.gallery.tell(message)
                        self._down(f"The worker is being started again: {message.message}.")
                    case Drained():
                        await self._reception.everyone_to_leave()
                        return
                    case _:
                        assert_never(message)
        finally:
            await self._stop()

    def drain(self) -> None:
        """Accept nothing new; `run` returns when what runs has ended, or after the grace time. Called again: now."""
        now = self._clock()
        first = not self.health.draining
        self.health.drain()
        drain = self._drain = Drain(now + self._config.grace_s if first else now)
        log.info("engine.draining", grace_s=drain.until - now, sockets_open=len(self.directory))
        self.reaper.tell(drain)
        self.admission.tell(drain)
        self._reception.drain(drain)

    async def open_connection(self, socket: Socket, tenant: str) -> None:
        """The whole life of one socket. Returns when it is closed and the engine has let go of its requests."""
        assert self.health.model is not None, "a socket was let in before there was a model"
        await self._reception.open_connection(socket, tenant, self.health.model.name)

    async def open_watcher(self, socket: Socket, tenant: str) -> None:
        """The whole life of a socket that only watches. Returns when it is closed."""
        assert self.health.model is not None, "a watcher was let in before there was a model"
        await self._reception.open_watcher(socket, tenant)

    @property
    def mailboxes(self) -> dict[str, Mailbox[Any]]:
        return {
            "tokeniser": self.tokeniser,
            "admission": self.admission,
            "scheduler": self.scheduler,
            "executor": self.executor,
            "detokeniser": self.detokeniser,
            "reaper": self.reaper,
            "gallery": self.gallery,
        }

    # --- supervision ---

    def _supervise(self, actor: Actor[Any], tasks: list[asyncio.Task[None]]) -> None:
        """Run it. An actor whose fate is its own never ends by itself: if it does, rota has a defect, and stops."""
        task = asyncio.create_task(actor.run(), name=actor.name)
        tasks.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A supervised task is over. What to do about it depends on whose it was."""
        restart = task is self._restart
        if restart:
            self._restart = None
        if task.cancelled() or self._stopping or (error := task.exception()) is None:
            return
        if task in self._worker_tasks:
            self._restart_worker(repr(error))
        elif restart or task in self._tasks:
            log.critical("engine.defect", actor=task.get_name(), exc_info=error)
            self._inbox.tell(ModelRefused(f"rota has a defect: its {task.get_name()} ended with {error!r}."))

    def _down(self, reason: str) -> None:
        if self._away_since is None:
            self._away_since = self._clock()
        self.health.down(reason)

    def _start_worker(self) -> None:
        admission, scheduler, executor = self._worker()
        for actor in (admission, scheduler, executor):
            self._supervise(actor, self._worker_tasks)
        executor.start()
        if self._drain is not None:
            self.admission.tell(self._drain)

    def _restart_worker(self, why: str) -> None:
        """One of the three has raised: nothing they hold can be trusted. Everyone is told, and they start anew."""
        delay_s = self._back_off.next_delay_s(self._clock())
        log.error("worker.restarting", why=why, next_start_s=delay_s)
        self.metrics.worker_restarts.inc()
        self._down("The worker is being started again after an internal error.")
        self.gallery.tell(WorkerLost(why, self._clock()))
        self._child.abandon()
        old = self._worker_tasks
        self._worker_tasks = []
        for task in old:
            task.cancel()
        self._restart = asyncio.create_task(self._start_anew(old, why, delay_s), name="worker restart")
        self._restart.add_done_callback(self._ended)

    async def _start_anew(self, old: list[asyncio.Task[None]], why: str, delay_s: float) -> None:
        await asyncio.gather(*old, return_exceptions=True)
        await self._child.close()
        if self._stopping:
            return
        for mailbox in (self.admission, self.scheduler, self.executor):
            mailbox.clear()
        self._taps.start_anew()
        lost = WorkerLost(why, self._clock())
        self.reaper.tell(lost)
        # What connections cancel now waits for the new three: their mailboxes are the same.
        self.directory.tell_all(lost)
        if delay_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), delay_s)
        if not self._stopping:
            self._start_worker()

    async def _stop(self) -> None:
        self._stopping = True
        self._stopped.set()
        tasks = self._tasks + self._worker_tasks
        for task in tasks:
            task.cancel()
        # Not cancelled: it waits for the old worker's death, and the cancel would reach that too.
        restart = [] if self._restart is None else [self._restart]
        await asyncio.gather(*tasks, *restart, return_exceptions=True)
        await self._reception.close()
        await self._child.close()


def _to(mailbox: Mailbox[Any]) -> Address[Any]:
    """An address: narrowed by the type of whoever it is handed to."""
    return Address(mailbox)


async def _usable(vocabulary: Awaitable[Vocabulary]) -> Vocabulary:
    try:
        return await vocabulary
    except Exception as error:
        raise EngineStopped(f"The model's tokeniser cannot be used: {error}.") from error
