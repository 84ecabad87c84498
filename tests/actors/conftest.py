"""What the tests of actors share: a vocabulary, an engine in virtual time, rigs and houses that are closed after each.

Their modules are imported by the tests that use them: they bring the official client, which takes seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from actors.directory import ConnectionInbox
    from actors.vocabulary import Vocabulary
    from tests.actors.connection_rig import MakeRig
    from tests.actors.engine_house import House
    from tests.actors.server_house import House as ServerHouse
    from tests.actors.server_house import MakeHouse


@pytest.fixture(scope="session")
def vocabulary() -> "Vocabulary":
    """One token a byte, and ChatML."""
    from tests.simulation.seeds import small_vocabulary

    return small_vocabulary()


@pytest.fixture
def live(vocabulary: "Vocabulary", monkeypatch: pytest.MonkeyPatch) -> "Callable[..., House]":
    """`engine_house.live_with` this vocabulary, and a house that keeps what its connections are told."""
    from actors.connection import Connection
    from tests.actors.engine_house import live_with

    houses: list[House] = []
    handle = Connection.handle

    def keep(self: Connection, message: "ConnectionInbox") -> None:
        houses[-1].told.setdefault(self._id, []).append(message)
        handle(self, message)

    def run(
        scene: "Callable[[House], Coroutine[Any, Any, None]]",
        *,
        prepare: "Callable[[House], None]" = lambda house: None,
        **how: Any,
    ) -> "House":
        def known(house: "House") -> None:
            houses.append(house)
            prepare(house)

        return live_with(vocabulary, scene, prepare=known, **how)

    monkeypatch.setattr(Connection, "handle", keep)
    return run


@pytest_asyncio.fixture
async def make_rig() -> "AsyncIterator[MakeRig]":
    from tests.actors.connection_rig import Rig

    rigs: list[Rig] = []

    def make(**options: Any) -> Rig:
        rigs.append(Rig(**options))
        return rigs[-1]

    yield make
    for rig in rigs:
        if not rig.serving.done():
            await rig.leave()


@pytest_asyncio.fixture
async def make_house() -> "AsyncIterator[MakeHouse]":
    from tests.actors.server_house import House as ServerHouse

    houses: list[ServerHouse] = []

    async def make(*args: Any, **settings: Any) -> "ServerHouse":
        house = ServerHouse(*args, **settings)
        await house.server.start()
        houses.append(house)
        return house

    yield make
    for house in houses:
        await asyncio.wait_for(house.server.close(), 10)
