"""Hardware that several accelerators or workers share: it is bought whole.

A device is shared by accelerators of one host, which has ``count`` of it for every ``shared_by`` of its accelerators in
use, or part of as many. One that more accelerators share than a host has slots, or whose host is not known, is counted
for the pool. FFN accelerators that stand apart are bought for every group of attention workers, or part of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.machines.devices import AttachedDeviceSpec
from hisearch.specs.machines.hardware import HostSpec
from hisearch.specs.machines.parallelism import nodes_per_worker, workers_per_node


def devices_bought(pool: PoolSpec, entry: AttachedDeviceSpec, host: HostSpec | None) -> int:
    """Whole devices of a pool's entry, on hosts of that kind."""
    if host is None or entry.shared_by > host.accelerators:
        return entry.whole(pool.accelerators)
    return sum(hosts * entry.whole(accelerators) for hosts, accelerators in _filled(pool, host))


def ffn_accelerators_bought(pool: PoolSpec) -> int:
    """FFN accelerators of a pool; 0 without attention-FFN disaggregation."""
    afd = pool.devices.attention_ffn if pool.devices is not None else None
    return math.ceil(pool.replicas / afd.attention) * afd.ffn if afd is not None else 0


def _filled(pool: PoolSpec, host: HostSpec) -> Iterator[tuple[int, int]]:
    """(hosts, accelerators in use on each of them): workers fill hosts one after the other."""
    split = pool.parallelism
    nodes = nodes_per_worker(split, host)
    if nodes > 1:
        yield pool.replicas * nodes, -(-split.ranks // nodes)
        return
    full, rest = divmod(pool.replicas, workers_per_node(split, host))
    yield full, workers_per_node(split, host) * split.ranks
    yield 1, rest * split.ranks
