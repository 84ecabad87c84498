"""`python -m tests.end_to_end.exactness`: twenty prompts of 1 to 2,000 tokens to the real model, beside `transformers`.

Each is answered in float32 with 32 tokens: alone, all together, in chunks of 16, 64 and 512; and with 64 tokens and so
few blocks that requests are preempted. Prints a table of how many answers are the reference's, token for token, and
exits with 1 unless all are, or when nothing was preempted. Takes some minutes, which is why CI runs only a few prompts
of it (`test_exactness.py`).
"""

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kernels.checkpoint import resolve
from kernels.default_model import DEFAULT_MODEL
from loadgen.prompts import prompt
from tests.end_to_end.client import Answer, connected
from tests.end_to_end.reference import Expected, Reference
from tests.end_to_end.server import serving

TOKENS = 32
LENGTHS = (1, 2, 4, 8, 15, 16, 17, 31, 33, 48, 64, 65, 100, 150, 200, 300, 400, 500, 1000, 2000)
CONTEXT = "2304"
FEW_BLOCKS = "104MiB"
"""One full context of SmolLM2-135M in float32 and little more: 148 blocks of 720 KiB, where all would need 340."""


@dataclass(frozen=True)
class Way:
    """A way of being served."""

    name: str
    chunk_tokens: int
    together: bool
    arguments: tuple[str, ...] = ()
    tokens: int = TOKENS
    ignore_eos: bool = False


WAYS = (
    Way("alone", 256, together=False),
    *(Way(f"together, chunks of {chunk}", chunk, together=True) for chunk in (16, 64, 512)),
    # Large chunks and answers that do not end early, so that many run at once and outgrow the pool.
    Way("together, few blocks", 512, True, ("--kv-memory", FEW_BLOCKS), tokens=2 * TOKENS, ignore_eos=True),
)


def prompts_of(reference: Reference) -> list[str]:
    """Texts that become so many tokens themselves, the template's not counted."""
    texts = []
    for number, length in enumerate(LENGTHS):
        ids = reference.tokeniser.encode(prompt(20, number, 2 * length + 20), add_special_tokens=False)
        texts.append(reference.tokeniser.decode(ids[:length]))
    return texts


async def answers_of(way: Way, folder: Path, texts: list[str]) -> tuple[list[Answer], float, float]:
    """The answers, how often a request was preempted, and how many seconds it took."""
    arguments = ("--dtype", "float32", "--max-context", CONTEXT, "--chunk-tokens", str(way.chunk_tokens))
    with serving(folder, *arguments, *way.arguments) as server:
        async with connected(server) as client:
            began = time.monotonic()
            lanes = [client.lane(f"lane-{number}") for number in range(len(texts))]
            answers = []
            for lane, text in zip(lanes, texts, strict=True):
                await lane.create(text, max_output_tokens=way.tokens, ignore_eos=way.ignore_eos)
                if not way.together:
                    answers.append(await lane.answer())
            if way.together:
                answers = [await lane.answer() for lane in lanes]
            took_s = time.monotonic() - began
        return answers, (await server.empty()).value("rota_preemptions_total"), took_s


def equal(answer: Answer, expected: Expected) -> bool:
    figures = (answer.usage["input_tokens"], answer.usage["output_tokens"])
    return answer.text == expected.text and figures == (expected.input_tokens, expected.output_tokens)


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.exactness", description=__doc__)
    parser.add_argument("--prompts", type=int, default=len(LENGTHS), help="only the first so many (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the ways whose name has this in it")
    given = parser.parse_args()
    console = Console()
    reference = Reference(resolve(DEFAULT_MODEL).folder)
    texts = prompts_of(reference)[: given.prompts]
    tokens = sum(len(reference.prompt(text)) for text in texts)
    table = Table(title=f"{DEFAULT_MODEL}, float32: {len(texts)} prompts, {tokens:,} tokens in, at most {TOKENS} out")
    for column in ("way", "equal", "preemptions", "seconds", "first that differs"):
        table.add_column(column, justify="left" if column in ("way", "first that differs") else "right")
    right = True
    with tempfile.TemporaryDirectory() as folder:
        for way in [way for way in WAYS if given.only in way.name]:
            with console.status(way.name):
                expected = [reference.answer(text, way.tokens, way.ignore_eos) for text in texts]
                answers, preemptions, took_s = await answers_of(way, Path(folder) / way.name, texts)
            wrong = [
                number
                for number, (answer, one) in enumerate(zip(answers, expected, strict=True))
                if not equal(answer, one)
            ]
            # Blocks that were not too few after all would prove nothing.
            right &= not wrong and (preemptions > 0 or "--kv-memory" not in way.arguments)
            first = f"prompt {wrong[0]}, {LENGTHS[wrong[0]]} tokens" if wrong else ""
            equals = f"{len(texts) - len(wrong)}/{len(texts)}"
            table.add_row(way.name, equals, f"{preemptions:.0f}", f"{took_s:.1f}", first)
            console.print(f"{way.name}: {equals} equal, {took_s:.1f} s")
    console.print(table)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
