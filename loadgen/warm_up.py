"""The first requests to a server: they wake it, and tell how long a text must be there to be so many tokens.

Knows prompts by their number of words, digits and marks, most of which are a token each in every vocabulary, and the
line that fits what the server counted. Knows no tokeniser and no chat template: both are in what the server counts.
"""

import asyncio
import re
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from loadgen.bodies import Asking, conversation, prepared
from loadgen.client import Askable, Unreachable
from loadgen.exact_words import exact
from loadgen.exchange import Exchange
from loadgen.lanes import LaneSocket
from loadgen.prompts import prompt

FEWEST_PIECES = 8
"""By then two prompts differ."""
PROBES = ((90, 8), (400, 32), (1500, 32))
"""Pieces, and output tokens. The first goes alone, the others together, so that prefill and decode share steps."""
WORDS = (16, 80)
"""Of the probes that `count_words` sends."""
_FIRST_INDEX = 10**6
"""Of the prompts, far from those of a scenario."""
_PIECE = re.compile(r"[A-Za-z]+|[0-9]|[^\w\s]")


class Lengths(Struct, frozen=True):
    """A prompt of n pieces is `fixed + each * n` tokens: within some 3 % from 200 tokens on, 1 % from 1,000."""

    fixed: float
    each: float

    def pieces(self, tokens: int) -> int:
        """For a prompt of about so many tokens; a chat template may leave no room for fewer."""
        return max(FEWEST_PIECES, round((tokens - self.fixed) / self.each))


def text(seed: int, index: int, pieces: int) -> str:
    """Prose of exactly so many pieces. Two of different `seed` or `index` differ within their second word."""
    prose = prompt(seed, index, pieces * 2 + 100)
    last = next(islice(_PIECE.finditer(prose), pieces - 1, None))
    return prose[: last.end()]


def request(model: str, lane: str, prose: str, output_tokens: int, **more: Any) -> bytes:
    """One `response.create` on a lane of its own: greedy, and as long as asked."""
    return msgspec.json.encode(
        {
            "type": "response.create",
            "model": model,
            "stream_id": lane,
            "input": prose,
            "max_output_tokens": output_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "store": False,
            **more,
        }
    )


async def warm_up(socket: LaneSocket, model: str, seed: int, most_tokens: int) -> Lengths:
    """Send the probes, but for the first none above `most_tokens`, and fit the line.

    Raises `Unreachable` when one comes to nothing.
    """

    async def ask(number: int, pieces: int, output_tokens: int) -> int:
        exchange = Exchange(0, number)
        lane = f"warm-up-{number}"
        body = request(model, lane, text(seed, _FIRST_INDEX + number, pieces), output_tokens)
        await socket.ask(lane, body, exchange)
        if exchange.outcome != "finished" or not exchange.input_tokens:
            said = exchange.message or exchange.code or exchange.outcome
            raise Unreachable(f"A first request to the server came to nothing: {said}")
        return exchange.input_tokens

    (few, out), *others = PROBES
    low = await ask(0, few, out)
    most = max(few + 1, few * most_tokens // low)
    sizes = [(min(pieces, most), out) for pieces, out in others]
    *_, high = await asyncio.gather(*(ask(number, *size) for number, size in enumerate(sizes, 1)))
    each = max((high - low) / (sizes[-1][0] - few), 0.1)
    return Lengths(low - each * few, each)


async def count_words(socket: Askable, asking: Asking, seed: int) -> Lengths:
    """How many tokens a server counts of a prompt of n of our words (`exact_words`).

    Where each of them is one token to it, the prompts made with this are exactly as long as asked. Raises `Unreachable`
    when a probe comes to nothing, or the server does not count.
    """
    counts = []
    for number, words in enumerate(WORDS):
        exchange = Exchange(0, number)
        request = prepared(asking, exact(seed, _FIRST_INDEX + number, words), 1)
        await socket.ask(conversation(asking.api).body(request), exchange)
        if exchange.outcome != "finished" or not exchange.input_tokens:
            said = exchange.message or exchange.code or "it counts no tokens"
            raise Unreachable(f"How long a prompt must be cannot be found out from the server: {said}")
        counts.append(exchange.input_tokens)
    each = (counts[1] - counts[0]) / (WORDS[1] - WORDS[0])
    return Lengths(counts[0] - each * WORDS[0], max(each, 0.1))
