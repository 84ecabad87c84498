"""A step on the device, from the batch to its tokens, launched and not waited for.

Knows what has to be on the device before a step and what comes back, and which steps are replayed as graphs: those of
decode rows alone, filled up to the next of some sizes. Does not know what computes the logits (`layers.py`,
`hosted.py`), nor why a step looks as it does.

One copy takes everything to the device. A row whose token the step before chooses reads it there, where that step has
left it. What is chosen is copied to the host while the next step runs.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from kernels.batch import Batch, Ints
from kernels.checkpoint import say
from kernels.decoder import Decoder
from kernels.kv_cache import KVCache, LayerShape, zeros
from kernels.runner import Launched, Ran
from kernels.sampling import greedy, uniform
from kernels.triton import attention, inputs, sampling
from kernels.triton.attention_work import bounds, plan_work
from kernels.triton.layers import Body, Flat
from kernels.triton.packing import Layout, Room
from kernels.triton.tables import BlockTables
from kernels.triton.timeline import Landing, Timeline, timeline_of
from protocol.messages import SampledToken, Sampling

MOST_CHANGES = 4096
"""Changes of block tables that are copied with the rest of a step: some 130,000 tokens' worth of blocks of 32. More,
as when many long conversations come back at once, take copies of their own."""
TOLD = sampling.MOST_TOLD
"""Most alternatives that can be asked for."""
SLOTS = 2
"""Steps that can be on their way, each with memory of its own for what goes there and what comes back."""


class PaddedKVCache(KVCache):
    """A KVCache with one block more than anybody may use: rows that only fill a graph up write there."""

    def _allocate(self, layer: LayerShape) -> tuple[Tensor, Tensor]:
        shape = self.blocks + 1, self.block_size, layer.kv_heads
        return (
            zeros((*shape, layer.key_dim), self.dtype, self.device),
            zeros((*shape, layer.value_dim), self.dtype, self.device),
        )


@dataclass
class _Slot:
    """What one step on its way needs for itself."""

    packed: Tensor
    """On the host, as `Layout` says."""
    chosen: Tensor
    """`[rows]`, on the device: what the step chose, when the next one chooses already."""
    chosen_here: Tensor
    told: Tensor
    """`[rows, 2 * (1 + TOLD)]` int32 on the device: log-probabilities as bits, and their tokens."""
    told_here: Tensor
    landing: Landing | None = None


class TritonForward:
    """A `Forward` that `RunsBeside` its host. `body` computes the logits."""

    def __init__(
        self,
        decoder: Decoder,
        body: Body,
        *,
        group: int,
        block_size: int,
        max_step_tokens: int,
        max_step_rows: int,
    ) -> None:
        """`group`: how many query heads share a key head."""
        device = decoder.device
        shape = decoder.layers[0]
        self._decoder = decoder
        self._body = body
        self._block_size = block_size
        self._group = group
        rows = min(max_step_rows, max_step_tokens)
        items, merges, partials = bounds(rows, max_step_tokens, decoder.max_context, self._group)
        self._layout = Layout(Room(max_step_tokens, rows, items, merges, MOST_CHANGES))
        # Twice as many tables as rows, so that those who sit a step out find theirs again.
        self._tables = BlockTables(2 * rows, -(-decoder.max_context // block_size))
        self._timeline: Timeline = timeline_of(device)
        self._programs = _programs(decoder)
        self._packed = torch.zeros(self._layout.size, dtype=torch.int32, device=device)
        self._on_device = torch.zeros((self._tables.rows, self._tables.width), dtype=torch.int32, device=device)
        self._partials = attention.Partials.room(partials, group * shape.kv_heads, shape.value_dim, device)
        self._chosen = torch.zeros(rows, dtype=torch.int32, device=device)
        self._scratch = sampling.Scratch.make(rows, decoder.vocabulary, device)
        self._slots = [self._slot(rows, device) for _ in range(SLOTS)]
        self._next = 0
        self._graphs: dict[int, Callable[[], Tensor]] = {}
        self._graphs_cache: KVCache | None = None

    def _slot(self, rows: int, device: torch.device) -> _Slot:
        def both(elements: int) -> tuple[Tensor, Tensor]:
            there = torch.zeros(elements, dtype=torch.int32, device=device)
            return there, self._timeline.on_host(elements, torch.int32)

        chosen, chosen_here = both(rows)
        told, told_here = both(rows * 2 * (1 + TOLD))
        return _Slot(self._timeline.on_host(self._layout.size, torch.int32), chosen, chosen_here, told, told_here)

    @property
    def fixed_bytes(self) -> int:
        """See `RunsBeside.fixed_bytes`."""
        own = [
            self._packed,
            self._on_device,
            self._chosen,
            *(it for slot in self._slots for it in (slot.chosen, slot.told)),
        ]
        kept = [getattr(whole, field.name) for whole in (self._partials, self._scratch) for field in fields(whole)]
        return self._body.fixed_bytes + sum(it.nbytes for it in (*own, *kept) if isinstance(it, Tensor))

    # --- Forward ---

    def new_cache(
        self, layers: Sequence[LayerShape], blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        assert block_size == self._block_size
        return PaddedKVCache(layers, blocks, block_size, dtype, device)

    def logits(self, cache: KVCache, batch: Batch, rows: Sequence[int]) -> Tensor:
        """See `Forward.logits`. They are overwritten by the next step."""
        begun = self._write(batch, rows, (), self._slots[0], cache, batch.ids.size, len(rows))
        found = self._logits(cache, batch.ids.size, len(rows))
        self._timeline.end(begun, ()).wait()  # what is copied from must stand until then
        return found

    def answer(
        self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]
    ) -> tuple[SampledToken, ...]:
        return self.launch(cache, batch, rows, asked).wait().tokens

    def launch(self, cache: KVCache, batch: Batch, rows: Sequence[int], asked: Sequence[Sampling]) -> Launched:
        """See `RunsBeside.launch`."""
        slot = self._slots[self._next]
        self._next = (self._next + 1) % SLOTS
        if slot.landing is not None:
            slot.landing.wait()  # it has been waited for already, unless more steps are on their way than there may be
        size = self._graph_size(cache, batch)
        tokens, kept = (batch.ids.size, len(rows)) if size is None else (size, size)
        try:
            begun = self._write(batch, rows, asked, slot, cache, tokens, kept)
            logits = self._pass(cache, tokens, kept) if size is None else self._graphs[size]()
        except BaseException:
            # Perhaps not all that changes in the tables was sent, and what was is still read from the host.
            self._tables.forget()
            self._timeline.end(self._timeline.begin(), ()).wait()
            raise
        results = []
        if rows:
            slot.chosen[: len(rows)].copy_(self._chosen[: len(rows)])
            results.append((slot.chosen[: len(rows)], slot.chosen_here[: len(rows)]))
        told = [row for row, it in enumerate(asked) if it.logprobs is not None]
        if told:
            width = 2 * (1 + TOLD)
            ours = slot.told[: len(told) * width].view(len(told), width)
            which = self._layout.told.on(self._packed)[: len(told)]
            sampling.log_probabilities(logits, which, self._chosen, ours)
            results.append((ours, slot.told_here[: len(told) * width].view(len(told), width)))
        slot.landing = self._timeline.end(begun, results)
        return _OnItsWay(slot.landing, slot, tuple(asked), told)

    # --- graphs ---

    def record(self, cache: KVCache, shown: Callable[[list[int]], Iterable[int]]) -> None:
        """Record a graph for decode steps of each size. Only steps on this cache are replayed. `shown` shows how far
        it is while the sizes that it is given are gone through."""
        room = self._layout.room
        for tokens in self._body.sizes:
            kept = min(tokens, room.rows)
            self._fill_up(self._slots[0], cache, 0, tokens, 0, kept)
            begun = self._copy(self._slots[0], 0)
            self._pass(cache, tokens, kept)
            self._timeline.end(begun, ()).wait()
        # The largest first: what it needs beside its own memory serves the smaller ones too.
        for size in shown(graph_sizes(room.rows)[::-1]):
            self._fill_up(self._slots[0], cache, 0, size, 0, size)
            self._copy(self._slots[0], 0)
            try:
                self._graphs[size] = self._timeline.record(_Pass(self, cache, size))
            except RuntimeError as error:
                # A model that transformers runs may ask the device for something on its way. Ours do not.
                why = str(error).strip().split("\n")[0]
                say(f"Decode steps cannot be recorded ({why}): they are launched kernel by kernel, which is slower.")
                self._graphs.clear()
                break
        self._graphs_cache = cache

    def _graph_size(self, cache: KVCache, batch: Batch) -> int | None:
        """How large a graph takes this step; None: it is run as it is."""
        if cache is not self._graphs_cache or batch.ids.size != batch.counts.size:
            return None
        return min((size for size in self._graphs if size >= batch.counts.size), default=None)

    # --- what runs on the device ---

    def _pass(self, cache: KVCache, tokens: int, kept: int) -> Tensor:
        """Everything from the packed step to the chosen tokens. Returns the logits `[kept, vocabulary]`."""
        logits = self._logits(cache, tokens, kept)
        if kept:
            layout, packed = self._layout, self._packed
            wishes = sampling.Wishes(
                temperature=layout.temperature.on(packed)[:kept],
                top_k=layout.top_k.on(packed)[:kept],
                top_p=layout.top_p.on(packed)[:kept],
                min_p=layout.min_p.on(packed)[:kept],
                uniform=layout.uniform.on(packed)[:kept],
            )
            sampling.sample(logits, wishes, self._chosen[:kept], self._scratch)
        return logits

    def _logits(self, cache: KVCache, tokens: int, kept: int) -> Tensor:
        layout, packed = self._layout, self._packed
        counts = layout.counts.on(packed)
        inputs.apply_changes(self._on_device.view(-1), layout.changes.on(packed), counts[2:3], self._programs)
        ids = layout.ids.on(packed)[:tokens]
        inputs.fill_in(ids, layout.follows.on(packed)[:tokens], self._chosen)
        flat = Flat(
            ids=ids,
            positions=layout.positions.on(packed)[:tokens],
            slots=layout.slots.on(packed)[:tokens],
            keep=layout.keep.on(packed)[:kept],
        )
        paged = _Paged(
            cache,
            self._on_device,
            layout.items.on(packed),
            counts[0:1],
            layout.merges.on(packed),
            counts[1:2],
            self._partials,
            self._programs,
        )
        return self._body.logits(flat, paged)

    # --- what goes there ---

    def _write(
        self,
        batch: Batch,
        rows: Sequence[int],
        asked: Sequence[Sampling],
        slot: _Slot,
        cache: KVCache,
        tokens: int,
        kept: int,
    ) -> object:
        """Pack the step, filled up to `tokens` and `kept`, and copy it. Returns when that began."""
        layout, count = self._layout, batch.ids.size
        if count > layout.room.tokens or len(rows) > layout.room.rows:
            raise ValueError(
                f"a step of {count} tokens and {len(rows)} rows, and there is room for {layout.room.tokens} and "
                f"{layout.room.rows}"
            )
        places, changes = self._tables.place(batch)
        for first in range(0, max(0, len(changes) - MOST_CHANGES), MOST_CHANGES):
            some = torch.from_numpy(changes[first : first + MOST_CHANGES]).to(self._on_device.device)
            many = torch.tensor([len(some)], dtype=torch.int32, device=some.device)
            inputs.apply_changes(self._on_device.view(-1), some, many, self._programs)
        changes = changes[(max(0, len(changes) - 1) // MOST_CHANGES) * MOST_CHANGES :]
        work = plan_work(batch.starts, batch.counts, places, self._group)
        whole = slot.packed.numpy()
        layout.ids.of(whole)[:count] = batch.ids
        layout.follows.of(whole)[:count] = batch.follows
        layout.positions.of(whole)[:count] = batch.positions
        layout.slots.of(whole)[:count] = _slots(batch, self._block_size)
        layout.keep.of(whole)[: len(rows)] = rows
        layout.changes.of(whole)[: len(changes)] = changes
        layout.merges.of(whole)[: len(work.merges)] = work.merges
        layout.items.of(whole)[: len(work.items)] = work.items
        layout.counts.of(whole)[:] = len(work.items), len(work.merges), len(changes), 0
        self._write_wishes(whole, batch, rows, asked)
        self._fill_up(slot, cache, count, tokens, len(rows), kept)
        return self._copy(slot, len(work.items))

    def _write_wishes(
        self,
        whole: Ints,
        batch: Batch,
        rows: Sequence[int],
        asked: Sequence[Sampling],
    ) -> None:
        layout = self._layout
        count = len(asked)
        if not count:
            return
        layout.temperature.of(whole)[:count] = [it.temperature for it in asked]
        layout.top_k.of(whole)[:count] = [it.top_k for it in asked]
        layout.top_p.of(whole)[:count] = [it.top_p for it in asked]
        layout.min_p.of(whole)[:count] = [it.min_p for it in asked]
        positions = batch.positions[list(rows)].tolist()
        layout.uniform.of(whole)[:count] = [
            0.0 if greedy(it) else uniform(it.seed, position + 1) for it, position in zip(asked, positions, strict=True)
        ]
        told = [row for row, it in enumerate(asked) if it.logprobs is not None]
        layout.told.of(whole)[: len(told)] = told

    def _fill_up(self, slot: _Slot, cache: KVCache, count: int, tokens: int, rows: int, kept: int) -> None:
        """What stands behind the step's own, where a graph is larger: tokens that go to the block which nobody has."""
        layout, whole = self._layout, slot.packed.numpy()
        layout.ids.of(whole)[count:tokens] = 0
        layout.follows.of(whole)[count:tokens] = -1
        layout.positions.of(whole)[count:tokens] = 0
        layout.slots.of(whole)[count:tokens] = cache.blocks * self._block_size
        layout.keep.of(whole)[rows:kept] = 0
        for section in (layout.temperature, layout.top_k, layout.top_p, layout.min_p, layout.uniform):
            section.of(whole)[rows:kept] = 0
        if not count:
            layout.counts.of(whole)[:] = 0

    def _copy(self, slot: _Slot, items: int) -> object:
        """Returns when the device began with it."""
        begun = self._timeline.begin()
        used = self._layout.used(items)
        self._packed[:used].copy_(slot.packed[:used], non_blocking=True)
        return begun


