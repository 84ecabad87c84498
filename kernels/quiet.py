"""Keeps transformers' own remarks and progress bars out of our log. Knows nothing else."""

from typing import Any


def quiet_transformers() -> None:
    """Only errors from here on: what a person should know of a model, rota says itself."""
    from transformers.utils import logging

    untyped: Any = logging
    untyped.set_verbosity_error()
    untyped.disable_progress_bar()
