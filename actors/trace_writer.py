"""The thread that makes lines of what was handled, and writes them.

Knows when, how much at once, and what is said when it cannot. Knows no mailbox. Serving goes on whatever happens here.
"""

import threading
import time

import msgspec
import structlog

from actors import trace_lines
from actors.trace_files import NotATrace, TraceFiles
from actors.tracing import Tracer

EVERY_S = 0.1
"""So often it looks for something to write. Nobody wakes it: that would cost the loop something for each message."""
AT_ONCE = 128
"""Lines, made in some 200 µs: so long it may keep Python's lock from the event loop."""
LEAVE_S = 5.0
"""How long the last lines may take. Only who reads from a pipe can make them take that long."""

log = structlog.get_logger()


class TraceWriter:
    """Writes what `tracer` holds to `files` until it is closed. Both are its alone but for the tracer's right end.

    What cannot be written is lost, counted, and told in the trace as soon as it can be again. An exception of any other
    kind than that ends the trace, not the engine.
    """

    def __init__(self, tracer: Tracer, files: TraceFiles, every_s: float = EVERY_S) -> None:
        self._tracer = tracer
        self._files = files
        self._every_s = every_s
        self._encoder = msgspec.json.Encoder()
        self._stopping = threading.Event()
        self._told = 0
        self._failing = False
        self._behind = False
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)

    def start(self) -> None:
        """`files` is open."""
        self._thread.start()

    def close(self) -> None:
        """Returns when all that was recorded has been written."""
        self._stopping.set()
        self._thread.join(LEAVE_S)
        if self._thread.is_alive():
            log.error("trace.unfinished", lost=len(self._tracer.records))

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._every_s):
                self._write_all()
            self._write_all()
        except Exception:
            log.exception("trace.failed")
            self._tracer.stop()
        finally:
            self._files.close()

    @property
    def _lost(self) -> int:
        """Messages that the trace does not tell of yet, and will not."""
        return self._tracer.lost + self._tracer.unwritten - self._told

    def _write_all(self) -> None:
        """All that is there now."""
        if self._tracer.lost and not self._behind:
            self._behind = True
            log.warning("trace.behind", lost=self._tracer.lost, most_waiting=self._tracer.most)
        while self._tracer.records or self._lost:
            began = time.perf_counter()
            if not self._write_some():
                return
            if self._tracer.records and not self._stopping.is_set():
                # The event loop's turn, for as long as it has been kept from it.
                time.sleep(time.perf_counter() - began)

    def _write_some(self) -> bool:
        """False: it cannot be written now, and all that was there is lost."""
        tracer, files = self._tracer, self._files
        lost, before, count = self._lost, files.lines, 0
        try:
            if lost:
                now = tracer.clock() + tracer.unix_s
                files.write(self._encoder.encode_lines([trace_lines.lost(now, lost)]), 1)
                self._told += lost
                before = files.lines
            records = [tracer.records.popleft() for _ in range(min(AT_ONCE, len(tracer.records)))]
            count = len(records)
            if records:
                unix_s = tracer.unix_s
                lines = [trace_lines.line_of(record, unix_s) for record in records]
                files.write(self._encoder.encode_lines(lines), count)
        except (OSError, NotATrace) as error:
            tracer.unwritten += count - (files.lines - before) + self._forget()
            if not self._failing:
                self._failing = True
                why = error.strerror if isinstance(error, OSError) else str(error)
                log.error("trace.unwritable", file=str(files.path), why=why)
            return False
        if self._failing:
            self._failing = False
            log.info("trace.writable", file=str(files.path), lost=tracer.unwritten)
        return True

    def _forget(self) -> int:
        """Returns how many. Others come meanwhile; they are tried with the next."""
        count = len(self._tracer.records)
        for _ in range(count):
            self._tracer.records.popleft()
        return count
