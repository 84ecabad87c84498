"""The kept conversations: what a client may continue from, by the id of the response.

Knows who may see which, and how much is kept for how long. Plain code: time is an argument. Knows nothing of tokens
or messages between actors.
"""

import sys
from collections import OrderedDict, defaultdict

from msgspec import Struct

from actors.prompt import Length
from protocol.input_items import Message
from protocol.messages import ConnectionId, RequestId


class Keeping(Struct, frozen=True):
    """How much is kept of one tenant's conversations. Past `number` or `size` the least recently used go first."""

    number: int = 1_024
    size: int = 64 * 2**20
    """Bytes of text, a history that several conversations share counted once."""
    retain_s: float = 600.0
    """Since it was last continued from."""


class Conversation:
    """The turns added since `parent`, and the answer to them if there was one.

    A history is shared by all that continue it, never copied. `length` is of all of it, from its beginning.
    """

    __slots__ = ("answer", "held", "length", "parent", "size", "turns")

    def __init__(self, parent: "Conversation | None", turns: tuple[Message, ...], answer: str | None = None) -> None:
        self.parent = parent
        self.turns = turns
        self.answer = answer
        own: Length = Length.of(turns if answer is None else (*turns, Message("assistant", answer)))
        self.length: Length = own if parent is None else parent.length + own
        self.size = sys.getsizeof(turns) + sum(sys.getsizeof(turn.text) for turn in turns) + sys.getsizeof(answer)
        self.held = 0
        """By how many it is held in memory: its own entry and its children that are held."""

    def history(self) -> list[Message]:
        """All its turns, oldest first."""
        parts = []
        conversation: Conversation | None = self
        while conversation is not None:
            answer = conversation.answer
            parts.append((*conversation.turns, *(() if answer is None else (Message("assistant", answer),))))
            conversation = conversation.parent
        return [turn for turns in reversed(parts) for turn in turns]


class _Entry(Struct):
    conversation: Conversation
    connection: ConnectionId | None
    """The only one that may continue it; None: any of the tenant's."""
    used_at: float


class Conversations:
    """Conversations of all tenants. One tenant's never push out another's."""

    def __init__(self, keeping: Keeping | None = None) -> None:
        self._keeping = keeping or Keeping()
        self._tenants: dict[str, _Tenant] = {}
        self._private: defaultdict[ConnectionId, set[tuple[str, RequestId]]] = defaultdict(set)

    def keep(
        self, tenant: str, request: RequestId, conversation: Conversation, connection: ConnectionId | None, now: float
    ) -> None:
        """Keep it, in place of an older one of that name. `connection`: only this socket may continue it."""
        kept = self._tenants.setdefault(tenant, _Tenant())
        self._drop(tenant, request)
        kept.add(request, _Entry(conversation, connection, now))
        if connection is not None:
            self._private[connection].add((tenant, request))
        while len(kept.entries) > self._keeping.number or kept.size > self._keeping.size:
            self._drop(tenant, next(iter(kept.entries)))

    def find(self, tenant: str, request: RequestId, connection: ConnectionId, now: float) -> Conversation | None:
        """What `connection` of `tenant` may continue under this name. Finding it counts as use."""
        kept = self._tenants.get(tenant)
        entry = None if kept is None else kept.entries.get(request)
        if kept is None or entry is None or now - entry.used_at > self._keeping.retain_s:
            return None
        if entry.connection is not None and entry.connection != connection:
            return None
        entry.used_at = now
        kept.entries.move_to_end(request)
        return entry.conversation

    def shorten(self, request: RequestId, answer: str) -> None:
        """Whoever reads the conversation of `request` has seen only this much of its answer; forget the rest."""
        for tenant, kept in self._tenants.items():
            entry = kept.entries.get(request)
            if entry is not None and entry.conversation.answer is not None:
                whole = entry.conversation
                shorter = Conversation(whole.parent, whole.turns, answer or None)
                self.keep(tenant, request, shorter, entry.connection, entry.used_at)
                return

    def forget_connection(self, connection: ConnectionId) -> None:
        """Drop what only this socket could continue."""
        for tenant, request in list(self._private.get(connection, ())):
            self._drop(tenant, request)

    def sweep(self, now: float) -> None:
        """Drop what has not been used for too long."""
        for tenant, kept in list(self._tenants.items()):
            while kept.entries:
                request, entry = next(iter(kept.entries.items()))
                if now - entry.used_at <= self._keeping.retain_s:
                    break
                self._drop(tenant, request)
            if not kept.entries:
                del self._tenants[tenant]

    def size(self, tenant: str) -> int:
        """Bytes of text kept for this tenant."""
        kept = self._tenants.get(tenant)
        return 0 if kept is None else kept.size

    def __len__(self) -> int:
        return sum(len(kept.entries) for kept in self._tenants.values())

    def _drop(self, tenant: str, request: RequestId) -> None:
        entry = self._tenants[tenant].remove(request)
        if entry is not None and entry.connection is not None:
            private = self._private[entry.connection]
            private.discard((tenant, request))
            if not private:
                del self._private[entry.connection]


class _Tenant:
    """One tenant's entries, least recently used first, and the size of all that they hold."""

    def __init__(self) -> None:
        self.entries: OrderedDict[RequestId, _Entry] = OrderedDict()
        self.size = 0

    def add(self, request: RequestId, entry: _Entry) -> None:
        self.entries[request] = entry
        conversation: Conversation | None = entry.conversation
        while conversation is not None:
            conversation.held += 1
            if conversation.held > 1:
                break
            self.size += conversation.size
            conversation = conversation.parent

    def remove(self, request: RequestId) -> _Entry | None:
        entry = self.entries.pop(request, None)
        conversation = None if entry is None else entry.conversation
        while conversation is not None:
            conversation.held -= 1
            if conversation.held > 0:
                break
            self.size -= conversation.size
            conversation = conversation.parent
        return entry
