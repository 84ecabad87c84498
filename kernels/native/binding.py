"""The C interface of the CPU kernels, typed.

Knows the structures of stack.h and stack.cpp and how their errors come across. Does not know models or tensors: it
takes addresses.
"""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kernels.native import build


class Unit(IntEnum):
    """What products are made by: `Unit` in matrix.h."""

    VECTORS = 0
    TILES = 1


class Best(IntEnum):
    """The best that this processor can do with bfloat16, `rota_best` in stack.cpp."""

    VECTORS_OF_FLOAT32 = 0
    VECTORS = 1
    TILES = 2


class Shape(ctypes.Structure):
    _fields_ = [
        *(
            (name, c_int32)
            for name in (
                "layers",
                "hidden",
                "intermediate",
                "heads",
                "kv_heads",
                "head_dim",
                "vocabulary",
                "positions",
                "block_size",
                "threads",
                "unit",
            )
        ),
        ("epsilon", c_float),
        ("scale", c_float),
    ]


LAYER_WEIGHTS = (
    "query",
    "key",
    "value",
    "out",
    "gate",
    "up",
    "down",
    "query_bias",
    "key_bias",
    "value_bias",
    "out_bias",
    "attention_norm",
    "mlp_norm",
    "query_norm",
    "key_norm",
)
"""The tensors of a layer, in the order of `LayerWeights` in stack.h."""


class LayerWeights(ctypes.Structure):
    _fields_ = [*((name, c_void_p) for name in LAYER_WEIGHTS), ("window", c_int32)]


class Step(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("tokens", "sequences", "kept", "told", "drawn")),
        *(
            (name, c_void_p)
            for name in (
                "ids",
                "positions",
                "starts",
                "counts",
                "tables",
                "table_begins",
                "keep",
                "wishes",
                "logits",
                "chosen",
            )
        ),
    ]


WISH = np.dtype([("top_p", "f8"), ("min_p", "f8"), ("uniform", "f8"), ("temperature", "f4"), ("top_k", "i4")])
"""`Wish` in draw.h: how one row is sampled."""


class Failed(Exception):
    """The library could not do what it was told; its own words."""


class Library:
    """The functions of one loaded library: the one for this machine, or that in `path`. Raises NotBuilt when there is
    none."""

    def __init__(self, path: Path | None = None) -> None:
        lib: Any = ctypes.CDLL(str(path or build.built_library()))
        for name, result, arguments in (
            ("rota_why", c_char_p, ()),
            ("rota_best", c_int32, ()),
            ("rota_new", c_void_p, (POINTER(Shape), c_int32)),
            ("rota_free", None, (c_void_p,)),
            ("rota_set_layer", c_int32, (c_void_p, c_int32, POINTER(LayerWeights))),
            ("rota_set_ends", c_int32, (c_void_p,) * 6),
            ("rota_set_pages", None, (c_void_p, c_int32, c_void_p)),
            ("rota_bytes", c_int64, (c_void_p,)),
            ("rota_run", c_int32, (c_void_p, POINTER(Step))),
        ):
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = arguments
        self._lib = lib
        # Asking is also what makes the system give tiles to this process, and to threads it starts from now on.
        self.best = Best(lib.rota_best())

    def new(self, shape: Shape, element_bytes: int) -> int:
        made: int | None = self._lib.rota_new(ctypes.byref(shape), element_bytes)
        if made is None:
            raise self._failed()
        return made

    def free(self, stack: int) -> None:
        self._lib.rota_free(stack)

    def set_layer(self, stack: int, layer: int, weights: LayerWeights) -> None:
        self._check(self._lib.rota_set_layer(stack, layer, ctypes.byref(weights)))

    def set_ends(self, stack: int, embedding: int, norm: int, head: int, cosines: int, sines: int) -> None:
        self._check(self._lib.rota_set_ends(stack, embedding, norm, head, cosines, sines))

    def set_pages(self, stack: int, layer: int, tiles: int) -> None:
        self._lib.rota_set_pages(stack, layer, tiles)

    def bytes(self, stack: int) -> int:
        return int(self._lib.rota_bytes(stack))

    def run(self, stack: int, step: Step) -> None:
        self._check(self._lib.rota_run(stack, ctypes.byref(step)))

    def _check(self, done: int) -> None:
        if not done:
            raise self._failed()

    def _failed(self) -> Failed:
        return Failed(self._lib.rota_why().decode())


@cache
def load() -> Library:
    """The library for this machine, built first if need be. Raises NotBuilt."""
    return Library()
