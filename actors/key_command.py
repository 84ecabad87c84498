"""`rota key NAME`: makes an API key, shows it once, and prints what the file of keys needs of it.

Knows the terminal: the key goes to standard error and the lines for the file to standard output, so that
`rota key anna >> keys.toml` files the one and shows the other. Keeps nothing.
"""

import argparse
import re
import sys

from actors.keys import NAME, NAME_IN_WORDS, new_key, table_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help=f"whose key it is, for the log: {NAME_IN_WORDS}")


def run(args: argparse.Namespace) -> int:
    if not re.fullmatch(NAME, args.name):
        print(f"rota: A key's name is made of {NAME_IN_WORDS}.", file=sys.stderr)
        return 2
    key = new_key()
    print(f"The key of {args.name}, which is shown this once and kept nowhere:", file=sys.stderr)
    print(f"\n  {key}\n", file=sys.stderr)
    print("For the file that --keys-file names:\n", file=sys.stderr, flush=True)
    print(table_of(args.name, key), end="", flush=True)
    return 0
