"""Who asks for what, and when: the arrivals and groups of people that a load plays and a simulation runs through.

Knows the shape of a scenario and its TOML file. Knows no server, no policy and no text: a prompt is a number of tokens.
Who the people of a group are is drawn in `people`.
"""

import difflib
import math
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from pathlib import Path
from typing import Annotated, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct, structs

from protocol.azure import is_trace, read_rows
from protocol.distributions import Count, Seconds
from protocol.groups import Group, Name, Positive
from protocol.prompt_file import check_prompts
from protocol.responses import ServiceTier
from protocol.scenario_error import ScenarioError

__all__ = [
    "Arrival",
    "Scenario",
    "ScenarioError",
    "crowd",
    "is_trace",
    "read_azure",
    "read_scenario",
    "scaled",
    "shipped",
    "with_targets",
]

MADE_PROMPTS = ("letters", "exact")
MOST_PEOPLE = 100_000
"""Of a scenario, arrivals one by one among them."""


class Arrival(Struct, frozen=True, forbid_unknown_fields=True):
    """One request.

    It arrives `at_s` seconds after the start or, when `after` names others, `at_s` seconds after the last of those
    has had its first token.
    """

    name: Name
    prompt_tokens: Count
    output_tokens: Count
    at_s: Seconds = 0.0
    after: tuple[str, ...] = ()
    client: str = ""
    """Whose it is, for fairness: requests of one client share a socket. "": a client of its own."""
    service_tier: ServiceTier = "default"
    ttft_target_s: Positive | None = None
    """In place of the scenario's."""
    itl_target_s: Positive | None = None


class Scenario(Struct, frozen=True, forbid_unknown_fields=True):
    """A name, what it is about in a sentence, the targets of every request that has none of its own, and who comes:
    arrivals one by one, groups of people, or both."""

    name: Name
    arrivals: tuple[Arrival, ...] = ()
    about: str = ""
    ttft_target_s: Positive = 5.0
    itl_target_s: Positive = 0.25
    people: tuple[Group, ...] = ()
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Which people the groups draw, and which prompts they send."""
    prompts: Name = "letters"
    """Their text: "letters" is prose of about as many tokens, "exact" has exactly as many; else a file of real text
    (`prompt_file`), whose prompts are as long as they are."""
    sockets: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Everybody without a `client` shares so many, in turn. None: a socket for each person."""

    def targets(self, one: Arrival | Group) -> tuple[float, float]:
        """Seconds to the first token, and from one token to the next."""
        return one.ttft_target_s or self.ttft_target_s, one.itl_target_s or self.itl_target_s

    def wanted(self) -> str:
        """The targets in words: those of most people, and how many have others."""
        each = Counter(self.targets(arrival) for arrival in self.arrivals)
        for group in self.people:
            each[self.targets(group)] += group.count or 0
        ((ttft_s, itl_s), alike), *_ = each.most_common(1)
        everybody, others = each.total(), each.total() - alike
        said = f"targets: first token {_duration(ttft_s)}, gap {_duration(itl_s)}"
        who = "people" if self.people else "requests"
        return f"{said} ({others:,} of {everybody:,} {who} have others)" if others else said

    def told(self) -> str:
        """What it is about, and its targets."""
        wanted = self.wanted()
        return f"{self.about} {wanted[0].upper()}{wanted[1:]}.".lstrip()


def _duration(seconds: float) -> str:
    if seconds == math.inf:
        return "whenever"
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"


