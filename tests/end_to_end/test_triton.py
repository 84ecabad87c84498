"""The kernels for GPUs behind real sockets, in Triton's interpreter: they answer as `transformers` does."""

from pathlib import Path

from tests.end_to_end.conftest import Start
from tests.end_to_end.reference import Reference
from tests.end_to_end.test_exactness import assert_exact, together

PROMPTS = ["Why?", "Hello there", "A"]
TOKENS = 5


async def test_a_server_on_our_triton_kernels_answers_as_transformers_would(
    own: Start, legible_folder: Path, legible: Reference
) -> None:
    """Chunks and decode rows together, and one request that has to wait, two steps in flight."""
    arguments = ("--model", str(legible_folder), "--dtype", "float32", "--device", "cpu", "--kernels", "triton")
    small = ("--max-running", "2", "--chunk-tokens", "8", "--max-context", "96")
    server = own(*arguments, *small, environment={"TRITON_INTERPRET": "1"})
    for text, answer in zip(PROMPTS, await together(server, PROMPTS, TOKENS), strict=True):
        assert_exact(answer, legible.answer(text, TOKENS))
    await server.empty()
    assert "our Triton kernels" in server.output + server.errors
