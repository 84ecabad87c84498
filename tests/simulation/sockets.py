"""A socket that is none, and the books of what crossed it.

The far end is a client written in the test: it feeds frames, stops and starts reading, and leaves in more than one way.
Every frame that arrives is checked at once against what WIRE promises for the order of events: also of a response that
its client resumes on another socket, of which every event comes once, whichever socket it comes on.
"""

import asyncio
import json
from collections import defaultdict, deque
from typing import Any

from actors.socket import SocketGone

TERMINAL = ("response.completed", "response.incomplete", "response.failed")


class Response:
    """One response as its client sees it."""

    def __init__(self, response_id: str, lane: str | None) -> None:
        self.id = response_id
        self.lane = lane
        self.text = ""
        self.place = 0
        """Among all that was asked on its lane of the socket it was created on."""
        self.books: Books | None = None
        """Of the socket on which its client wants to read it."""
        self.lost = False
        """Its client does not want to go on with it."""
        self.events = 0
        self.read: list[tuple[int, int]] = []
        """What was told of its prompt: tokens read, of how many."""
        self.status: str | None = None
        self.finish_reason: str | None = None
        self.error_code: str | None = None
        self.usage: dict[str, Any] = {}


ELSEWHERE = "response_resumed_elsewhere"


class Books:
    """Checks every event of one socket against those before it. `answers` counts terminal events and errors by lane."""

    def __init__(self, known: dict[str, Response] | None = None) -> None:
        """`known`: what the same client has on its other sockets."""
        self.responses: dict[str, Response] = {}
        """Those created here."""
        self.known = {} if known is None else known
        self.resumed = 0
        self.violation: AssertionError | None = None
        self.answers: defaultdict[str | None, list[Response | str]] = defaultdict(list)
        self.open: dict[str | None, Response] = {}
        self.changed = asyncio.Event()

    def take(self, frame: bytes) -> None:
        event = json.loads(frame)
        lane = event.get("stream_id")
        kind = event["type"]
        if kind == "error":
            code = event["error"]["code"]
            if code == ELSEWHERE:
                self.open.pop(lane, None)  # Of what was resumed here nothing need have come yet.
            assert lane not in self.open, f"an error on lane {lane} before the terminal event of what runs there"
            self.answers[lane].append(code)
        elif kind == "response.created" and event["response"]["id"] not in self.known:
            assert lane not in self.open, f"two responses at once on lane {lane}"
            response = Response(event["response"]["id"], lane)
            response.place, response.books = len(self.answers[lane]), self
            self.known[response.id] = self.responses[response.id] = self.open[lane] = response
            self._count(response, event)
        else:
            if lane not in self.open:
                self.open[lane] = self._resumed(lane, event)
            response = self.open[lane]
            if response.books is not self:
                # Its client has asked for it elsewhere, and the server did not know yet.
                if kind in TERMINAL:
                    self.answers[lane].append(ELSEWHERE)
                    del self.open[lane]
                self.changed.set()
                return
            self._count(response, event)
            if kind == "response.in_progress":
                self._progress(response, event["response"].get("rota"))
            elif kind == "response.output_text.delta":
                response.text += event["delta"]
            elif kind == "response.output_text.done":
                assert event["text"] == response.text, "the deltas and the whole differ"
            elif kind in TERMINAL:
                self._end(response, event["response"])
        self.changed.set()

    def _resumed(self, lane: str | None, event: dict[str, Any]) -> Response:
        """The response of which this is the first event on this socket."""
        name = event.get("item_id") or event.get("item", {}).get("id") or event["response"]["id"]
        response = self.known.get("resp_" + name.split("_", 1)[1])
        assert response is not None, f"{event['type']} on lane {lane}, where nothing runs"
        assert response.id not in self.responses, f"{response.id} was created here, and has had its end here"
        assert response.lane == lane, f"{response.id} goes on upon lane {lane}"
        self.resumed += 1
        return response

    def _count(self, response: Response, event: dict[str, Any]) -> None:
        assert response.status is None, f"{event['type']} after the terminal event of {response.id}"
        assert event["sequence_number"] == response.events, "a sequence number was left out or used twice"
        response.events += 1

    def _progress(self, response: Response, rota: dict[str, int] | None) -> None:
        assert not response.text, f"{response.id} was said to be read after there was text"
        if rota is None:
            assert not response.read, "how much was read is told, and then no more"
            return
        read, of = rota["prefilled_tokens"], rota["input_tokens"]
        if response.read:
            before, of_before = response.read[-1]
            assert of == of_before, "a prompt has one length"
            assert read > before, f"{read} tokens were read, and {before} before"
        assert read < of, "all was read, and its first token had not come"
        response.read.append((read, of))

    def _end(self, response: Response, told: dict[str, Any]) -> None:
        assert told["id"] == response.id
        assert all(of == told["usage"]["input_tokens"] for _, of in response.read)
        response.status = told["status"]
        response.finish_reason = told["rota"]["finish_reason"]
        response.error_code = told["rota"].get("error_code")
        response.usage = told["usage"]
        text = "".join(part["text"] for item in told["output"] for part in item["content"])
        assert text == response.text, "the terminal event repeats another text than was delivered"
        assert told["rota"]["delivered_chars"] == len(response.text)
        self.answers[response.lane].append(response)
        del self.open[response.lane]


class FakeSocket:
    """Both ends of one WebSocket. The server's is `actors.socket.Socket`; the client's are the other methods."""

    def __init__(self, known: dict[str, Response] | None = None) -> None:
        self.books = Books(known)
        self.dark = False
        self.closed: int | None = None
        self._frames: deque[bytes | str] = deque()
        self._changed = asyncio.Event()
        self._reading = True
        self._offers = 0

    # --- the server's end ---

    async def recv(self) -> bytes | str:
        while True:
            if self.closed is not None:
                raise SocketGone(self.closed)
            if self._frames:
                return self._frames.popleft()
            await self._wait()

    def offer(self, frame: bytes) -> bool:
        # Every third finds no room, so that frames take either way, and change from one to the other.
        self._offers += 1
        if self.closed is not None or not self._reading or self._offers % 3 == 0:
            return False
        self._arrive(frame)
        return True

    async def send(self, frame: bytes) -> None:
        await asyncio.sleep(0)
        while self.closed is None and not self._reading:
            await self._wait()
        if self.closed is not None:
            raise SocketGone(self.closed)
        self._arrive(frame)

    async def close(self, code: int, reason: str) -> None:
        self._close(code)

    # --- the client's end ---

    def feed(self, frame: bytes | str) -> None:
        if not self.dark:
            self._frames.append(frame)
            self._changed.set()

    def leave(self, code: int) -> None:
        """1000: a close frame; 1006: gone without a word."""
        self._close(code)

    def go_dark(self) -> None:
        """The network is gone, and the server does not know it yet: what it sends is taken, and never arrives."""
        self.dark = True

    def read(self, reading: bool) -> None:
        self._reading = reading
        self._changed.set()

    def _arrive(self, frame: bytes) -> None:
        if self.dark:
            return
        try:
            self.books.take(frame)
        except AssertionError as violation:
            # Raised inside of a handler, it would pass for a failure of that handler's.
            self.books.violation = self.books.violation or violation
            raise

    def _close(self, code: int) -> None:
        if self.closed is None:
            self.closed = code
        self._changed.set()
        self.books.changed.set()

    async def _wait(self) -> None:
        # Several may wait; whoever wakes looks again.
        self._changed.clear()
        await self._changed.wait()
