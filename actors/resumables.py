"""Which responses can be resumed, and on which connection each is at home: an address book, as the directory is.

Knows whose each is, and how much may be kept that nobody reads. Knows nothing of what was said in them.
"""

from msgspec import Struct

from actors.lanes import Lane
from protocol.messages import ConnectionId, RequestId


class Berth(Struct):
    """Where a response is at home, and the lane it was asked on."""

    home: ConnectionId
    lane: Lane
    size: int | None = None
    """In bytes, of one that takes a place among what nobody reads."""
    over: bool = False
    """It has had its end, and its client has been told so: it can give way."""

    @property
    def unread(self) -> bool:
        return self.size is not None


class Room(Struct, frozen=True):
    """How many responses may be kept that nobody reads, and of what size together."""

    number: int
    size: int

    def with_more(self, number: int, size: int) -> "Room":
        return Room(self.number + number, self.size + size)

    def holds(self, taken: "Room") -> bool:
        return taken.number <= self.number and taken.size <= self.size


PER_KEY = Room(256, 64 * 2**20)
IN_ALL = Room(1024, 256 * 2**20)


class Resumables:
    """By key (tenant) and id, so that whoever asks with another key finds what he would find of an id that never was.

    Each that is kept while nobody reads it holds what it has told, which may be much: 20 alternatives of each token are
    some 2.5 KB a token. So the `Room` for them is bounded both ways, `per_key` and `in_all`.
    """

    def __init__(self, *, per_key: Room = PER_KEY, in_all: Room = IN_ALL) -> None:
        self._per_key = per_key
        self._in_all = in_all
        self._berths: dict[str, dict[RequestId, Berth]] = {}
        self._unread: dict[str, dict[RequestId, Berth]] = {}
        """By key, who came first comes first."""
        self._taken: dict[str, Room] = {}
        """What they take of the room of each key."""
        self._taken_in_all = Room(0, 0)

    def add(self, tenant: str, request: RequestId, home: ConnectionId, lane: Lane) -> None:
        self._berths.setdefault(tenant, {})[request] = Berth(home, lane)

    def find(self, tenant: str, request: RequestId) -> Berth | None:
        return self._berths.get(tenant, {}).get(request)

    def leave_unread(
        self, tenant: str, request: RequestId, size: int, *, over: bool
    ) -> tuple[bool, tuple[RequestId, ...]]:
        """Whether it may be kept though nobody reads it, and which others of its key gave way for it: of those that
        are over the first that came, and no more than need be."""
        berth = self._berths[tenant][request]
        berth.over = over
        if berth.unread:
            return True, ()
        unread = self._unread.get(tenant, {})
        mine = self._taken.get(tenant, Room(0, 0)).with_more(1, size)
        in_all = self._taken_in_all.with_more(1, size)
        give_way: list[RequestId] = []
        may_give_way = ((name, one.size or 0) for name, one in unread.items() if one.over)
        while not (self._per_key.holds(mine) and self._in_all.holds(in_all)):
            other, freed = next(may_give_way, (None, 0))
            if other is None:
                return False, ()
            give_way.append(other)
            mine, in_all = mine.with_more(-1, -freed), in_all.with_more(-1, -freed)
        for other in give_way:
            self.read(tenant, other)
        berth.size = size
        self._unread.setdefault(tenant, {})[request] = berth
        self._taken[tenant], self._taken_in_all = mine, in_all
        return True, tuple(give_way)

    def read(self, tenant: str, request: RequestId) -> None:
        """Somebody reads it (again)."""
        unread = self._unread.get(tenant, {})
        berth = unread.pop(request, None)
        if berth is None or berth.size is None:
            return
        self._taken[tenant] = self._taken[tenant].with_more(-1, -berth.size)
        self._taken_in_all = self._taken_in_all.with_more(-1, -berth.size)
        berth.size, berth.over = None, False
        if not unread:
            del self._unread[tenant], self._taken[tenant]

    def remove(self, tenant: str, request: RequestId) -> None:
        """It cannot be resumed any more."""
        self.read(tenant, request)
        berths = self._berths.get(tenant)
        if berths is not None and berths.pop(request, None) is not None and not berths:
            del self._berths[tenant]

    @property
    def unread(self) -> int:
        """How many are kept that nobody reads."""
        return self._taken_in_all.number

    def __len__(self) -> int:
        return sum(map(len, self._berths.values()))
