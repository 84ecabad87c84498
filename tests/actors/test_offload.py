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


async def test_everyone_has_a_turn_however_much_work_one_brings() -> None:
    offload = OffloadThread()
    begin = threading.Event()
    order: list[str] = []
    last: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    offload(begin.wait, lambda _: None)
    for whose, name in (("anna", "a1"), ("anna", "a2"), ("anna", "a3"), ("bert", "b1"), ("anna", "a4"), ("bert", "b2")):
        offload(lambda name=name: order.append(name), lambda _: None, whose)  # type: ignore[misc]
    offload(lambda: None, last.set_result, "anna")
    begin.set()
    await last
    assert order == ["a1", "b1", "a2", "b2", "a3", "a4"]
    offload.close()
