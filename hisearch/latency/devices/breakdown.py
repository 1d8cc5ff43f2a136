"""A step's seconds and joules by operator and device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.latency.devices.work import Load, Measure
from hisearch.latency.devices.worker import DeviceWorker
from hisearch.specs.machines.devices import ACCELERATOR

#: Where collectives take their seconds, and their joules.
COLLECTIVES: dict[Measure, str] = {"seconds": ACCELERATOR, "joules": "link"}

#: Operator name of stages without an operator.
TRANSFER = "transfers"


class OperatorShare(NamedTuple):
    """One operator on one device, all layers of one rank: its own seconds, joules above idle."""

    operator: str
    device: str
    seconds: float
    joules: float


def by_operator(worker: DeviceWorker, load: Load) -> list[OperatorShare]:
    """Shares of a serial step with its LM head, the largest first.

    Their seconds add up to the step if nothing overlaps and nothing waits for streamed weights.

    Args:
        worker: a worker of devices.
        load: one load (arrays of one entry); decodes sample, prompts do not.
    """
    totals: dict[tuple[str, str], list[float]] = {}
    layers = worker.model.layers
    measures: tuple[Measure, ...] = ("seconds", "joules")
    for index, measure in enumerate(measures):
        stages = [(stage, layers) for stage in worker.stages(load, measure)]
        if float(load.sequences[0]) > 0:
            stages += [(stage, 1) for stage in worker.sequence_stages(load.sequences, measure)]
        for stage, times in stages:
            key = (stage.operator, stage.station) if stage.operator else (TRANSFER, "link")
            totals.setdefault(key, [0.0, 0.0])[index] += times * float(np.ravel(stage.seconds)[0])
        embedding = float(np.ravel(worker.collectives.embedding(load.tokens, measure))[0])
        if embedding:
            totals.setdefault(("collectives", COLLECTIVES[measure]), [0.0, 0.0])[index] += embedding
    shares = [OperatorShare(*key, *values) for key, values in totals.items()]
    return sorted(shares, key=lambda share: -share.seconds)
