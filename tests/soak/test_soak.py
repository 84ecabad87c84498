"""A minute of the soak, and that it would notice: what is left, what is lost, what is said twice."""

import json
from pathlib import Path
from typing import Any

from msgspec import structs

from tests.models import make_small_model
from tests.soak.__main__ import table_of
from tests.soak.books import Account, Ledger
from tests.soak.readings import Readings
from tests.soak.run import left, soak

SECONDS = 60.0
CLEAN = Readings(
    rss=100_000_000,
    files={"socket": 9},
    tasks={"reaper handler": 1},
    objects={"Mailbox": 8},
    blocks={"free": 10, "cached": 2, "used": 0},
    requests={"queued": 0},
    connections=0,
    watchers=0,
    waiting_messages=0,
    children=1,
    restarts=1,
    aside=50_000,
)


async def test_after_a_minute_of_everything_nothing_is_left(tmp_path: Path) -> None:
    model = make_small_model(tmp_path / "model", max_position_embeddings=2048)
    outcome = await soak(tmp_path / "server", model, seconds=SECONDS, seed=1, people=4, every_s=12.0)
    assert outcome.faults == []
    assert sum(outcome.ledger.acts.values()) > 100
    assert set(outcome.ledger.acts) >= {
        "chats",
        "cancels",
        "blinks",
        "blinks and comes back",
        "reads slowly",
        "sends bad frames",
    }
    assert outcome.ledger.resumed > 0
    assert sum(outcome.broken.values()) >= 1
    assert outcome.end.restarts >= 1
    assert outcome.warm.aside > 10_000
    assert table_of(outcome).row_count > 20


def test_whatever_is_left_is_named() -> None:
    assert left(CLEAN, CLEAN) == []
    wrong: dict[str, Any] = {
        "connections": 1,
        "waiting_messages": 2,
        "blocks": {"free": 9, "cached": 2, "used": 1},
        "requests": {"queued": 1},
        "objects": {"Mailbox": 8, "Connection": 1},
        "files": {"socket": 10},
        "tasks": {"reaper handler": 1, "connection N reader": 1},
        "children": 2,
        "rss": 105_100_000,
    }
    for name, value in wrong.items():
        found = left(CLEAN, structs.replace(CLEAN, **{name: value}))
        assert len(found) == 1, f"{name}: {found}"
    assert left(CLEAN, structs.replace(CLEAN, rss=104_900_000)) == []
    assert left(CLEAN, structs.replace(CLEAN, blocks={"free": 9, "cached": 2, "used": 0})) != [], "a block is missing"


def ledger_of(*codes: str, asked: int = 1, silent: bool = False) -> Ledger:
    """What is in the books of a socket that asked so often and heard these errors."""
    ledger = Ledger()
    account = Account(ledger, "asks")
    for _ in range(asked):
        account.sent(None)
    for code in codes:
        account.heard(json.dumps({"type": "error", "error": {"code": code}}))
    account.close(silent=silent)
    return ledger


def test_a_request_has_one_end_or_its_socket_was_closed() -> None:
    ledger = ledger_of("invalid_json", asked=2)
    assert (ledger.sent, dict(ledger.ends), ledger.faults) == (2, {"invalid_json": 1, "socket closed": 1}, [])
    assert ledger_of("invalid_json", "invalid_json").faults == ["asks: 2 ends of 1 requests on a lane"]
    assert ledger_of(silent=True).faults == ["asks: 1 requests got no end, and the socket was not closed"]


def test_an_event_out_of_its_place_is_a_fault() -> None:
    ledger = Ledger()
    Account(ledger, "asks").heard(
        b'{"type": "response.output_text.delta", "item_id": "msg_1", "delta": "a", "sequence_number": 0}'
    )
    assert len(ledger.faults) == 1
