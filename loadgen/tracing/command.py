"""`rota trace`: reads what `rota serve --trace FILE` wrote and says where the time went."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `rota trace`."""
    raise NotImplementedError


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed and return the exit code."""
    raise NotImplementedError
