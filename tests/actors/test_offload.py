import asyncio
import threading

import pytest

from actors.offload import OffloadThread, promised


async def test_work_is_done_in_another_thread_and_its_result_comes_back_to_the_loop() -> None:
    offload = OffloadThread()
    results: asyncio.Queue[tuple[object, bool]] = asyncio.Queue()
    here = threading.get_ident()
    for number in range(3):
        offload(
            lambda number=number: (number, threading.get_ident() != here),  # type: ignore[misc]
            lambda result: results.put_nowait((result, threading.get_ident() == here)),
        )
    assert [await results.get() for _ in range(3)] == [((number, True), True) for number in range(3)]
    offload.close()


async def test_what_work_raises_is_handed_over() -> None:
    offload = OffloadThread()
    result: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    offload(lambda: 1 // 0, result.set_result)
    assert isinstance(await result, ZeroDivisionError)
    offload.close()


async def test_whoever_was_promised_a_result_may_wait_for_it_and_for_an_error_too() -> None:
    offload = OffloadThread()
    assert await promised(offload, lambda: 6 * 7) == 42
    with pytest.raises(ZeroDivisionError):
        await promised(offload, lambda: 1 // 0)
    offload.close()