def shipped() -> list[str]:
    """The names of the scenarios that come with rota."""
    files = resources.files("protocol").joinpath("scenarios").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def read_scenario(named: str | Path) -> Scenario:
    """The scenario in a TOML file, or one that comes with rota, by its name. Raises `ScenarioError`.

    A file has a suffix or a folder before it, a name has neither. A file without a `name` is called after itself. Files
    that it names are looked for beside it.
    """
    path = Path(named)
    if path.suffix or len(path.parts) > 1:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ScenarioError(f"The scenario {path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError as error:
            raise ScenarioError(f"The scenario {path} is not TOML: {error}.") from None
        return _parsed(text, str(path), path.stem, path.parent)
    names = shipped()
    if path.name not in names:
        near = difflib.get_close_matches(path.name, names, n=1)
        meant = f"did you mean {near[0]}" if near else f"rota comes with {', '.join(names)}"
        raise ScenarioError(f"There is no scenario {path.name!r}: {meant}; a file of your own ends in .toml or .csv.")
    text = resources.files("protocol").joinpath("scenarios", f"{path.name}.toml").read_text(encoding="utf-8")
    return _parsed(text, path.name, path.name, Path())


def crowd(*, seed: int = 0, prompts: str = "letters", sockets: int | None = None, **group: object) -> Scenario:
    """A scenario of one group, "load" if it has no other name, from the keys of `Group`; those that are None are as if
    not given. Targets are the group's, by default those of any scenario. Raises `ScenarioError`."""
    given = {key: value for key, value in group.items() if value is not None}
    name = given.setdefault("name", "load")
    table = {"name": name, "people": [given], "seed": seed, "prompts": prompts, "sockets": sockets}
    return _scenario(table, "load", Path())


def with_targets(scenario: Scenario, targets: Mapping[str, float]) -> Scenario:
    """With these (`ttft_target_s`, `itl_target_s`) for everybody, in place of the scenario's and anybody's own."""
    if not targets:
        return scenario
    own = dict.fromkeys(targets)
    arrivals = tuple(structs.replace(arrival, **own) for arrival in scenario.arrivals)
    people = tuple(structs.replace(group, **own) for group in scenario.people)
    return structs.replace(scenario, arrivals=arrivals, people=people, **targets)


def scaled(scenario: Scenario, rate: float) -> Scenario:
    """The same people with the same questions, come `rate` times as fast one after another.

    Who comes after another still comes as long after it, and nobody thinks, reads or leaves any faster.
    """
    return structs.replace(
        scenario,
        arrivals=tuple(
            arrival if arrival.after else structs.replace(arrival, at_s=arrival.at_s / rate)
            for arrival in scenario.arrivals
        ),
        people=tuple(
            structs.replace(
                group,
                start_s=group.start_s / rate,
                rate=None if group.arrive == "together" else (group.rate or 1.0) * rate,
            )
            for group in scenario.people
        ),
    )


def _parsed(text: str, where: str, name: str, folder: Path) -> Scenario:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"The scenario {where} is not TOML: {error}.") from None
    return _scenario({"name": name, **table}, where, folder)


def _scenario(table: Mapping[str, object], where: str, folder: Path) -> Scenario:
    try:
        scenario = msgspec.convert(table, Scenario)
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$")
        what = what.replace("Object contains unknown field", "there is no key")
        what = what.replace(" | null", "").replace("object", "table")
        if what.startswith("Invalid enum value"):
            what += _choices(key.rpartition(".")[2].rstrip("`"))
        raise ScenarioError(f"{where}: {key.strip('.`') or 'the file'}: {what}.") from None
    if not scenario.arrivals and not scenario.people:
        raise ScenarioError(f"{where}: the file: nobody comes: it needs [[arrivals]] or [[people]].")
    _check_order(scenario, where)
    _check_groups(scenario, where)
    _check_size(scenario, where)
    found = _with_files(scenario, where, folder)
    _check_size(found, where)
    return found


def _check_size(scenario: Scenario, where: str) -> None:
    """Whether not too many come; a trace may have its people still to be counted. Raises `ScenarioError`."""
    everybody = len(scenario.arrivals) + sum(group.count or 0 for group in scenario.people)
    if everybody > MOST_PEOPLE:
        raise ScenarioError(f"{where}: {everybody:,} people come, and {MOST_PEOPLE:,} is the most: ask for fewer.")


def _choices(key: str) -> str:
    """What the key may be, to be added to what it is not."""
    hints = {**get_type_hints(Arrival), **get_type_hints(Group)}
    return f"; it is one of {', '.join(get_args(hints[key]))}" if key in hints else ""


