"""The way from an accelerator to host memory: its own link, and what neighbouring slots share behind it."""

from __future__ import annotations

from collections.abc import Iterable

from hisearch.specs.machines.hardware import LinkSpec, SharedLinkSpec


def to_host(link: LinkSpec, shared: Iterable[SharedLinkSpec], ranks: int) -> LinkSpec:
    """``link`` as each of ``ranks`` neighbouring ranks sees it that move as much at once, as ranks of a worker do.

    Each has its part of what lies behind its own link, a Host's ``shared``: a switch, a root port, a socket's memory.
    """
    bandwidth, latency_s = link.bandwidth_bytes_per_s, link.latency_s
    for part in shared:
        bandwidth = min(bandwidth, part.bandwidth_bytes_per_s / min(ranks, part.accelerators))
        latency_s = max(latency_s, part.latency_s)
    return link.model_copy(update={"bandwidth_bytes_per_s": bandwidth, "latency_s": latency_s})
