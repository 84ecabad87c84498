from collections.abc import Iterator

import pytest
from triton.runtime import interpreter


@pytest.fixture(scope="session", autouse=True)
def patched_once() -> Iterator[None]:
    """The interpreter patches Triton's language anew for each function that a kernel calls: four fifths of the time."""
    scope = interpreter._patch_lang(interpreter.tl.standard.zeros.fn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter.InterpretedFunction, "__call__", lambda self, *a, **k: self.rewrite()(*a, **k))
        yield
    scope.restore()
