"""What actors say to one another: the catalogue, by direction.

One Struct a message; each stands, with what it says and to whom, in the module of its subject: `requests.py`,
`steps.py`, `tokens.py`, `sockets.py`, `resuming.py`, `clocks.py`, `watching.py`, and how they travel in `kinds.py`.
Knows nothing of mailboxes, asyncio or tensors. Every message can be encoded and decoded
(`tests/protocol/test_messages.py` round-trips them all), so an actor can move to another process without changing a
line of its own; the executor's already has.

Times are seconds on the engine's monotonic clock. Token sequences and block tables travel as little-endian int32
(`bytes`), which both sides read without a loop.
"""

from protocol.clocks import (
    AuditReport,
    AuditRequest,
    Drain,
    Drained,
    Expire,
    Sweep,
    Tick,
    Watch,
)
from protocol.kinds import (
    ConnectionControl,
    ConnectionId,
    Control,
    Data,
    FinishReason,
    Merging,
    RequestControl,
    RequestId,
    SingleControl,
)
from protocol.requests import (
    Accepted,
    Ask,
    Cancel,
    CostsLearned,
    Credit,
    Ended,
    Enqueue,
    GiveWay,
    Moved,
    PromptRead,
    Refused,
    Released,
    SetPaused,
    Started,
    Stats,
    Tokenised,
    Unread,
)
from protocol.resuming import (
    Detached,
    GraceOver,
    NothingLeft,
    ReaderLeft,
    RelayCancel,
    Relayed,
    RelayEnded,
    RelayTaken,
    Resume,
)
from protocol.sockets import (
    CloseConnection,
    ConnectionClosed,
    FrameReceived,
    SocketLost,
    WatchConnection,
    WriterIdle,
)
from protocol.steps import (
    Chunk,
    FromWorker,
    LoadModel,
    Measured,
    ModelFound,
    ModelReady,
    ModelRefused,
    SampledToken,
    Sampling,
    Step,
    StepDone,
    StepFailed,
    ToWorker,
    Work,
    WorkerGone,
    WorkerLost,
)
from protocol.tokens import (
    CloseStream,
    FinishStream,
    Forget,
    OpenStream,
    Remember,
    Text,
    TextEnd,
    TokenLogprob,
    TokenRow,
    Tokens,
    TokensTaken,
)
from protocol.watching import (
    FrameTaken,
    Look,
    RoomSeen,
    SchedulerSeen,
    SeenRequest,
    Show,
    WatcherCame,
    WatcherLeft,
)

__all__ = [  # noqa: RUF022 (by direction, in the order in which they are said)
    # --- how they travel
    "RequestId",
    "ConnectionId",
    "FinishReason",
    "Data",
    "Control",
    "RequestControl",
    "ConnectionControl",
    "SingleControl",
    "Merging",
    # --- connection -> tokeniser -> admission -> scheduler
    "Ask",
    "Enqueue",
    "Cancel",
    "SetPaused",
    # --- tokeniser, admission, scheduler -> connection
    "Refused",
    "Accepted",
    "Moved",
    "Started",
    "PromptRead",
    "Stats",
    "Ended",
    "Released",
    # --- scheduler <-> admission
    "Credit",
    "CostsLearned",
    "Unread",
    "GiveWay",
    # --- scheduler -> executor -> worker
    "ToWorker",
    "LoadModel",
    "Sampling",
    "Chunk",
    "Step",
    # --- worker -> executor -> scheduler
    "FromWorker",
    "ModelFound",
    "ModelReady",
    "ModelRefused",
    "SampledToken",
    "Work",
    "Measured",
    "StepDone",
    "StepFailed",
    "WorkerLost",
    # --- scheduler <-> detokeniser
    "TokenRow",
    "Tokens",
    "TokensTaken",
    "FinishStream",
    # --- tokeniser <-> detokeniser
    "OpenStream",
    "CloseStream",
    "Remember",
    "Forget",
    # --- detokeniser -> connection
    "TokenLogprob",
    "TextEnd",
    "Text",
    # --- connection <-> reaper, tokeniser
    "WatchConnection",
    "CloseConnection",
    "ConnectionClosed",
    # --- a response's home <-> the connection it is read on, the reaper
    "Resume",
    "RelayTaken",
    "RelayCancel",
    "ReaderLeft",
    "Relayed",
    "RelayEnded",
    "Detached",
    "GraceOver",
    # --- the reaper's clocks
    "Watch",
    "Expire",
    "Sweep",
    "AuditRequest",
    "AuditReport",
    "Drain",
    "Drained",
    # --- gallery <-> admission, scheduler, watchers
    "Look",
    "SeenRequest",
    "SchedulerSeen",
    "RoomSeen",
    "WatcherCame",
    "WatcherLeft",
    "FrameTaken",
    "Show",
    # --- from an actor's own tasks, threads and timers
    "FrameReceived",
    "SocketLost",
    "WriterIdle",
    "NothingLeft",
    "Tokenised",
    "WorkerGone",
    "Tick",
]
