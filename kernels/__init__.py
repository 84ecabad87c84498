"""What touches tensors: torch and transformers, in a process of its own. Never asyncio, never `actors`.

Hugging Face publishes a package that is also called `kernels`. If it is installed, one of the two shadows the other:
ours breaks, or transformers takes our folder for theirs. `foreign_kernels_package` says whether it is there. It needs
no torch, but `actors` may not import it: the command line makes the same check (three lines) for itself.
"""

import importlib.metadata


class ModelError(Exception):
    """A model cannot be served here. Its text is one sentence for the person who asked for it."""


def foreign_kernels_package() -> str | None:
    """The version of Hugging Face's `kernels` distribution if one is installed in this environment, else None."""
    try:
        return importlib.metadata.version("kernels")
    except importlib.metadata.PackageNotFoundError:
        return None
