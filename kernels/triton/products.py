"""The product of two tiles, the same on a GPU and in Triton's interpreter.

Knows which precision each number format gets. Knows nothing of what is multiplied.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
"""Whether kernels run on the CPU, in Triton's interpreter."""


@triton.jit
def product(a, b, added):
    """`a @ b + added`: `a` `[m, k]` and `b` `[k, n]` of one format, `added` `[m, n]` float32, as the result is.

    Sixteen places of k at a time, in their order, whatever m and n are. float32 is multiplied as such, not as TF32.

    `b` must not be a transposed view: in the interpreter a row's sums would be in an order that depends on its place.
    """
    if INTERPRETED:
        # It keeps bfloat16 as bare bits and would multiply those. A product of two is exact in float32.
        return tl.dot(a.to(tl.float32), b.to(tl.float32), added, input_precision="ieee")
    return tl.dot(a, b, added, input_precision="ieee")
