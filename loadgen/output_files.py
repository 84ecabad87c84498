"""The files that a command is to write when its work is done, found out before it has begun.

Knows paths and what the system says of them. Knows nothing of what is written.
"""

from collections.abc import Mapping
from pathlib import Path

from loadgen.command_line import Misuse, check_folder


def check_files(files: Mapping[str, Path | None]) -> None:
    """Whether each, by its flag, could be written, before there is anything to write. Raises `Misuse`."""
    flags: dict[Path, str] = {}
    for flag, file in files.items():
        if file is None:
            continue
        check_folder(file)
        _try_writing(file)
        other = flags.setdefault(file.resolve(), flag)
        if other != flag:
            raise Misuse(f"--{other} and --{flag} name the same file: {file}.")


def _try_writing(file: Path) -> None:
    """Leaves what is there as it is. Raises `Misuse`."""
    new = not file.exists()
    if not new and not (file.is_file() or file.is_dir()):
        return  # whoever reads from a pipe would take this for all there is
    try:
        file.open("ab").close()
    except OSError as failed:
        raise Misuse(f"{file} cannot be written: {failed.strerror}.") from None
    if new:
        file.unlink()
