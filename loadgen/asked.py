"""What the arguments of `rota load` mean together: which runs, with which people.

Knows which flags do not go with which. Asks no server.
"""

import argparse
import math
from dataclasses import replace
from typing import NamedTuple

from msgspec import structs

from loadgen.command_line import Misuse
from loadgen.figures import Load
from loadgen.load_arguments import (
    AWAY_S,
    CHUNKS,
    CHUNKS_PER_S,
    MAX_OUTPUT_TOKENS,
    PEOPLE,
    PROMPT_TOKENS,
    REQUESTS,
    SOCKETS,
)
from loadgen.scene import Scene, of_scenario, plain
from loadgen.wording import EXACT, LETTERS
from protocol.prompt_file import check_prompts
from protocol.scenario import Scenario, crowd, is_trace, read_azure, read_scenario, scaled, with_targets

_CROWD = (
    "arrive", "burstiness", "people", "questions", "think_s", "leave", "leave_after_s", "leave_after_chunks",
    "come_back", "come_back_s", "read_slowly", "chunks_per_s", "reconnect",
)  # fmt: skip
_TRACE = ("first", "count", "tokens")
_NEEDS = {
    "leave_after_s": "leave",
    "leave_after_chunks": "leave",
    "come_back": "leave",
    "come_back_s": "come_back",
    "chunks_per_s": "read_slowly",
}


class Asked(NamedTuple):
    """One run."""

    load: Load
    scene: Scene


def asked(args: argparse.Namespace, seed: int) -> list[Asked]:
    """The runs that were asked for, in their order; more than one only with `--rates`.

    `seed` where neither the command line nor a scenario has one. The loads know neither their URL nor their model yet.
    Raises `Misuse` or `ScenarioError`.
    """
    _check(args)
    if args.scenario is None and not _has_people(args):
        load = _load(args, seed if args.seed is None else args.seed, args.sockets or SOCKETS)
        return [Asked(load, _prompted(args, plain(load, args.prompt, _connects_per_s(args))))]
    runs = []
    for turn, rate in enumerate(args.rates or (args.rate,)):
        scenario = _scenario(args, rate, seed)
        drawn = scenario.seed if args.seed is None else args.seed
        faster = _faster(args, rate)
        scene = of_scenario(scenario, drawn, connects_per_s=_connects_per_s(args), arrivals=faster)
        # The people are the same at every rate. What they say is not: the server may have kept it.
        runs.append(Asked(_load(args, drawn + turn, scene.sockets, scene), _prompted(args, scene)))
    return runs


def _has_people(args: argparse.Namespace) -> bool:
    return any(getattr(args, name) is not None for name in (*_CROWD, "rate", "rates"))


def _connects_per_s(args: argparse.Namespace) -> float:
    return math.inf if args.connect_rate is None else float(args.connect_rate)


def _prompted(args: argparse.Namespace, scene: Scene) -> Scene:
    """With the words that were asked for. Raises `ScenarioError`."""
    if args.prompts is None:
        return replace(scene, text=args.prompt)
    if args.prompts not in (EXACT, LETTERS):
        check_prompts(args.prompts)
    return replace(scene, text=args.prompt, prompts=args.prompts)


def _load(args: argparse.Namespace, seed: int, sockets: int, scene: Scene | None = None) -> Load:
    longest = args.max_output_tokens or MAX_OUTPUT_TOKENS
    own_length = scene is None and args.prompt is None and args.prompts in (None, EXACT, LETTERS)
    return Load(
        url="",
        model="",
        sockets=sockets,
        requests_per_socket=(args.requests or REQUESTS) if scene is None else 0,
        max_output_tokens=longest if scene is None else scene.longest_answer,
        ignore_eos=args.ignore_eos,
        temperature=args.temperature,
        prompt_tokens=(args.prompt_tokens or PROMPT_TOKENS) if own_length else None,
        warmup=args.warmup,
        warmup_s=args.warmup_s,
        seed=seed,
        timeout_s=args.timeout_s,
        idle=args.idle,
        api=args.api,
        null_executor=args.null_executor,
        **{name: seconds for name, seconds in args.targets.items() if seconds < math.inf},
    )


def _scenario(args: argparse.Namespace, rate: float | None, seed: int) -> Scenario:
    """Whose people come at that rate, with the targets and sockets that were asked for."""
    if args.scenario is None:
        scenario = _crowd(args, rate, seed)
    elif is_trace(args.scenario):
        part = {name: getattr(args, name) for name in _TRACE if getattr(args, name) is not None}
        scenario = read_azure(args.scenario, rate=rate or 1.0, **part)
    else:
        scenario = read_scenario(args.scenario)
        if rate is not None:
            scenario = scaled(scenario, rate)
        if args.sockets is not None:
            scenario = structs.replace(scenario, sockets=args.sockets)
    return with_targets(scenario, args.targets)


