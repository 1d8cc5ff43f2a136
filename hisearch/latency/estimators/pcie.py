"""Collectives of accelerators that talk over PCIe, carried over to those whose own were not measured.

A link's sheet says little of them: two measured machines attain 0.60 and 0.58 of it between two ranks, 0.15 and 0.45
between four, 0.06 and 0.37 between eight (L40S on PCIe 4, RTX PRO 6000 on PCIe 5). Switches, sockets and whether peers
reach each other at all decide. The machine with the nearest link is taken, which a warning says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from hisearch.latency.sheets import of_catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.laws import CollectiveCurve, CollectiveCurves
from hisearch.specs.machines.profile import ProfileChoice


class PcieCollectives(NamedTuple):
    """Curves, and the accelerator that they were measured on."""

    curves: CollectiveCurves
    accelerator: str

    @property
    def warning(self) -> str:
        """What a reader should know of them."""
        return (
            f"collectives over PCIe are those of {self.accelerator} by the ratio of links; measured machines differ "
            "three times between four ranks, six times between eight: measure yours"
        )


def pcie_collectives(accelerator: AcceleratorSpec, choices: Iterable[ProfileChoice]) -> PcieCollectives | None:
    """Those of the nearest link among ``choices``; None where peers talk otherwise, or nothing was measured."""
    if accelerator.peer_link.kind != "pcie":
        return None
    bandwidth = accelerator.peer_link.bandwidth_bytes_per_s
    best, least = None, math.inf
    for choice in choices:
        card = of_catalogue("Accelerator", choice.accelerator)
        laws = of_catalogue("LatencyProfile", choice.profile).laws
        if card.peer_link.kind != "pcie" or laws is None or laws.collectives is None:
            continue
        ratio = bandwidth / card.peer_link.bandwidth_bytes_per_s
        if abs(math.log(ratio)) < least:
            best, least = PcieCollectives(_scaled(laws.collectives, ratio), choice.accelerator), abs(math.log(ratio))
    return best


def _scaled(curves: CollectiveCurves, ratio: float) -> CollectiveCurves:
    """The same seconds for payloads ``ratio`` times as large: launches stay, bandwidth does not."""

    def scaled(curve: CollectiveCurve) -> CollectiveCurve:
        return curve.model_copy(update={"payload_bytes": [ratio * size for size in curve.payload_bytes]})

    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    return curves.model_copy(update={kind: [scaled(curve) for curve in getattr(curves, kind)] for kind in kinds})
