"""What a part of the check finds, how it is written down for the others, and on what it is found.

Knows no kernel and no model.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Conditions:
    """`smoke`: tiny shapes on a CPU, in Triton's interpreter, to try the check itself. Its times mean nothing."""

    device: str
    smoke: bool
    folder: Path
    """With the model that all parts share (`model.py`)."""
    copy_bytes_per_s: float | None = None
    """What a copy on the device moves, read and written; known once it has been measured."""

    @property
    def kernels(self) -> str:
        """What a model is run by. Triton's interpreter takes minutes for one."""
        return "torch" if self.smoke else "triton"


@dataclass(frozen=True)
class Finding:
    """A figure. `most` or `least` is what it must not pass."""

    name: str
    value: float
    unit: str
    most: float | None = None
    least: float | None = None
    note: str = ""
    timed: bool = False
    """A speed: on a CPU it means nothing."""

    @property
    def met(self) -> bool | None:
        """Whether it is as wanted; None when nothing is. What is no number meets nothing."""
        if self.most is None and self.least is None:
            return None
        return (self.most is None or self.value <= self.most) and (self.least is None or self.value >= self.least)

    @property
    def wanted(self) -> str:
        bounds = [f"<= {shown(self.most)}"] if self.most is not None else []
        return " ".join(bounds + ([f">= {shown(self.least)}"] if self.least is not None else []))


@dataclass(frozen=True)
class Part:
    """What came of a part. `failed` says why there may be no findings, or not all of them."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    took_s: float = 0.0
    failed: str = ""

    def value(self, name: str) -> float | None:
        return next((it.value for it in self.findings if it.name == name), None)


def write(file: Path, findings: list[Finding]) -> None:
    file.write_text(json.dumps([asdict(it) for it in findings]))


def read(file: Path) -> list[Finding]:
    """Nothing where a part has not come so far as to write any."""
    return [Finding(**it) for it in json.loads(file.read_text())] if file.exists() else []


def as_json(part: Part) -> dict[str, Any]:
    found = [asdict(it) | {"met": it.met} for it in part.findings]
    return {"name": part.name, "took_s": round(part.took_s, 1), "failed": part.failed, "findings": found}


def shown(value: float | None) -> str:
    """Three figures, and no more of a large number than its whole."""
    if value is None:
        return ""
    if value != value or abs(value) == float("inf") or (value and abs(value) < 1e-3):
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
