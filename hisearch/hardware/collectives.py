"""Collectives between the ranks of one worker, as alpha-beta.

Notation
    n      ranks
    bytes  payload: the full tensor a rank holds before (all-reduce, reduce-scatter, all-to-all) or after (all-gather)
    B      link bandwidth per rank and direction, bytes/s; e, the share of it attained
    alpha  fixed seconds of one collective; where not given, the hops of the ring times the link's latency

    seconds = alpha + volume / (B * e)

Volumes are those of the ring algorithms, which no algorithm without in-switch reduction can undercut (Patarasuk and
Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). One rank communicates nothing:
0 bytes, 0 s.
"""

from __future__ import annotations

from hisearch.specs.machines.hardware import LinkSpec


def all_reduce_volume(payload_bytes: float, ranks: int) -> float:
    """Bytes each rank sends in a ring all-reduce: ``2 (n - 1) / n * bytes``."""
    return 2.0 * (ranks - 1) / ranks * payload_bytes


def all_gather_volume(payload_bytes: float, ranks: int) -> float:
    """Bytes each rank sends to gather a tensor of ``payload_bytes`` everywhere: ``(n - 1) / n * bytes``."""
    return (ranks - 1) / ranks * payload_bytes


def all_reduce_s(
    payload_bytes: float, ranks: int, link: LinkSpec, *, alpha_s: float | None = None, efficiency: float = 1.0
) -> float:
    """Seconds of an all-reduce; the ring takes ``2 (n - 1)`` hops."""
    return _seconds(all_reduce_volume(payload_bytes, ranks), 2 * (ranks - 1), link, alpha_s, efficiency)


def all_gather_s(
    payload_bytes: float, ranks: int, link: LinkSpec, *, alpha_s: float | None = None, efficiency: float = 1.0
) -> float:
    """Seconds of an all-gather; the ring takes ``n - 1`` hops."""
    return _seconds(all_gather_volume(payload_bytes, ranks), ranks - 1, link, alpha_s, efficiency)


def reduce_scatter_s(
    payload_bytes: float, ranks: int, link: LinkSpec, *, alpha_s: float | None = None, efficiency: float = 1.0
) -> float:
    """Seconds of a reduce-scatter: the first half of the ring all-reduce, ``(n - 1) / n * bytes`` in ``n - 1`` hops."""
    return _seconds(all_gather_volume(payload_bytes, ranks), ranks - 1, link, alpha_s, efficiency)


def all_to_all_s(
    payload_bytes: float, ranks: int, link: LinkSpec, *, alpha_s: float | None = None, efficiency: float = 1.0
) -> float:
    """Seconds of an all-to-all: each rank keeps ``1 / n`` of its payload and sends the rest directly, in one hop."""
    return _seconds(all_gather_volume(payload_bytes, ranks), min(ranks - 1, 1), link, alpha_s, efficiency)


def send_recv_s(
    payload_bytes: float, link: LinkSpec, *, alpha_s: float | None = None, efficiency: float = 1.0
) -> float:
    """Seconds of one rank sending ``payload_bytes`` to another."""
    return _seconds(payload_bytes, 1, link, alpha_s, efficiency)


def _seconds(volume_bytes: float, hops: int, link: LinkSpec, alpha_s: float | None, efficiency: float) -> float:
    if hops == 0:
        return 0.0
    fixed_s = hops * link.latency_s if alpha_s is None else alpha_s
    return fixed_s + volume_bytes / (link.bandwidth_bytes_per_s * efficiency)
