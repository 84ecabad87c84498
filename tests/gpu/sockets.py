"""Tokens a second through real sockets: `rota serve` in a process of its own, `rota load`'s client in this one.

And how much of that time the device had nothing to do, by what the server says of its steps (`rota_step_seconds`) and
by what the driver says of the GPU, looked at twenty times a second while tokens came.
"""

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from loadgen.command_line import allow_files, loop_factory
from loadgen.figures import Exchange, Load, Report
from loadgen.measure import play
from loadgen.own_server import own_server
from loadgen.progress import Nothing
from loadgen.scene import plain
from tests.gpu import crowd, model
from tests.gpu.busy import Busy
from tests.gpu.findings import Conditions, Finding

MOST_IDLE = 0.10
TIMEOUT_S = 60.0
SPARE_FILES = 64


def measure(conditions: Conditions) -> Iterator[Finding]:
    allow_files(max(crowd.streams(conditions)) + SPARE_FILES, "raise the limit of open files")
    served = _served(conditions)

    async def following() -> list[Finding]:
        return await anext(served, [])

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        while found := runner.run(following()):
            yield from found


async def _served(conditions: Conditions) -> AsyncIterator[list[Finding]]:
    per_s: dict[int, float] = {}
    most = max(crowd.streams(conditions))
    arguments = [
        *("--model", str(model.folder(conditions)), "--device", conditions.device, "--dtype", "bfloat16"),
        *("--max-running", str(most), "--max-waiting", str(2 * most)),
        *("--kernels", conditions.kernels, "--max-context", "1024", "--chunk-tokens", "4096"),
        *(("--kv-memory", "16MiB") if conditions.smoke else ()),
    ]
    began_s = time.perf_counter()
    async with own_server(arguments) as server:
        yield [Finding("from rota serve to ready", time.perf_counter() - began_s, "s")]
        for streams in crowd.streams(conditions):
            load = Load(
                url=server.url,
                model=server.model,
                sockets=streams,
                requests_per_socket=1,
                max_output_tokens=crowd.output_tokens(conditions),
                ignore_eos=True,
                temperature=0.0,
                prompt_tokens=crowd.PROMPT_TOKENS,
                warmup=0,
                seed=crowd.SEED,
                timeout_s=TIMEOUT_S,
            )
            found = await _played(load, per_s)
            crowd.tell(conditions, per_s)
            yield found


async def _played(load: Load, per_s: dict[int, float]) -> list[Finding]:
    before = await asyncio.to_thread(_metrics, load.url)
    busy = Busy()
    with busy.watching():
        report, exchanges = await play(load, plain(load, None), None, Nothing())
    after = await asyncio.to_thread(_metrics, load.url)
    return _findings(load, report, exchanges, busy, {name: after[name] - before[name] for name in after}, per_s)


def _findings(
    load: Load,
    report: Report,
    exchanges: Sequence[Exchange],
    busy: Busy,
    grown: dict[str, float],
    per_s: dict[int, float],
) -> list[Finding]:
    at = f"{load.sockets} sockets"
    of_all = report.requests.planned
    found = [Finding(f"{at}: requests that did not finish", of_all - report.requests.finished, "of all", most=0)]
    begins, ends = (
        [it.sent_s for it in exchanges if it.sent_s is not None],
        [it.ended_s for it in exchanges if it.ended_s],
    )
    if not (report.tokens.output_per_s and begins and ends):
        return found
    per_s[load.sockets] = report.tokens.output_per_s
    each = f"{report.tokens.input / of_all:,.0f} tokens in and {report.tokens.output / of_all:,.0f} out, each"
    found.append(Finding(f"{at}: tokens", report.tokens.output_per_s, "tokens/s", note=each))
    wall_s = max(ends) - min(begins)
    most = MOST_IDLE if load.sockets >= max(crowd.STREAMS) else None
    steps = grown["rota_step_seconds_count"]
    note = f"{steps:,.0f} steps of {grown['rota_step_seconds_sum'] / max(1, steps) * 1e3:.2f} ms in {wall_s:.2f} s"
    idle = 1 - grown["rota_step_seconds_sum"] / wall_s
    found.append(Finding(f"{at}: idle, by the steps", idle, "of time", most=most, note=note, timed=True))
    share = busy.share(min(begins), max(ends))
    if share is not None:
        note = "a sample counts as busy if any kernel ran in it"
        found.append(Finding(f"{at}: idle, by the driver", 1 - share, "of time", note=note, timed=True))
    if (first := report.client.ttft_ms) is not None:
        found.append(Finding(f"{at}: to the first token, median", first.p50, "ms"))
    found.append(Finding(f"{at}: client late at most", report.client_lag_worst_ms, "ms"))
    return found


def _metrics(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{urlsplit(url).netloc}/metrics") as answer:
        text = answer.read().decode()
    names = ("rota_step_seconds_sum", "rota_step_seconds_count")
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in names
    }
