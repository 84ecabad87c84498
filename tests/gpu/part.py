"""One part of the check, in a process of its own: `python -m tests.gpu.part NAME`, as `check.py` starts it.

Knows where each part stands. A part is a module with `measure(conditions)`, which gives findings one by one, so that
what was found before it fails is kept.
"""

import argparse
import importlib
import os
from pathlib import Path

from tests.gpu.findings import Conditions, write


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--findings", type=Path, required=True)
    parser.add_argument("--copy-bytes-per-s", type=float)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    if args.smoke:
        os.environ["TRITON_INTERPRET"] = "1"  # before anything of Triton's is imported
    conditions = Conditions("cpu" if args.smoke else "cuda", args.smoke, args.folder, args.copy_bytes_per_s)
    found = []
    for finding in importlib.import_module(f"tests.gpu.{args.name}").measure(conditions):
        found.append(finding)
        write(args.findings, found)


if __name__ == "__main__":
    main()
