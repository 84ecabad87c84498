"""The figures of `rota load` beside what a server with known delays truly sent (`timed_server`).

The only test that asserts times. Both processes read the same monotonic clock. What the client says is compared with
when things were sent, not with when they should have been, so that a busy machine, which makes a server late, makes no
figure wrong. What is left is how long the client takes to see what was sent. A busy machine keeps it from looking, and
the system counts for how long (`starved_ms`): a run in which that was too long is made again, and of a machine that has
no quiet time it is allowed on top.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import pytest

from loadgen.distributions import Distribution, distribution
from loadgen.figures import Report, RequestFigures
from protocol.timeline import gaps_met
from tests.loadgen.timed_server import REFUSED, Record, Sent, plan, starved_ms

WITHIN_MS = 2.0
"""What the median of the errors may be."""
STARVED_MS = 0.5
"""Above that a process is kept waiting too long for a processor, each time, to say anything of two milliseconds."""
TRIES = 4
PEOPLE, RATE = 100, 35.0
TTFT_TARGET_MS, ITL_TARGET_MS = 300.0, 100.0
"""Far from every planned delay: see `timed_server.plan`."""
STALL_AT_S, STALL_S = 1.0, 1.0
PATIENCE_S = 60.0


class Played:
    """A run: what the client says (`report`), what was sent (`record`), and which belongs to which."""

    def __init__(self, report: Report, record: Record, client_starved_ms: float) -> None:
        self.report, self.record = report, record
        self.starved_ms = max(client_starved_ms, record.starved_ms)
        """Of the one of the two that was kept waiting longer, how long."""
        serials = {sent.serial: sent for sent in record.requests}
        self.pairs = [(request, serials[_serial(request)]) for request in report.per_request]
        # The client tells its times from its own beginning. Nothing is received before it is sent: so that lies where
        # the quickest request took no time.
        self._began_ms = min(sent.received_s * 1e3 - _known(request.sent_after_ms) for request, sent in self.pairs)

    @property
    def within_ms(self) -> float:
        """What the median of the errors may be in this run. Each event is sent by one process and seen by another."""
        return WITHIN_MS if self.starved_ms <= STARVED_MS else WITHIN_MS + 2 * self.starved_ms

    @property
    def answered(self) -> list[tuple[RequestFigures, Sent]]:
        return [(request, sent) for request, sent in self.pairs if sent.texts_s]

    def due_ms(self, request: RequestFigures) -> float:
        """On the clock, when it was due."""
        return self._began_ms + _known(request.due_after_ms)

    def ttft_ms(self, request: RequestFigures, sent: Sent) -> float:
        """The truth: from when it was due to when its first text was sent."""
        return sent.texts_s[0] * 1e3 - self.due_ms(request)

    def ttft_error_ms(self, pairs: list[tuple[RequestFigures, Sent]]) -> float:
        """The median of how far the client is off."""
        return median(abs(_known(request.ttft_ms) - self.ttft_ms(request, sent)) for request, sent in pairs)

    def met(self, request: RequestFigures, sent: Sent) -> bool:
        """The truth: whether it met its targets."""
        gaps_s = [gap / 1e3 for gap in gaps_ms(sent)]
        in_time = bool(sent.texts_s) and self.ttft_ms(request, sent) <= TTFT_TARGET_MS
        return in_time and gaps_met(gaps_s, ITL_TARGET_MS / 1e3)

    def is_close(self, request: RequestFigures, sent: Sent) -> bool:
        """Whether it was so near to a target that a client that looked late may honestly find otherwise."""
        if not sent.texts_s:
            return False
        margin_ms = 5.0 + self.report.client_lag_worst_ms
        distances = [self.ttft_ms(request, sent) - TTFT_TARGET_MS]
        distances += [gap - limit for gap in gaps_ms(sent) for limit in (ITL_TARGET_MS, 2 * ITL_TARGET_MS)]
        return min(map(abs, distances)) < margin_ms


def gaps_ms(sent: Sent) -> list[float]:
    return [(after - before) * 1e3 for before, after in pairwise(sent.texts_s)]


def _serial(request: RequestFigures) -> int:
    """Which of the server's requests it was."""
    if request.input_tokens is not None:
        return request.input_tokens
    number = re.search(r"Number (\d+) is refused", request.message or "")
    assert number is not None, request
    return Sent(int(number[1]), "refused", 0.0).serial


