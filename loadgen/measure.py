"""One run of a load: warm up, let the people come, add up what became of their requests.

Knows the order of a run and how it is ended early. What is to be played is a `Scene`; who plays it is the `driver`. A
run always ends by itself, within its time limit and the seconds it takes to close.
"""

import asyncio
from collections.abc import Sequence

from loadgen.bodies import Asking, conversation, prepared
from loadgen.client import NotOpened, Open, OwnSocket, Socket, Unreachable
from loadgen.completions import ChatSocket
from loadgen.driver import drive, watching
from loadgen.figures import Exchange, Load, Report, StoppedBy, came_per_s, report
from loadgen.lanes import Pool
from loadgen.progress import Board, Display
from loadgen.run import Run
from loadgen.scene import Scene, plain, requests_of
from loadgen.sockets import Sockets
from loadgen.warm_up import count_words
from loadgen.wording import EXACT, LETTERS, Exact, Letters, One, Texts, Wording
from protocol.prompt_file import read_prompts

LONGEST_WARM_UP = 64
"""Output tokens of a request before those of a scenario."""
WARM_UP_PROMPT = 140


async def measure(load: Load, key: str | None, shown: Display, text: str | None = None) -> Report:
    """Put the load on its server and add up what came of it. `text` is the prompt where the load has no length.

    Raises `Unreachable` when no socket opens; a cancel ends the run early, as with `play`.
    """
    figures, _ = await play(load, plain(load, text), key, shown)
    return figures


async def play(load: Load, scene: Scene, key: str | None, shown: Display) -> tuple[Report, Sequence[Exchange]]:
    """Play the scene on the load's server, and add up.

    Raises `Unreachable` when no socket opens. A cancel (Ctrl-C under `asyncio.Runner`) ends the run early and is not
    passed on: `Report.stopped_by` tells of it.
    """
    open_one: Open = ChatSocket.open if load.api == "chat" else Socket.open
    pool = Pool(load.url, key)
    at_will = scene.name is None
    sockets = Sockets(scene.people, pool, open_one, keep=at_will, connects_per_s=scene.connects_per_s, idle=load.idle)
    board = Board(scene.questions, scene.mean_answer)
    run = Run(scene.people, sockets, board, api=load.api, at_will=at_will, warmup_s=load.warmup_s)
    stopped_by: StoppedBy = "finished"
    try:
        async with watching(run, shown), asyncio.timeout(load.timeout_s):
            await _warm_up_and_drive(load, scene, key, run, open_one)
    except TimeoutError:
        stopped_by = "timeout"
    except NotOpened as declined:
        raise Unreachable(str(declined)) from declined
    except asyncio.CancelledError:
        stopped_by = "interrupt"
        this = asyncio.current_task()
        assert this is not None, "this runs in a task"
        this.uncancel()
    finally:
        idle_open = sockets.idle_open
        await sockets.close()
        await pool.close()
    exchanges = run.exchanges
    figures = report(
        load,
        exchanges,
        stopped_by=stopped_by,
        opened=sockets.opened,
        not_opened=[declined.code for declined in sockets.not_opened],
        client_lag_worst_s=run.lag_worst_s,
        scenario=scene.name,
        arrivals=scene.arrivals,
        # What people ask later than at first comes at a rate too, that of the answers before.
        offered_per_s=None if scene.offered_per_s is None else came_per_s(exchanges),
        idle_sockets=idle_open,
    )
    return figures, exchanges


async def _warm_up_and_drive(load: Load, scene: Scene, key: str | None, run: Run, open_one: Open) -> None:
    run.board.phase = "warming up"
    wording = await _warmed_up(load, scene, key, open_one)
    # Thousands of long prompts take a while, in which the display should not stand still.
    run.requests = await asyncio.to_thread(requests_of, scene.people, _asking(load), wording, bare=run.at_will)
    run.board.phase = "opening sockets"
    await drive(run)


def _asking(load: Load) -> Asking:
    return Asking(api=load.api, model=load.model, temperature=load.temperature, ignore_eos=load.ignore_eos)


async def _warmed_up(load: Load, scene: Scene, key: str | None, open_one: Open) -> Wording:
    """Send the requests that are not counted, on a socket of their own, and say how the counted ones are worded.

    What goes wrong here goes wrong again where it is counted; but raises `Unreachable` when prompts are to be exact and
    the server does not say how long they are.
    """
    exact = scene.text is None and scene.prompts == EXACT
    wording = None if exact else _wording(load, scene)
    if not (load.warmup or exact):
        assert wording is not None, "only an exact one is still missing"
        return wording
    try:
        socket = await open_one(load.url, key)
    except NotOpened as declined:
        if wording is None:
            raise Unreachable(str(declined)) from declined
        return wording
    try:
        if wording is None:
            wording = Exact(load.seed, await count_words(socket, _asking(load), load.seed))
        await _warm_up(load, scene, wording, socket)
    finally:
        await socket.close()
    return wording


async def _warm_up(load: Load, scene: Scene, wording: Wording, socket: OwnSocket) -> None:
    asking = _asking(load)
    tokens = load.prompt_tokens or WARM_UP_PROMPT
    longest = load.max_output_tokens if scene.name is None else min(load.max_output_tokens, LONGEST_WARM_UP)
    for number in range(load.warmup):
        said = wording.question(scene.questions + number, tokens, first=True)
        body = conversation(load.api).body(prepared(asking, said.text, longest))
        if not await socket.ask(body, Exchange(0, number)):
            return


def _wording(load: Load, scene: Scene) -> Wording:
    if scene.text is not None:
        return One(scene.text)
    if scene.prompts == LETTERS:
        return Letters(load.seed)
    return Texts(load.seed, read_prompts(scene.prompts))
