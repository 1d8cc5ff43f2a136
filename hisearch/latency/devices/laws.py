"""Laws of a device's operators: data-sheet roofline, systolic arrays, processing in memory (PIM), energy.

Notation: ``Work`` is one operator of one layer (``hisearch.latency.devices.work``); all laws return seconds, or joules.

Sheet       max(flops / (peak * e), bytes / (bandwidth * e)) + launch
Systolic    max(cycles / clock, bytes / (bandwidth * e)) + launch, weights stationary, the next tile's weights loading
            while operands pass:
                cycles = ceil(groups * ceil(inputs / R) * ceil(outputs / C) / arrays) * max(rows, R) + R + C
            Activations that exceed the scratchpad are cut into ceil(rows * inputs * 2 / scratchpad) parts; each reads
            the weights again. Operators without a product run on the vector unit, an operation for each
            element at least.
PIM         the busiest channel's products: max(bytes, flops / f) / (B_in * e) + product_s each, with B_in the internal
            rate of a channel. Each row of a product is a separate matrix-vector product, which reads the matrix again
            and pays for its vector and commands; so do queries that share a KV head. Attention maps by head or by
            request, over one channel each or s of them, or is striped over all. Products of weights are striped.
            Operators without a product pass the pins: bytes / B. Joules count the bytes read inside.
Source of the systolic law: Samajdar et al., "A systematic methodology for characterizing scalability of DNN
accelerators using SCALE-Sim" (ISPASS 2020), with weight loading hidden by double buffering. Of the PIM law: Heo et al.,
"NeuPIMs" (ASPLOS 2024), section 5, and Lee et al., "Hardware architecture and software stack for PIM based on
commercial DRAM technology" (ISCA 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.devices.work import Work, WorkKind
from hisearch.latency.operators import ACTIVATION_BYTES
from hisearch.specs.base import DType
from hisearch.specs.machines.devices import PimSpec
from hisearch.specs.machines.systolic import SystolicSpec

ALL_KINDS: frozenset[WorkKind] = frozenset({"product", "elementwise", "prefill_attention", "decode_attention"})


class Law(Protocol):
    """Seconds, or joules, of one operator of one layer."""

    def knows(self, kind: WorkKind) -> bool:
        """Whether there is a law for it."""
        ...

    def cost(self, work: Work) -> F8:
        """Same shape as the work's arrays."""
        ...


@dataclass(frozen=True)
class FamilyRate:
    """Attained rates of operators of one kind."""

    flops_share: float
    bytes_per_s: float
    launch_s: float


@dataclass(frozen=True)
class SheetLaw:
    """A roofline; with ``scale`` watts and ``memory_power_share`` that of ``hisearch.hardware.power``."""

    peak_flops: dict[DType, float]
    families: dict[WorkKind, FamilyRate]
    scale: float = 1.0
    memory_power_share: float | None = None

    def knows(self, kind: WorkKind) -> bool:
        """See ``Law``."""
        return kind in self.families

    def cost(self, work: Work) -> F8:
        """See ``Law``."""
        rate = self.families[work.kind]
        arithmetic = work.flops / (self.peak_flops[work.dtype] * rate.flops_share)
        memory = work.moved_bytes / rate.bytes_per_s
        busy = np.maximum(arithmetic, memory)
        if self.memory_power_share is not None:
            busy = np.minimum(arithmetic + memory * self.memory_power_share, busy)
        return np.asarray((busy + rate.launch_s) * self.scale)


@dataclass(frozen=True)
class SystolicLaw:
    """Systolic arrays with their vector unit; ``bytes_per_s`` of the memory."""

    spec: SystolicSpec
    bytes_per_s: float

    def knows(self, kind: WorkKind) -> bool:
        """See ``Law``."""
        return kind in ALL_KINDS

    def cost(self, work: Work) -> F8:
        """See ``Law``."""
        spec, moved = self.spec, work.moved_bytes
        if work.kind == "elementwise":
            # One operation at least for each element that is read or written.
            busy = np.maximum(work.flops, moved / ACTIVATION_BYTES) / spec.vector_flops
        else:
            tiles = np.ceil(work.inputs / spec.rows) * np.ceil(np.maximum(work.outputs, 1.0) / spec.columns)
            rounds = np.ceil(work.groups * tiles / spec.arrays)
            busy = (rounds * np.maximum(work.rows, spec.rows) + (spec.rows + spec.columns)) / spec.clock_hz
        if work.kind == "product":
            weights = np.maximum(moved - self._activations(work), 0.0)
            held = work.rows * work.inputs * ACTIVATION_BYTES
            moved = moved + weights * (np.maximum(np.ceil(held / spec.scratchpad_bytes), 1.0) - 1.0)
        return np.asarray(np.maximum(busy, moved / (self.bytes_per_s * spec.bandwidth)) + spec.launch_s)

    @staticmethod
    def _activations(work: Work) -> F8:
        return np.asarray(work.groups * work.rows * (work.inputs + work.outputs) * ACTIVATION_BYTES)


@dataclass(frozen=True)
class PimLaw:
    """Processing in memory."""

    spec: PimSpec
    kv_heads: int = 1

    def knows(self, kind: WorkKind) -> bool:
        """All but prompt attention."""
        return kind != "prefill_attention"

    def cost(self, work: Work) -> F8:
        """See ``Law``."""
        spec, channels = self.spec, self.spec.channels
        if work.kind == "elementwise":
            return np.asarray(work.moved_bytes / (spec.channel_bytes_per_s * channels))
        busy = bytes_inside(spec, work) / (spec.channel_bytes_per_s * spec.internal_speedup * spec.efficiency)
        if work.kind == "product" or spec.mapping == "striped":
            return np.asarray(busy / channels + work.groups * work.rows * spec.product_s)
        heads = 1.0 if spec.mapping == "heads" else float(self.kv_heads)
        # Scores and outputs are two groups of products.
        units = work.groups / 2.0 / heads
        busiest = np.ceil(units * spec.stripe_channels / channels)
        unit_s = busy / np.maximum(units * spec.stripe_channels, 1e-9) + 2.0 * heads * work.rows * spec.product_s
        return np.asarray(busiest * unit_s)


@dataclass(frozen=True)
class PimEnergy:
    """Joules by the bytes that PIM reads internally, and by its FLOPs."""

    spec: PimSpec
    j_per_byte: float
    j_per_flop: float

    def knows(self, kind: WorkKind) -> bool:
        """See ``Law``."""
        return kind in ALL_KINDS

    def cost(self, work: Work) -> F8:
        """See ``Law``."""
        return np.asarray(bytes_inside(self.spec, work) * self.j_per_byte + work.flops * self.j_per_flop)


def bytes_inside(spec: PimSpec, work: Work) -> F8:
    """Bytes that PIM's banks read: a matrix is read again for every vector that the units cannot hold at once."""
    return np.maximum(work.moved_bytes, work.flops / spec.flops_per_byte)
