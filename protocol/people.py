"""The people of a scenario, drawn: who comes when, asks what, and how they behave.

Knows what a person does, as plain values that a load plays and a test compares. Knows no server and no text.
"""

import math

from msgspec import Struct

from protocol.responses import ServiceTier


class Question(Struct, frozen=True):
    """One request of a person.

    It is sent `think_s` seconds after the person's last answer has ended; the first one when the person has come.
    """

    prompt_tokens: int
    """Of this question alone, without what was said before."""
    output_tokens: int
    think_s: float = 0.0


class Person(Struct, frozen=True):
    """One of those outside: a conversation of one or more questions, on a socket.

    A person comes `at_s` seconds after the start or, when `after` names others, `at_s` seconds after the last of those
    has had the first text of its first answer. When that will never come, neither will this one.
    """

    name: str
    questions: tuple[Question, ...]
    at_s: float = 0.0
    after: tuple[str, ...] = ()
    group: str = ""
    """Of its scenario: figures are told for each."""
    client: str = ""
    """Those of one client share a socket, each request on a lane of its own. "": a socket of one's own."""
    service_tier: ServiceTier = "default"
    ttft_target_s: float = math.inf
    itl_target_s: float = math.inf
    remembers: bool = True
    """Its next question continues the conversation (`previous_response_id`); else each stands alone."""
    leaves_after_s: float | None = None
    """It closes its page so long after its first question was sent, if it is not through by then."""
    leaves_after_chunks: int | None = None
    """It closes its page when it has had so many pieces of text of its first answer."""
    comes_back_s: float | None = None
    """So long after it has left it comes back on another socket and asks the same again, this time to the end.
    None: it never does."""
    reads_chunks_per_s: float | None = None
    """It takes no more from its socket than that. None: all that comes, when it comes."""
    reconnects: bool = False
    """Between two questions it closes its socket and opens another."""