@dataclass(frozen=True)
class _Pass:
    """The pass that a graph of `size` rows records."""

    forward: TritonForward
    cache: KVCache
    size: int

    def __call__(self) -> Tensor:
        return self.forward._pass(self.cache, self.size, self.size)


@dataclass(frozen=True)
class _Paged:
    """`kernels.triton.layers.Attention` of one step."""

    cache: KVCache
    tables: Tensor
    items: Tensor
    item_count: Tensor
    merges: Tensor
    merge_count: Tensor
    partials: attention.Partials
    programs: int

    def pages(self, layer: int) -> tuple[Tensor, Tensor]:
        return self.cache.keys[layer], self.cache.values[layer]

    def attend(self, layer: int, query: Tensor, out: Tensor, scale: float, window: int | None) -> None:
        attention.attend(
            query,
            self.cache.keys[layer],
            self.cache.values[layer],
            self.tables,
            self.items,
            self.item_count,
            self.merges,
            self.merge_count,
            self.partials,
            scale=scale,
            window=window,
            out=out,
            programs=self.programs,
        )


@dataclass(frozen=True)
class _OnItsWay:
    """A launched step."""

    landing: Landing
    slot: _Slot
    asked: tuple[Sampling, ...]
    told: Sequence[int]

    def wait(self) -> Ran:
        took_s = self.landing.wait()
        chosen: list[int] = self.slot.chosen_here[: len(self.asked)].tolist()
        tokens = [SampledToken(it) for it in chosen]
        width = 2 * (1 + TOLD)
        ours = self.slot.told_here.numpy()[: len(self.told) * width].reshape(len(self.told), 2, 1 + TOLD)
        for row, (values, which) in zip(self.told, ours, strict=True):
            logprobs = values.view(np.float32).tolist()
            count = self.asked[row].logprobs or 0
            top = tuple(zip(which[1 : 1 + count].tolist(), logprobs[1 : 1 + count], strict=True))
            tokens[row] = SampledToken(chosen[row], logprobs[0], top)
        return Ran(tuple(tokens), took_s)


def graph_sizes(rows: int) -> list[int]:
    """How many rows the recorded steps have: close together where a row more costs a larger share."""
    sizes = [1, 2, 4, *range(8, 32, 8), *range(32, 128, 16), *range(128, 256, 32), *range(256, rows + 64, 64)]
    return [*(it for it in sizes if it < rows), rows]


def _programs(decoder: Decoder) -> int:
    """Programs that walk a list of work of any length: as many as run at a time, for a graph has fixed their number."""
    if decoder.device.type != "cuda":
        return 2
    multiprocessors: int = torch.cuda.get_device_properties(decoder.device).multi_processor_count
    return multiprocessors * attention.programs_at_once(decoder.layers[0].key_dim, decoder.dtype.itemsize)


def _slots(batch: Batch, block_size: int) -> Ints:
    """Where each token's keys and values go `[tokens]`."""
    begins = np.repeat(batch.table_begins[:-1], batch.counts)
    blocks = batch.tables[begins + batch.positions // block_size]
    slots: Ints = blocks * block_size + batch.positions % block_size
    return slots
