"""Who asks for what, and when: the arrivals that a load replays and a simulation runs through.

Knows the shape of a scenario, its TOML file and the Azure trace's CSV. Knows no server, no policy and no text: a
prompt is a number of tokens.
"""

import csv
import difflib
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from protocol.responses import ServiceTier

Name = Annotated[str, Meta(min_length=1, max_length=200)]
MOST_TOKENS = 10**9
"""Of one prompt or one answer."""
Count = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Positive = Annotated[float, Meta(gt=0)]
"""Of a target; `inf` is none at all."""

TRACE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class ScenarioError(Exception):
    """A scenario that cannot be read. The message is one sentence for the person who named it."""


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
    """A name, what it is about in a sentence, the targets of every request that has none of its own, and arrivals."""

    name: Name
    arrivals: Annotated[tuple[Arrival, ...], Meta(min_length=1)]
    about: str = ""
    ttft_target_s: Positive = 5.0
    itl_target_s: Positive = 0.25

    def targets(self, arrival: Arrival) -> tuple[float, float]:
        """Seconds to the first token, and from one token to the next."""
        return arrival.ttft_target_s or self.ttft_target_s, arrival.itl_target_s or self.itl_target_s

    def wanted(self) -> str:
        """The targets in words: those of most requests, and how many have others."""
        ((ttft_s, itl_s), alike), *_ = Counter(self.targets(arrival) for arrival in self.arrivals).most_common(1)
        others = len(self.arrivals) - alike
        said = f"targets: first token {_duration(ttft_s)}, gap {_duration(itl_s)}"
        return f"{said} ({others:,} of {len(self.arrivals):,} requests have others)" if others else said

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


def is_trace(named: str | Path) -> bool:
    """Whether it is the name of a trace's file, to be read by `read_azure`."""
    return Path(named).suffix.lower() == ".csv"


def read_scenario(named: str | Path) -> Scenario:
    """The scenario in a TOML file, or one that comes with rota, by its name. Raises `ScenarioError`.

    A file has a suffix or a folder before it, a name has neither. A file without a `name` is called after itself.
    """
    path = Path(named)
    if path.suffix or len(path.parts) > 1:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ScenarioError(f"The scenario {path} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError as error:
            raise ScenarioError(f"The scenario {path} is not TOML: {error}.") from None
        return _scenario(text, str(path), path.stem)
    names = shipped()
    if path.name not in names:
        near = difflib.get_close_matches(path.name, names, n=1)
        meant = f"did you mean {near[0]}" if near else f"rota comes with {', '.join(names)}"
        raise ScenarioError(f"There is no scenario {path.name!r}: {meant}; a file of your own ends in .toml or .csv.")
    text = resources.files("protocol").joinpath("scenarios", f"{path.name}.toml").read_text(encoding="utf-8")
    return _scenario(text, path.name, path.name)


def _scenario(text: str, where: str, name: str) -> Scenario:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"The scenario {where} is not TOML: {error}.") from None
    try:
        scenario = msgspec.convert({"name": name, **table}, Scenario)
    except msgspec.ValidationError as error:
        what, _, key = str(error).partition(" - at `$")
        what = what.replace("Object contains unknown field", "there is no key")
        raise ScenarioError(f"{where}: {key.strip('.`') or 'the file'}: {what}.") from None
    _check_order(scenario, where)
    return scenario


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
    """A part of a trace in the form of the AzurePublicDataset: a CSV with a timestamp and two token counts a request.

    Which part: of the requests that came in the `for_s` seconds from `start_s` after the trace's first, those from
    number `first` on, `count` at most. They keep their distances, divided by `rate`; the first of them arrives at 0.
    Token counts are multiplied by `tokens`, rounded, cut to the `most_...` and at least 1. Every request is a client
    of its own and named by its line in the file. Raises `ScenarioError`.
    """
    if not 0 < rate < math.inf or not 0 < tokens < math.inf:
        raise ScenarioError(f"{path}: rate and tokens must be above 0, and finite.")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = sorted(_rows(csv.reader(file), str(path)))
    except OSError as error:
        raise ScenarioError(f"The trace {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"The trace {path} is not CSV: {error}.") from None
    begin_s = rows[0][0] + start_s if rows else 0.0
    window = (row for row in rows if begin_s <= row[0] < begin_s + for_s)
    chosen = list(islice(window, first, None if count is None else first + count))
    if not chosen:
        raise ScenarioError(f"{path}: none of its {len(rows):,} requests is in the part that was asked for.")
    origin_s = chosen[0][0]

    def scaled(of: int, most: int | None) -> int:
        return max(1, min(round(of * tokens), MOST_TOKENS if most is None else most))

    return Scenario(
        name=Path(path).stem,
        about=f"{len(chosen):,} requests of a recorded trace, over {(chosen[-1][0] - origin_s) / rate:,.0f} seconds.",
        arrivals=tuple(
            Arrival(
                name=f"line {line}",
                prompt_tokens=scaled(prompt, most_prompt_tokens),
                output_tokens=scaled(output, most_output_tokens),
                at_s=(at_s - origin_s) / rate,
            )
            for at_s, line, prompt, output in chosen
        ),
        ttft_target_s=ttft_target_s,
        itl_target_s=itl_target_s,
    )


def _rows(lines: Iterable[list[str]], where: str) -> Iterator[tuple[float, int, int, int]]:
    """Of each request: seconds, its line in the file, and its tokens in and out."""
    reader = iter(lines)
    head = [column.strip() for column in next(reader, [])]
    for column in TRACE_COLUMNS:
        if column not in head:
            raise ScenarioError(
                f"{where}: line 1: there is no column {column}; a trace has {', '.join(TRACE_COLUMNS)}."
            )
    at, prompt, output = (head.index(column) for column in TRACE_COLUMNS)
    for number, fields in enumerate(reader, 2):
        if not fields:
            continue
        try:
            yield (
                _seconds(fields[at]),
                number,
                _count(head[prompt], fields[prompt]),
                _count(head[output], fields[output]),
            )
        except IndexError:
            raise ScenarioError(f"{where}: line {number}: it has {len(fields)} of {len(head)} columns.") from None
        except ValueError as error:
            raise ScenarioError(f"{where}: line {number}: {error}.") from None


def _seconds(text: str) -> float:
    """From a fixed moment. A time without a zone is taken for UTC. Raises ValueError, whose message names the text."""
    try:
        # A seventh digit of the second's fraction, which the trace has, is dropped.
        came = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"TIMESTAMP is {text[:40]!r}, not a time like 2023-11-16 18:15:46.68") from None
    return ((came if came.tzinfo else came.replace(tzinfo=UTC)) - _EPOCH).total_seconds()


def _count(column: str, text: str) -> int:
    """Raises ValueError, whose message names the column."""
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"{column} is {text[:40]!r}, not a whole number") from None
    if not 1 <= value <= MOST_TOKENS:
        raise ValueError(f"{column} is {value:,}; it must be from 1 to {MOST_TOKENS:,}")
    return value


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