def _check_order(scenario: Scenario, where: str) -> None:
    """Whether every `after` can come true. Raises `ScenarioError`."""
    order: dict[str, tuple[str, ...]] = {}
    for index, arrival in enumerate(scenario.arrivals):
        if arrival.name in order:
            raise ScenarioError(f"{where}: arrivals[{index}].name: {arrival.name!r} is the name of an earlier one.")
        order[arrival.name] = arrival.after
    for index, arrival in enumerate(scenario.arrivals):
        for other in arrival.after:
            if other not in order:
                raise ScenarioError(f"{where}: arrivals[{index}].after: nothing that arrives is named {other!r}.")
    try:
        TopologicalSorter(order).prepare()
    except CycleError as error:
        index = list(order).index(error.args[1][0])
        cycle = " and ".join(dict.fromkeys(error.args[1]))
        raise ScenarioError(f"{where}: arrivals[{index}].after: {cycle} would wait for each other for ever.") from None


def _check_groups(scenario: Scenario, where: str) -> None:
    """What no group knows of itself. Raises `ScenarioError`."""
    names = {arrival.name for arrival in scenario.arrivals}
    for index, group in enumerate(scenario.people):
        if any(group.name == other.name for other in scenario.people[:index]):
            raise ScenarioError(f"{where}: people[{index}].name: {group.name!r} is the name of an earlier one.")
        number = next((name for name in names if _is_one_of(name, group.name)), None)
        if number is not None:
            raise ScenarioError(
                f"{where}: people[{index}].name: its people would be named like the arrival {number!r}."
            )
        for key in ("leave", "read_slowly", "reconnect"):
            if getattr(group, key) and scenario.sockets is not None:
                raise ScenarioError(f"{where}: people[{index}].{key}: not on `sockets` that others share.")


def _is_one_of(name: str, group: str) -> bool:
    """Whether `name` is one of a group's people."""
    return name.startswith(f"{group} ") and name[len(group) + 1 :].isdecimal()


def _with_files(scenario: Scenario, where: str, folder: Path) -> Scenario:
    """With the files that it names found, those of traces counted. Raises `ScenarioError`."""
    prompts = scenario.prompts
    if prompts not in MADE_PROMPTS:
        prompts = str((folder / prompts).absolute())
        try:
            check_prompts(prompts)
        except ScenarioError as error:
            raise ScenarioError(f"{where}: prompts: {error}") from None
    return structs.replace(scenario, prompts=prompts, people=tuple(_found(scenario, where, folder)))


def _found(scenario: Scenario, where: str, folder: Path) -> Iterator[Group]:
    for index, group in enumerate(scenario.people):
        if group.trace is None:
            yield group
            continue
        file = str((folder / group.trace).absolute())
        try:
            rows = read_rows(file, first=group.first or 0, count=group.count)
        except ScenarioError as error:
            raise ScenarioError(f"{where}: people[{index}].trace: {error}") from None
        yield structs.replace(group, trace=file, count=len(rows))


def read_azure(
    path: str | Path,
    *,
    first: int = 0,
    count: int | None = None,
    start_s: float = 0.0,
    for_s: float = math.inf,
    rate: float = 1.0,
    tokens: float = 1.0,
    most_prompt_tokens: int | None = None,
    most_output_tokens: int | None = None,
    ttft_target_s: float = 5.0,
    itl_target_s: float = 0.25,
) -> Scenario:
    """A part of a trace, chosen and scaled as `azure.read_rows` does. Raises `ScenarioError`.

    Every request is a client of its own and named by its line in the file.
    """
    rows = read_rows(
        path,
        first=first,
        count=count,
        start_s=start_s,
        for_s=for_s,
        rate=rate,
        tokens=tokens,
        most_prompt_tokens=most_prompt_tokens,
        most_output_tokens=most_output_tokens,
    )
    scenario = Scenario(
        name=Path(path).stem,
        about=f"{len(rows):,} requests of a recorded trace, over {rows[-1].at_s:,.0f} seconds.",
        arrivals=tuple(Arrival(f"line {row.line}", row.prompt_tokens, row.output_tokens, row.at_s) for row in rows),
        ttft_target_s=ttft_target_s,
        itl_target_s=itl_target_s,
    )
    _check_size(scenario, str(path))
    return scenario
