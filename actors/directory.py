"""Which sockets there are, by number.

Messages name connections by number, so that they can be encoded; this turns the number back into an address. Knows
nothing of what is sent.
"""

from typing import Any

from actors.actor import Address
from protocol.messages import (
    Accepted,
    CloseConnection,
    ConnectionId,
    Drain,
    Ended,
    FrameReceived,
    GraceOver,
    Moved,
    NothingLeft,
    PromptRead,
    ReaderLeft,
    Refused,
    RelayCancel,
    Relayed,
    RelayEnded,
    RelayTaken,
    Released,
    Resume,
    Show,
    SocketLost,
    Started,
    Text,
    WorkerLost,
    WriterIdle,
)

ToConnection = (
    Accepted
    | Moved
    | Refused
    | Started
    | PromptRead
    | Ended
    | Released
    | Text
    | Resume
    | Relayed
    | RelayTaken
    | RelayCancel
    | RelayEnded
    | ReaderLeft
    | GraceOver
    | CloseConnection
    | Drain
    | WorkerLost
)
"""What other actors, and other connections, send to a connection."""
ToWatcher = Show | CloseConnection | Drain | WorkerLost
"""What they send to a socket that only watches. It is listed here too, so that it is closed as the others are."""
ConnectionInbox = ToConnection | FrameReceived | SocketLost | WriterIdle | NothingLeft
WatcherInbox = ToWatcher | SocketLost | WriterIdle


class Directory:
    """Addresses of the open connections. A connection stays listed until its last request has ended, and nothing of it
    can be resumed any more."""

    def __init__(self) -> None:
        self._addresses: dict[ConnectionId, Address[Any]] = {}
        self._last = 0

    def add(self, address_of: Address[ConnectionInbox] | Address[WatcherInbox], connection: ConnectionId) -> None:
        self._addresses[connection] = address_of

    def next_id(self) -> ConnectionId:
        self._last += 1
        return self._last

    def remove(self, connection: ConnectionId) -> None:
        self._addresses.pop(connection, None)

    def tell(self, connection: ConnectionId, message: ToConnection | ToWatcher) -> None:
        """Send to that connection; when it is no longer listed there is nobody left to tell."""
        address = self._addresses.get(connection)
        if address is not None:
            address.tell(message)

    def tell_all(self, message: Drain | WorkerLost) -> None:
        for address in list(self._addresses.values()):
            address.tell(message)

    def __contains__(self, connection: ConnectionId) -> bool:
        return connection in self._addresses

    def __len__(self) -> int:
        return len(self._addresses)