def _known(value: float | None) -> float:
    assert value is not None
    return value


# -- a run


def run(command: list[str]) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run it to its end, and say how long it was kept waiting for a processor (`starved_ms`), 0.0 if unknown."""
    kept_waiting_ms = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline_s = time.monotonic() + PATIENCE_S
        while process.poll() is None:
            assert time.monotonic() < deadline_s, "the load does not end"
            kept_waiting_ms = starved_ms(process.pid) or kept_waiting_ms
            time.sleep(0.02)
        out, errors = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, errors), kept_waiting_ms


@contextmanager
def timed_server(api: str, record: Path, *flags: str) -> Iterator[str]:
    """Its URL. When the block has ended, `record` is written."""
    command = [sys.executable, "-m", "tests.loadgen.timed_server", "--api", api, "--record", str(record), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE_S) == 0
        finally:
            server.kill()


def play_once(api: str, folder: Path, *server_flags: str) -> Played:
    figures, record = folder / "figures.json", folder / "sent.json"
    with timed_server(api, record, *server_flags) as url:
        command = [sys.executable, "-m", "actors.cli", "load", url, "--api", api, "--model", "m", "--warmup", "0"]
        command += ["--people", str(PEOPLE), "--arrive", "poisson", "--rate", str(RATE), "--seed", "7"]
        command += ["--targets", f"ttft={TTFT_TARGET_MS:g}ms,itl={ITL_TARGET_MS:g}ms"]
        command += ["--prompt-tokens", "8", "--max-output-tokens", "16", "--json", str(figures), "--quiet"]
        done, kept_waiting_ms = run(command)
        assert done.returncode == 1, f"some are refused: {done.stdout}\n{done.stderr}"
    report = msgspec.json.decode(figures.read_bytes(), type=Report)
    return Played(report, msgspec.json.decode(record.read_bytes(), type=Record), kept_waiting_ms)


def play(api: str, folder: Path, *server_flags: str) -> Played:
    """A run on a machine that let both sides work, or the best of some tries."""
    tries: list[Played] = []
    while not tries or (len(tries) < TRIES and tries[-1].starved_ms > STARVED_MS):
        tries.append(play_once(api, folder, *server_flags))
    best = min(tries, key=lambda played: played.starved_ms)
    print(f"{len(tries)} tries; in the one that counts, {best.starved_ms:.2f} ms of waiting for a processor")
    return best


@pytest.fixture(scope="module", params=["responses", "chat"])
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def played(api: str, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(api, tmp_path_factory.mktemp("played"))


@pytest.fixture(scope="module")
def stalled(api: str, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The same people, and a server that stands still for a second."""
    flags = ("--stall-at", str(STALL_AT_S), "--stall-s", str(STALL_S))
    return play(api, tmp_path_factory.mktemp("stalled"), *flags)


# -- what it must show


def test_every_request_is_told_and_every_end_is_right(played: Played) -> None:
    assert sorted(sent.number for _, sent in played.pairs) == list(range(PEOPLE))
    for request, sent in played.pairs:
        assert request.outcome == ("refused" if sent.kind == "refused" else "finished")
        assert request.chunks == len(sent.texts_s)
    requests = played.report.requests
    refused = sum(plan(number).kind == "refused" for number in range(PEOPLE))
    assert requests.refused_by_code == {REFUSED: refused}
    assert requests.finished == PEOPLE - refused


def test_the_first_text_is_timed_within_2_ms(played: Played) -> None:
    error_ms = played.ttft_error_ms(played.answered)
    print(f"median error of TTFT: {error_ms:.3f} ms over {len(played.answered)} requests")
    assert error_ms < played.within_ms
    truth = distribution(played.ttft_ms(request, sent) for request, sent in played.answered)
    said = played.report.client.ttft_ms
    assert truth is not None
    assert said is not None
    assert said.count == truth.count
    assert abs(said.p50 - truth.p50) < played.within_ms


