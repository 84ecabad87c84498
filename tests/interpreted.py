"""Has Triton's kernels run in its interpreter, on the CPU. To be imported before anything that may import Triton.

Triton looks when its own library of functions is imported, and again for each kernel. The variable is not left behind:
servers that tests start are to run as anybody's.
"""

import os

_before = os.environ.get("TRITON_INTERPRET")
os.environ["TRITON_INTERPRET"] = "1"

import triton.language  # noqa: E402

if _before is None:
    del os.environ["TRITON_INTERPRET"]
triton.knobs.runtime.interpret = True
