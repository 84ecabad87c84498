"""People played on a scripted server, and what became of their requests."""

from collections.abc import Sequence
from typing import Any

from loadgen.exchange import Exchange
from loadgen.figures import Load, Report
from loadgen.measure import play
from loadgen.progress import Nothing
from loadgen.scene import Scene
from protocol.people import Person, Question
from tests.loadgen.chat_server import ChatServer
from tests.loadgen.scripted_server import ScriptedServer

ONE = (Question(20, 3),)


def load(server: ScriptedServer | ChatServer, **changes: Any) -> Load:
    given: dict[str, Any] = {
        "url": server.url,
        "model": "m",
        "sockets": 1,
        "requests_per_socket": 0,
        "max_output_tokens": 3,
        "ignore_eos": True,
        "temperature": 0.0,
        "prompt_tokens": None,
        "warmup": 0,
        "seed": 7,
        "timeout_s": 20.0,
        "api": "chat" if isinstance(server, ChatServer) else "responses",
    }
    return Load(**given | changes)


async def played(
    server: ScriptedServer | ChatServer, *people: Person, scene: dict[str, Any] | None = None, **changes: Any
) -> tuple[Report, Sequence[Exchange]]:
    """`scene` and `changes` in place of what a scene and a load are otherwise."""
    asked = Scene(**{"people": people, "name": "test", **(scene or {})})
    return await play(load(server, sockets=asked.sockets, **changes), asked, None, Nothing())


def questions(*think_s: float) -> tuple[Question, ...]:
    """One at once, and one after each of these."""
    return tuple(Question(20, 3, seconds) for seconds in (0.0, *think_s))