def test_gaps_are_timed_within_2_ms(played: Played) -> None:
    errors_ms = []
    for request, sent in played.answered:
        truth = distribution(gaps_ms(sent))
        assert request.gap_ms is not None
        assert truth is not None
        assert request.gap_ms.count == truth.count
        errors_ms += _differences(request.gap_ms, truth)
    print(f"median error of gaps: {median(errors_ms):.3f} ms over {len(errors_ms)} figures")
    assert median(errors_ms) < played.within_ms
    all_of_them = distribution(gap for _, sent in played.answered for gap in gaps_ms(sent))
    said = played.report.client.gap_ms
    assert all_of_them is not None
    assert said is not None
    assert said.count == all_of_them.count
    assert abs(said.p50 - all_of_them.p50) < played.within_ms


def _differences(said: Distribution, truth: Distribution) -> list[float]:
    names = ("p50", "p90", "p99", "worst")
    return [abs(getattr(said, name) - getattr(truth, name)) for name in names]


def test_goodput_is_exactly_right(played: Played) -> None:
    """The late, those that paused and the refused have missed; all others have not, unless they were near to it."""
    close = 0
    for request, sent in played.pairs:
        if played.is_close(request, sent):
            close += 1
        else:
            assert request.met == played.met(request, sent), (request, sent)
    goodput = played.report.goodput
    assert goodput is not None
    truth = sum(played.met(request, sent) for request, sent in played.pairs)
    assert abs(goodput.met - truth) <= close
    assert goodput.share == goodput.met / PEOPLE
    assert goodput.met + goodput.missed == PEOPLE
    print(f"goodput {goodput.share:.3f}, in truth {truth / PEOPLE:.3f}, {close} too close to call")
    assert close < PEOPLE / 4, "most of the requests must be told apart, or nothing was tested"


def test_what_the_server_says_of_itself_stands_beside_it(played: Played, api: str) -> None:
    for request, sent in played.answered:
        assert request.server_ttft_ms == (pytest.approx(sent.ttft_ms) if api == "responses" else None)


def test_arrivals_are_as_many_and_as_random_as_was_asked(played: Played) -> None:
    """And requests are sent when they are due: of a server that is not late nobody waits for another."""
    due_ms = sorted(_known(request.due_after_ms) for request, _ in played.pairs)
    gaps = [after - before for before, after in pairwise(due_ms)]
    mean_ms = sum(gaps) / len(gaps)
    assert mean_ms == pytest.approx(1e3 / RATE, rel=0.3)
    deviation = (sum((gap - mean_ms) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation / mean_ms == pytest.approx(1.0, abs=0.3)
    assert median(_known(request.late_ms) for request, _ in played.pairs) < played.within_ms


def test_a_server_that_stands_still_is_in_the_wait_of_everyone_who_was_due_meanwhile(
    stalled: Played, played: Played
) -> None:
    assert stalled.record.stall_s is not None
    began_ms, ended_ms = (at_s * 1e3 for at_s in stalled.record.stall_s)
    caught = [(request, sent) for request, sent in stalled.answered if began_ms <= stalled.due_ms(request) <= ended_ms]
    assert len(caught) > STALL_S * RATE / 3
    for request, _ in caught:
        assert _known(request.ttft_ms) > ended_ms - stalled.due_ms(request)
    error_ms = stalled.ttft_error_ms(caught)
    print(f"median error of TTFT in a stall: {error_ms:.3f} ms over {len(caught)} requests")
    assert error_ms < stalled.within_ms
    # It made nobody come later.
    due = {request.person: _known(request.due_after_ms) for request, _ in played.pairs}
    assert {request.person: _known(request.due_after_ms) for request, _ in stalled.pairs} == pytest.approx(
        due, abs=0.01
    )
