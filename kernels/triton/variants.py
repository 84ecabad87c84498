"""What the compile check is told of each kernel.

Knows how a way to call a kernel is written down. Knows no kernel.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One way in which a kernel is launched.

    `signature` gives every argument its Triton type (`*bf16`, `i32`, `constexpr`); `constexprs` those that are frozen,
    `options` what it is launched with (`num_warps`, `num_stages`, `enable_fp_fusion`).
    """

    kernel: Any
    name: str
    signature: dict[str, str]
    constexprs: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    likely: bool = True
    """Whether it is tried where there is little time. If not, another one has the same tiles."""
