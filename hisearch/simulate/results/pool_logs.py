"""The logs of several pools' steps as one, steps by when they were formed.

Entries and losses are in the order of their steps, as in the log of one pool: a reader may repeat each step by the
number of its entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hisearch.base.dtypes import I8
from hisearch.kernels.layout.log import OUTPUT_LOG
from hisearch.simulate.results.tables import StepLog


def merged_logs(logs: Sequence[StepLog]) -> StepLog:
    """One log of all; workers have their numbers in the fleet already.

    Steps formed at the same time are in the order of ``logs``. A loss outside any step stays before the next step
    of its pool, or after all steps if there is none.
    """
    if len(logs) == 1:
        return logs[0]
    steps = np.concatenate([log.steps for log in logs])
    order = np.argsort(steps["scheduled_s"], kind="stable")
    merged = steps[order]
    first_entry = np.concatenate([log.steps["first_entry"] for log in logs])
    counts = np.concatenate([log.steps["entries"] for log in logs])
    lengths = [len(log) for log in logs]
    entries, _ = _laid_out([log.entries for log in logs], first_entry, counts, lengths, order)
    outputs = None
    if any(log.outputs is not None for log in logs):
        outputs, _ = _laid_out([_outputs(log) for log in logs], first_entry, counts, lengths, order)
    merged["first_entry"] = np.cumsum(merged["entries"], dtype=np.int64) - merged["entries"]
    # A step's losses and those outside any step before it: from the end of the previous step's.
    ends = [log.steps["first_lost"] + log.steps["lost"] for log in logs]
    begins = [np.concatenate([[0], end[:-1]]) if len(end) else end for end in ends]
    spans = np.concatenate([end - begin for begin, end in zip(begins, ends, strict=True)])
    lost, last = _laid_out([log.lost for log in logs], np.concatenate(begins), spans, lengths, order)
    merged["first_lost"] = last - merged["lost"]
    tails = [log.lost[end[-1] if len(end) else 0 :] for log, end in zip(logs, ends, strict=True)]
    fetches = np.concatenate([log.fetches for log in logs])
    return StepLog(merged, entries, np.concatenate([lost, *tails]), fetches, outputs)


def _outputs(log: StepLog) -> np.ndarray:
    """What came of each entry; -1 throughout where the log's pool drafts nothing."""
    return np.full(len(log.entries), -1, OUTPUT_LOG) if log.outputs is None else log.outputs


def _laid_out(
    parts: Sequence[np.ndarray], first: I8, counts: I8, steps: Sequence[int], order: I8
) -> tuple[np.ndarray, I8]:
    """(the steps' records in the new order, end of each step's range).

    parts: records of each log, (E_i,). first, counts: (S,) begin and length of each step's range in its log's records.
    steps: number of steps of each log. order: (S,) the new order.
    """
    offsets = np.concatenate([[0], np.cumsum([len(records) for records in parts])])[:-1]
    begin = (first + np.repeat(offsets, steps))[order].astype(np.int64)
    count = counts[order].astype(np.int64)
    ends = np.cumsum(count)
    take = np.repeat(begin - (ends - count), count) + np.arange(int(count.sum()))
    return np.concatenate(list(parts))[take], ends
