"""What a line says of a message, who spoke when no handler did, and what no line ever says."""

import math

import msgspec
import pytest

from actors import trace_lines
from actors.trace_lines import line_of
from actors.tracing import Record
from protocol import errors
from protocol.kinds import FinishReason
from protocol.messages import (
    Accepted,
    Ask,
    Cancel,
    Chunk,
    CloseConnection,
    ConnectionClosed,
    CostsLearned,
    Credit,
    Detached,
    Drain,
    Ended,
    Enqueue,
    FrameReceived,
    GiveWay,
    ModelRefused,
    Moved,
    OpenStream,
    PromptRead,
    ReaderLeft,
    Refused,
    Relayed,
    RelayEnded,
    Remember,
    RoomSeen,
    SampledToken,
    Sampling,
    SeenRequest,
    SetPaused,
    SocketLost,
    Started,
    Stats,
    Step,
    StepDone,
    StepFailed,
    Text,
    TextEnd,
    Tick,
    Tokenised,
    TokenLogprob,
    TokenRow,
    Tokens,
    TokensTaken,
    Unread,
    WatchConnection,
    WatcherCame,
    WatcherLeft,
    WorkerGone,
    WorkerLost,
    WriterIdle,
)
from protocol.requests import Released
from protocol.responses import ResponseCreate
from protocol.trace import BEGUN, LOST, TraceLine, lines
from tests.actors.recorders import enqueue, model_ready, token_bytes

SECRET = "s3cret"
DATA_OF_ALL = {
    "time": 1_012.5,
    "from_": "engine",
    "to": "scheduler",
    "lane": "data",
    "waited_s": 0.5,
    "handled_s": 0.25,
}


def line(message: object, sender: str = "engine", to: str = "scheduler", handled_at: float | None = 13.25) -> TraceLine:
    return line_of(Record(message, sender, to, "data", 12.5, 13.0, handled_at), 1_000.0)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Ask("r", 7, "anna", ResponseCreate(), 12.0), {"request": "r", "connection": 7, "lane_s": 0.5}),
        (
            enqueue("r", 5, connection=7, max_output_tokens=9, ttft_target_s=3.0),
            {
                "request": "r",
                "connection": 7,
                "tokens": 5,
                "max_output_tokens": 9,
                "service_tier": "default",
                "ttft_target_s": 3.0,
            },
        ),
        (Tokenised("r", token_bytes(range(6))), {"request": "r", "tokens": 6}),
        (Tokenised("r", b"", errors.internal_error()), {"request": "r", "reason": "internal_error"}),
        (OpenStream("r", 7, (), (), None, 9), {"request": "r", "connection": 7, "max_output_tokens": 9}),
        (Accepted("r", 5, 9, 1.0, 3, 0.5), {"request": "r", "tokens": 5, "max_output_tokens": 9, "position": 3}),
        (Accepted("r", 5, 9, 1.0), {"request": "r", "tokens": 5, "max_output_tokens": 9}),
        (Moved("r", 2, None), {"request": "r", "position": 2}),
        (Refused("r", errors.shutting_down()), {"request": "r", "reason": "shutting_down"}),
        (SetPaused("r", False, 1.0), {"request": "r", "paused": False}),
        (Unread("r", True), {"request": "r", "reason": "nobody reads it"}),
        (Unread("r", False), {"request": "r", "reason": "somebody reads it"}),
        (GiveWay("r"), {"request": "r"}),
        (
            Step(4, (Chunk("r", 8, token_bytes([1, 2]), b""), Chunk("q", 3, token_bytes([5]), b"", Sampling()))),
            {"step": 4, "chunks": (("r", 8, 2, False), ("q", 3, 1, True))},
        ),
        (StepDone(4, (SampledToken(3),), 0.02), {"step": 4, "took_s": 0.02}),
        (StepFailed(4, "out of memory"), {"step": 4, "message": "out of memory"}),
        (
            Tokens(4, 1.0, (TokenRow("r", SampledToken(1)),), (("q", "prefilled"),)),
            {"step": 4, "requests": ("r", "q")},
        ),
        (TokensTaken(4), {"step": 4}),
        (Text("r", "héllo", (1.0, 2.0)), {"request": "r", "tokens": 2, "chars": 5}),
        (
            Text("r", "", (), (), TextEnd("length", 9)),
            {"request": "r", "tokens": 0, "chars": 0, "reason": "length", "output_tokens": 9},
        ),
        (
            Ended("r", "stop", Stats(0.0, 0.25, 3.0, 4, 9, 1, 0.5)),
            {
                "request": "r",
                "reason": "stop",
                "queued_s": 0.0,
                "prefill_s": 0.25,
                "cached_tokens": 4,
                "output_tokens": 9,
                "preemptions": 1,
            },
        ),
        (Released("r", 1.0, None, 3, 9), {"request": "r", "output_tokens": 9}),
        (Started("r", 1.0, 32), {"request": "r", "cached_tokens": 32}),
        (PromptRead("r", 96), {"request": "r", "tokens": 96}),
        (Cancel("r", 1.0, SECRET), {"request": "r"}),
        (CostsLearned((0.5, 0.25), 100.0), {"coefficients": (0.5, 0.25)}),
        (CloseConnection(7, 1008, SECRET), {"connection": 7}),
        (CloseConnection(7, 1001, "", errors.shutting_down()), {"connection": 7, "reason": "shutting_down"}),
        (RelayEnded("r", 1, errors.response_not_found(SECRET)), {"request": "r", "reason": "response_not_found"}),
        (ReaderLeft("r", 7, 1, lost=True), {"request": "r", "connection": 7, "reason": "lost"}),
        (ReaderLeft("r", 7, 1, lost=False), {"request": "r", "connection": 7, "reason": "left"}),
        (Relayed("r", 1, (SECRET.encode(),)), {"request": "r"}),
        (model_ready(), {"message": "tiny, float32 on cpu, computed by plain torch"}),
        (ModelRefused("No such model."), {"message": "No such model."}),
        (WorkerGone(1, "killed by signal 9"), {"message": "killed by signal 9"}),
        (Credit(1, 1), {}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, msgspec.Struct) else "",
)
def test_a_line_says_what_its_message_says_in_numbers(message: object, says: dict[str, object]) -> None:
    made = line(message)
    assert made == TraceLine(type(message).__name__, **{**DATA_OF_ALL, **says})  # type: ignore[arg-type]
    assert lines.decode(msgspec.json.encode(made)) == made