def _crowd(args: argparse.Namespace, rate: float | None, seed: int) -> Scenario:
    given = {name: getattr(args, name) for name in _CROWD if name not in ("people", "arrive")}
    if args.leave and args.leave_after_s is None and args.leave_after_chunks is None:
        given["leave_after_chunks"] = CHUNKS
    if args.come_back and args.come_back_s is None:
        given["come_back_s"] = AWAY_S
    if args.read_slowly and args.chunks_per_s is None:
        given["chunks_per_s"] = CHUNKS_PER_S
    return crowd(
        seed=seed,
        sockets=args.sockets,
        count=args.people or PEOPLE,
        arrive=_arrive(args, rate),
        rate=rate,
        prompt_tokens=args.prompt_tokens or PROMPT_TOKENS,
        output_tokens=args.max_output_tokens or MAX_OUTPUT_TOKENS,
        # Without targets of its own a group has a scenario's usual ones, which nobody asked for here.
        ttft_target_s=args.targets.get("ttft_target_s", math.inf),
        itl_target_s=args.targets.get("itl_target_s", math.inf),
        **given,
    )


def _arrive(args: argparse.Namespace, rate: float | None) -> str:
    return str(args.arrive or ("together" if rate is None else "poisson"))


def _faster(args: argparse.Namespace, rate: float | None) -> str | None:
    """How the people of somebody else's scenario come, where they do not come as it says; None: as it says."""
    if args.scenario is None or rate in (None, 1.0):
        return None
    return f"as {'recorded' if is_trace(args.scenario) else 'written'}, {rate:g} times as fast"


def _check(args: argparse.Namespace) -> None:
    """Whether all goes together. Raises `Misuse`."""
    if args.null_executor and args.api != "responses":
        raise Misuse("--null-executor starts a rota of its own, and that speaks --api responses only.")
    if args.prompts is not None and args.prompt is not None:
        raise Misuse("--prompt is one text for all: leave out --prompts.")
    if args.rate is not None and args.rates is not None:
        raise Misuse("--rates are several: leave out --rate.")
    if args.scenario is None:
        for name in _TRACE:
            if getattr(args, name) is not None:
                raise Misuse(f"{_flag(name)} is for a .csv trace: name one with --scenario.")
    else:
        _check_scenario(args)
    if args.scenario is not None or _has_people(args):
        if args.requests is not None:
            raise Misuse("--requests is for sockets without people: say --questions, or leave it to the scenario.")
        if args.sockets is not None and args.api == "chat":
            raise Misuse("--api chat carries one request on a connection, so nobody can share: leave out --sockets.")
    if args.scenario is None and _has_people(args):
        _check_crowd(args)


def _check_scenario(args: argparse.Namespace) -> None:
    for name in (*_CROWD, "prompt_tokens", "max_output_tokens"):
        if getattr(args, name) is not None:
            raise Misuse(f"{_flag(name)} is not for a scenario, which says it itself: leave out one of the two.")
    for name in _TRACE:
        if getattr(args, name) is not None and not is_trace(args.scenario):
            raise Misuse(f"{_flag(name)} is for a .csv trace, and {args.scenario} is none.")
    if args.sockets is not None and is_trace(args.scenario):
        raise Misuse("--sockets is not for a trace: everyone in it comes on a socket of its own.")


def _check_crowd(args: argparse.Namespace) -> None:
    for name, needed in _NEEDS.items():
        if getattr(args, name) is not None and not getattr(args, needed):
            raise Misuse(f"{_flag(name)} says nothing without {_flag(needed)} above 0.")
    if args.leave_after_s is not None and args.leave_after_chunks is not None:
        raise Misuse("--leave-after-s and --leave-after-chunks are two ways to leave: choose one.")
    for name in ("think_s", "reconnect"):
        if getattr(args, name) and (args.questions or 1) < 2:
            raise Misuse(f"{_flag(name)} says nothing where nobody asks twice: add --questions.")
    for name in ("leave", "read_slowly", "reconnect"):
        if getattr(args, name) and args.sockets is not None:
            raise Misuse(f"{_flag(name)} takes a socket of one's own: leave out --sockets.")
    paced = args.rate is not None or args.rates is not None
    if args.arrive == "together" and paced:
        raise Misuse("People who --arrive together have no rate: leave it out, or say poisson.")
    if args.arrive in ("fixed", "poisson", "gamma") and not paced:
        raise Misuse(f"People who --arrive {args.arrive} need a --rate, in people a second.")
    if (args.arrive == "gamma") != (args.burstiness is not None):
        raise Misuse("--burstiness belongs to --arrive gamma, which needs it: 1 is Poisson, 3 is bursts.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
