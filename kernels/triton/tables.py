"""Block tables that stay on the device: who has which row, and what has to change there for the next step.

Knows the tables as they are on the device, kept here once more. Knows no tensors: it says what changes, and somebody
else changes it, in the order of the steps.
"""

from collections import OrderedDict

import numpy as np

from kernels.batch import Batch, Ints


class BlockTables:
    """`rows` tables of `width` blocks each, all zeros at first.

    A request keeps its row until somebody else needs one and it is the one that has not been in a step for the longest
    time. So a request that decodes costs a change only where it gets another block.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.rows = rows
        self.width = width
        self._here = np.zeros(rows * width, np.int32)
        self._free = list(range(rows - 1, -1, -1))
        self._row_of: OrderedDict[str, int] = OrderedDict()

    def place(self, batch: Batch) -> tuple[Ints, Ints]:
        """The row of each sequence `[sequences]`, and what has to change before the step: `[changes, 2]`, each a place
        in the flat tables and the block that is to be there.

        Raises ValueError when a step has more requests than there are rows, or a table is wider than they are.
        """
        rows = np.array(self._rows(batch.requests), np.int32)
        lengths = np.diff(batch.table_begins)
        if lengths.size and lengths.max() > self.width:
            raise ValueError(f"a block table has {lengths.max()} blocks, and there is room for {self.width}")
        # Place k of a table is place k of its row.
        shift = rows.astype(np.int64) * self.width - batch.table_begins[:-1]
        places = np.arange(batch.tables.size) + np.repeat(shift, lengths)
        changed = np.flatnonzero(self._here[places] != batch.tables)
        places, blocks = places[changed], batch.tables[changed]
        self._here[places] = blocks
        return rows, np.stack((places.astype(np.int32), blocks), axis=1)

    def forget(self) -> None:
        """Nobody knows what is on the device: let all of it be said again."""
        self._here.fill(-1)

    def _rows(self, requests: tuple[str, ...]) -> list[int]:
        if len(set(requests)) != len(requests):
            raise ValueError("a request is in a step twice")
        if len(requests) > self.rows:
            raise ValueError(f"{len(requests)} requests are in a step, and there are {self.rows} block tables")
        known = self._row_of
        for request in requests:
            if request in known:
                known.move_to_end(request)
        for request in requests:
            if request not in known:
                # Those of this step were just moved to the end, and there are rows for all of them.
                known[request] = self._free.pop() if self._free else known.popitem(last=False)[1]
        return [known[request] for request in requests]
