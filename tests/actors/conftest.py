"""What the tests of the connection and of the server share: each test's rigs and houses are closed after it.

Their modules are imported by the tests that use them: they bring the official client, which takes seconds.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest_asyncio

if TYPE_CHECKING:
    from tests.actors.connection_rig import MakeRig
    from tests.actors.server_house import MakeHouse


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
    from tests.actors.server_house import House

    houses: list[House] = []

    async def make(*args: Any, **settings: Any) -> House:
        house = House(*args, **settings)
        await house.server.start()
        houses.append(house)
        return house

    yield make
    for house in houses:
        await asyncio.wait_for(house.server.close(), 10)
