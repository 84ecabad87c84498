"""How a message travels: the kinds of messages, and what they are about.

Three base classes say it:

- `Data`: prompts, steps, tokens. Bounded and in order; a full lane is the sender's to answer for (`offer`).
- `Control`: never waits behind data and never blocks its sender (`tell`). Keyed by (type, `key`): the latest wins.
- `Merging`: joins the one of its kind that already waits under its key (`tell`), so text never waits for a socket.

Knows the lanes a message travels in and the key under which a newer one replaces it. Knows no message, and nothing of
mailboxes and asyncio.
"""

from typing import Literal

from msgspec import Struct

RequestId = str
ConnectionId = int

FinishReason = Literal["stop", "stop_text", "length", "prefilled", "cancelled", "deadline", "failed"]
"""How a request ended, in the words every part of rota uses (DESIGN, "Words for a request's life")."""


class Data(Struct, frozen=True, tag=True):
    """A message of the bounded, ordered lane."""


class Control(Struct, frozen=True, tag=True):
    """A message of the lane that overtakes. `key` names what it is about: a newer one replaces an older one."""

    @property
    def key(self) -> object:
        raise TypeError(f"{type(self).__name__} does not say what it is about")


class RequestControl(Control, frozen=True):
    """A control message about one request."""

    request: RequestId

    @property
    def key(self) -> object:
        return self.request


class ConnectionControl(Control, frozen=True):
    """A control message about one socket."""

    connection: ConnectionId

    @property
    def key(self) -> object:
        return self.connection


class SingleControl(Control, frozen=True):
    """A control message of which only the newest matters, whatever it is about."""

    @property
    def key(self) -> object:
        return None


class Merging(Struct, frozen=True, tag=True):
    """A message that joins the waiting one of its key instead of queueing behind it."""

    request: RequestId

    @property
    def key(self) -> object:
        return self.request