@pytest.mark.parametrize("reason", ["failed", "cancelled"])
def test_the_end_of_a_request_has_its_errors_code_beside_its_reason(reason: FinishReason) -> None:
    made = line(Ended("r", reason, Stats(), errors.worker_failed(0)))
    assert (made.reason, made.code, made.prefill_s) == (reason, "worker_failed", None)


def test_a_target_that_there_is_not_is_left_out() -> None:
    made = line(enqueue(ttft_target_s=math.inf, itl_target_s=0.25))
    assert (made.ttft_target_s, made.itl_target_s) == (None, 0.25)


def test_of_a_message_taken_by_hand_nothing_is_said_of_its_handling() -> None:
    assert line(Drain(1.0), handled_at=None).handled_s is None


@pytest.mark.parametrize(
    ("message", "to", "sender"),
    [
        (FrameReceived(b"", 1.0), "connection 3", "socket"),
        (SocketLost(1006, 1.0), "connection 3", "socket"),
        (WriterIdle(), "connection 3", "writer"),
        (Tokenised("r", b""), "tokeniser", "thread"),
        (Tick(1.0), "reaper", "timer"),
        (StepDone(1, (), 0.0), "executor", "worker"),
        (StepFailed(1, ""), "executor", "worker"),
        (model_ready(), "executor", "worker"),
        (WorkerGone(1, ""), "executor", "worker"),
        (ModelRefused(""), "executor", "worker"),
        (ModelRefused(""), "engine", "engine"),
        (WorkerLost("", 1.0), "reaper", "engine"),
        (Drain(1.0), "reaper", "engine"),
        (model_ready(), "tokeniser", "engine"),
        (WatchConnection(5, 1.0, 1.0, busy=False), "reaper", "connection 5"),
        (ConnectionClosed(5), "tokeniser", "connection 5"),
        (Detached("r", 5, None), "reaper", "connection 5"),
        (ReaderLeft("r", 5, 1, lost=False), "connection 3", "connection 5"),
        (WatcherCame(6, "anna"), "gallery", "watcher 6"),
        (WatcherLeft(6), "gallery", "watcher 6"),
        (Tick(1.0), "gallery", "timer"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, msgspec.Struct) else str(value),
)
def test_what_no_handler_sent_comes_from_what_is_no_actor(message: object, to: str, sender: str) -> None:
    assert line(message, "", to).from_ == sender


@pytest.mark.parametrize(
    ("sender", "to", "connection"),
    [("detokeniser", "connection 12", 12), ("connection 12", "scheduler", 12), ("tokeniser", "admission", None)],
)
def test_the_connection_at_either_end_is_told(sender: str, to: str, connection: int | None) -> None:
    assert line(Cancel("r", 1.0), sender, to).connection == connection


def test_the_connection_that_a_message_names_is_meant_before_those_at_its_ends() -> None:
    assert line(CloseConnection(3, 1000, ""), "connection 4", "connection 5").connection == 3


@pytest.mark.parametrize(
    "message",
    [
        FrameReceived(SECRET.encode(), 1.0),
        Ask("r", 1, SECRET, ResponseCreate(instructions=SECRET), 1.0),
        Enqueue("r", 1, SECRET, SECRET.encode(), Sampling(), 1, (), 1.0),
        OpenStream("r", 1, (), (SECRET,)),
        Cancel("r", 1.0, SECRET),
        Remember("r", SECRET),
        Text("r", SECRET, (1.0,), (TokenLogprob(SECRET, -1.0),)),
        CloseConnection(1, 1008, SECRET),
        # What a handler raised may quote what it was handling.
        WorkerLost(f"KeyError('{SECRET}')", 1.0),
        WatcherCame(1, SECRET),
        RoomSeen(1.0, (SeenRequest("r", SECRET, "queued", 1.0, 4, 9),)),
        Refused("r", errors.previous_response_not_found(SECRET)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_no_line_holds_a_text_a_key_or_whose_it_is(message: object) -> None:
    assert SECRET.encode() not in msgspec.json.encode(line(message))


def test_a_file_says_who_wrote_it_and_where_lines_are_missing() -> None:
    begun = trace_lines.begun(5.0)
    assert (begun.type, begun.time, begun.format) == (BEGUN, 5.0, 1)
    assert begun.message is not None
    assert begun.message.startswith("rota ")
    assert trace_lines.lost(5.0, 3) == TraceLine(LOST, 5.0, lost=3)
