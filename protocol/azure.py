"""Traces in the form of Microsoft's AzurePublicDataset: a CSV with a timestamp and two token counts a request.

Knows the file's columns and how a part of it is chosen and scaled. Knows nothing of who plays it.
"""

import csv
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from msgspec import Struct

from protocol.distributions import MOST_TOKENS
from protocol.scenario_error import ScenarioError

TRACE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceRow(Struct, frozen=True, order=True):
    """One request of a trace: when it came, its line in the file, and its tokens in and out."""

    at_s: float
    line: int
    prompt_tokens: int
    output_tokens: int


def is_trace(named: str | Path) -> bool:
    """Whether it is the name of a trace's file."""
    return Path(named).suffix.lower() == ".csv"


def read_rows(
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
) -> list[TraceRow]:
    """A part of a trace, at least one request of it, in the order in which they came.

    Which part: of the requests that came in the `for_s` seconds from `start_s` after the trace's first, those from
    number `first` on, `count` at most. They keep their distances, divided by `rate`; the first of them comes at 0.
    Token counts are multiplied by `tokens`, rounded, cut to the `most_...` and at least 1. Raises `ScenarioError`.
    """
    if not 0 < rate < math.inf or not 0 < tokens < math.inf:
        raise ScenarioError(f"{path}: rate and tokens must be above 0, and finite.")
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise ScenarioError(f"The trace {path} is no regular file: name a CSV file.")
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = sorted(_rows(csv.reader(file), str(path)))
    except OSError as error:
        raise ScenarioError(f"The trace {path} cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(f"The trace {path} is not CSV: {error}.") from None
    begin_s = rows[0].at_s + start_s if rows else 0.0
    window = (row for row in rows if begin_s <= row.at_s < begin_s + for_s)
    chosen = list(islice(window, first, None if count is None else first + count))
    if not chosen:
        raise ScenarioError(f"{path}: none of its {len(rows):,} requests is in the part that was asked for.")
    origin_s = chosen[0].at_s

    def scaled(of: int, most: int | None) -> int:
        return max(1, min(round(of * tokens), MOST_TOKENS if most is None else most))

    return [
        TraceRow(
            (row.at_s - origin_s) / rate,
            row.line,
            scaled(row.prompt_tokens, most_prompt_tokens),
            scaled(row.output_tokens, most_output_tokens),
        )
        for row in chosen
    ]


def _rows(lines: Iterable[list[str]], where: str) -> Iterator[TraceRow]:
    """With seconds from a fixed moment."""
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
            yield TraceRow(
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
