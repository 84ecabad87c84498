"""Keys that were typed on the command line are taken off it: everyone on the machine can read it (`ps`).

Knows how a process starts itself anew with other arguments. Knows nothing of what a key is.
"""

import os
import sys
from collections.abc import Mapping, Sequence

_VARIABLE = "ROTA_API_KEYS"
_FLAG, _SHORTEST = "--api-keys", "--ap"


def keys_out_of_sight(line: Sequence[str], environment: Mapping[str, str]) -> None:
    """Where `rota serve` was given `--api-keys`, begin again with them in the environment. Else return.

    A flag wins over the environment, so nothing else changes by it. It can be read for the first moments; a file of
    hashes (`--keys-file`) never can.
    """
    rest, keys = parted(line)
    if keys and "serve" in line and sys.executable:
        os.execve(sys.executable, [sys.executable, *rest[1:]], {**environment, _VARIABLE: ",".join(keys)})


def parted(line: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without those that are keys, and the keys."""
    rest: list[str] = []
    keys: list[str] = []
    arguments = iter(line)
    for argument in arguments:
        name, joined, value = argument.partition("=")
        # Flags may be shortened as long as they are clear.
        if not (name.startswith(_SHORTEST) and _FLAG.startswith(name)):
            rest.append(argument)
        elif joined:
            keys.append(value)
        elif (following := next(arguments, None)) is not None:
            keys.append(following)
        else:
            rest.append(argument)  # for the parser to complain of
    return rest, keys
