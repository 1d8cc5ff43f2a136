"""Volumes of collectives between the ranks of one worker.

Notation
    n      ranks
    bytes  payload: the full tensor a rank holds before (all-reduce, reduce-scatter, all-to-all) or after (all-gather)

Volumes are those of the ring algorithms, which no algorithm without in-switch reduction can undercut (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). One rank communicates nothing.
A reduce-scatter sends what an all-gather does: the first half of the ring all-reduce. In an all-to-all each rank keeps
``1 / n`` of its payload and sends the rest, likewise as much.
"""

from __future__ import annotations


def all_reduce_volume(payload_bytes: float, ranks: int) -> float:
    """Bytes each rank sends in a ring all-reduce: ``2 (n - 1) / n * bytes``."""
    return 2.0 * (ranks - 1) / ranks * payload_bytes


def all_gather_volume(payload_bytes: float, ranks: int) -> float:
    """Bytes each rank sends to gather a tensor of ``payload_bytes`` everywhere: ``(n - 1) / n * bytes``."""
    return (ranks - 1) / ranks * payload_bytes
