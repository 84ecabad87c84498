"""`python -m tests.gpu.check`: what only a GPU can show, in one run of under 6 minutes. `make gpu-check` is the same.

Each part runs in a process of its own with a time limit, so that one that fails leaves the others' findings. Prints a
table, and writes it and the same as JSON to `--out`, by default `tests/gpu/results`. Ends with 0 when all is as wanted,
1 when something is not or a part failed, 2 when it cannot be run at all.

Needs a CUDA GPU, and of Python's packages torch, triton, transformers, psutil and what `rota serve` and `rota load`
import; no network. `--smoke` tries the check itself, on a CPU, with tiny shapes; its times mean nothing.

Knows the parts, their order and their limits. Knows nothing of what they measure.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.gpu.findings import Part, as_json, read, shown

ALL_S = 345.0
"""For everything: what is left of it is a part's limit, where that is less than the part's own."""
MARK = "GPU_CHECK_PART"
"""A variable in the environment of all that a part starts, by which it is found and ended with the part."""
PARTS = {
    "timing": 40.0,
    "kernels_exact": 90.0,
    "engine_exact": 60.0,
    "attention_speed": 60.0,
    "model": 40.0,
    "decode_speed": 90.0,
    "sockets": 90.0,
    "rivals": 90.0,
}
"""Seconds for each, in their order: copying first, as others are told by it, and the model before who runs it."""
NEEDED = ("torch", "triton", "transformers", "psutil", "msgspec", "structlog", "websockets", "rota")
ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
HEADINGS = ("", "figure", "unit", "wanted", "", "")
LAST_LINES = 12


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.check", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, metavar="DIR", help="[tests/gpu/results; of a trial, nowhere]")
    parser.add_argument("--only", metavar="PART,PART", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--limits", type=float, default=1.0, metavar="TIMES", help="so many times as long [1]")
    parser.add_argument("--smoke", action="store_true", help="try the check itself, on a CPU")
    args = parser.parse_args(arguments)
    if unknown := set(args.only.split(",")) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}: they are {', '.join(PARTS)}")
    if why := _cannot(args.smoke):
        print(why, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        parts = run(args.only.split(","), Path(folder), args.smoke, args.limits)
    told = told_of(args.smoke)
    table = "\n".join([told["heading"], "", *rows(parts, args.smoke), "", *sentences(parts, args.smoke)]) + "\n"
    print(table, end="")
    out = args.out or (None if args.smoke else RESULTS)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        name = time.strftime("%Y-%m-%d-%H%M%S", time.gmtime())
        (out / f"{name}.txt").write_text(table)
        parts_told = {"parts": [as_json(it) for it in parts]}
        (out / f"{name}.json").write_text(json.dumps(told | parts_told, indent=1) + "\n")
    return 1 if any(it.failed or wrong(it, args.smoke) for it in parts) else 0


def _cannot(smoke: bool) -> str:
    """Why the check cannot be run, or nothing."""
    missing = [name for name in NEEDED if not _there(name)]
    if missing:
        how = "pip install --no-deps --no-build-isolation -e ." if missing == ["rota"] else "pip install from wheels"
        return f"The check needs {', '.join(missing)}, which this Python does not have: {how}."
    import torch

    if not (smoke or torch.cuda.is_available()):
        return "The check needs a CUDA GPU, and torch sees none here; --smoke tries the check itself without one."
    return ""


def _there(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def run(names: Sequence[str], folder: Path, smoke: bool, times: float = 1.0) -> list[Part]:
    """One after another, within `times` as much time as is their limit."""
    ends_s = time.monotonic() + ALL_S * times
    parts: list[Part] = []
    copied: float | None = None
    for name in names:
        limit_s = min(PARTS[name] * times, ends_s - time.monotonic())
        if limit_s <= 0:
            parts.append(Part(name, failed=f"not begun: {ALL_S:.0f} s had gone by"))
            continue
        parts.append(_run(name, folder, smoke, copied, limit_s))
        copied = parts[-1].value("copy on the device") or copied
        print(f"{name}: {parts[-1].took_s:.0f} s{', failed' if parts[-1].failed else ''}", file=sys.stderr, flush=True)
    return parts


def _run(name: str, folder: Path, smoke: bool, copied: float | None, limit_s: float) -> Part:
    findings, log = folder / f"{name}.json", folder / f"{name}.log"
    command = [sys.executable, "-m", "tests.gpu.part", name, "--folder", str(folder), "--findings", str(findings)]
    command += ["--smoke"] if smoke else []
    command += [] if copied is None else ["--copy-bytes-per-s", str(copied * 1e9)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
    environment |= {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", MARK: str(findings)}
    began_s = time.monotonic()
    with log.open("wb") as said:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end_all(str(findings))
            process.wait()
    failed = "" if code == 0 else f"did not end within {limit_s:.0f} s" if code is None else f"ended with code {code}"
    if failed:
        last = log.read_text(errors="replace").strip().splitlines()[-LAST_LINES:]
        print("\n".join([f"{name} {failed}:", *last]), file=sys.stderr)
        failed += f": {last[-1]}" if last else ""
    return Part(name, read(findings), time.monotonic() - began_s, failed)


def _end_all(mark: str) -> None:
    """What a part started may have a session of its own, and outlive it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                process.kill()


def wrong(part: Part, smoke: bool) -> list[str]:
    """Names of figures that are not as wanted; in a trial, but for speeds."""
    return [it.name for it in part.findings if it.met is False and not (smoke and it.timed)]


def told_of(smoke: bool) -> dict[str, str]:
    """Of what machine and what software the figures are."""
    import torch

    device = platform.processor() or platform.machine()
    told = {name: importlib.metadata.version(name) for name in ("torch", "triton", "transformers")}
    if not smoke:
        device = torch.cuda.get_device_name()
        told["cuda"] = str(torch.version.cuda)
    told |= {
        "python": platform.python_version(),
        "device": device,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    software = ", ".join(f"{name} {told[name]}" for name in ("torch", "triton", "transformers", "python"))
    return {"heading": f"{'A trial on ' if smoke else ''}{device}, {software}, {told['at']}"} | told


def rows(parts: Sequence[Part], smoke: bool) -> list[str]:
    """The table, as wide as what is in it. A trial's speeds are not judged."""
    lines: list[tuple[str, ...]] = [HEADINGS]
    for part in parts:
        lines.append((part.name.upper(), "", "", "", "", part.failed))
        for it in part.findings:
            met = {True: "yes", False: "NO", None: ""}[None if smoke and it.timed else it.met]
            lines.append((it.name, shown(it.value), it.unit, it.wanted, met, it.note))
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    right = (1, 3)
    return [
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def sentences(parts: Sequence[Part], smoke: bool) -> list[str]:
    not_met = [name for part in parts for name in wrong(part, smoke)]
    failed = [part.name for part in parts if part.failed]
    took = f"It took {sum(part.took_s for part in parts):.0f} s."
    return [
        took,
        *([f"Failed: {', '.join(failed)}."] if failed else []),
        *([f"Not as wanted: {'; '.join(not_met)}."] if not_met else []),
        *([] if failed or not_met else ["All is as wanted."]),
        *(["This was a trial of the check on a CPU: its times mean nothing."] if smoke else []),
    ]


if __name__ == "__main__":
    sys.exit(main())
