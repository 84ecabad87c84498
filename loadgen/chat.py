"""`rota chat`: a person at a terminal, talking to a server."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `rota chat`."""
    raise NotImplementedError


def run(args: argparse.Namespace) -> int:
    """Do what `add_arguments` parsed and return the exit code."""
    raise NotImplementedError
