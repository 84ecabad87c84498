"""A server that is started for a command, and told to leave."""

import pytest

from loadgen.client import Unreachable
from loadgen.own_server import own_server
from tests.loadgen.stand_in import READY, stand_in


async def test_a_server_of_our_own_is_ready_when_it_says_so_and_is_told_to_leave() -> None:
    script = f"say('Loading.'); say('x' * 2**21); say({READY!r})\nsignal.pause()"
    async with own_server(["--policy", "slack"], stand_in(script)) as server:
        assert (server.url, server.model) == ("ws://127.0.0.1:9/v1/responses", "m")


async def test_it_is_made_to_leave_when_it_does_not_and_when_the_block_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.child.LEAVE_S", 0.1)
    script = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); say({READY!r})\nwhile True: signal.pause()"
    with pytest.raises(ZeroDivisionError):
        async with own_server([], stand_in(script)):
            raise ZeroDivisionError


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("say('{\"event\": \"x\"}'); say('rota: No such model.'); sys.exit(2)", r"^rota serve: No such model\.$"),
        ("say('Traceback'); say('KeyError: 3'); sys.exit(1)", r"^rota serve ended with code 1: KeyError: 3$"),
        ("sys.exit(3)", r"^rota serve ended with code 3$"),
    ],
)
async def test_a_server_that_does_not_start_is_told_in_its_own_words(script: str, said: str) -> None:
    with pytest.raises(Unreachable, match=said):
        async with own_server([], stand_in(script)):
            pytest.fail("it was not ready")
