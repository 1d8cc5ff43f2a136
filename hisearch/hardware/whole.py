"""Hardware that several accelerators or workers share: it is bought whole.

A device is shared by accelerators of one host, which has ``count`` of it for every ``shared_by`` of its accelerators in
use, or part of as many. One that more accelerators share than a host has slots, or whose host is not known, is counted
for the pool. FFN accelerators that stand apart are bought for every group of attention workers, or part of one.
"""

from __future__ import annotations

from typing import NamedTuple

from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.machines.devices import AttachedDeviceSpec
from hisearch.specs.machines.hardware import HostSpec
from hisearch.specs.machines.parallelism import nodes_per_worker, workers_per_node


class Shared(NamedTuple):
    """Hardware of a pool, ``number`` of it for every ``among`` users; a worker has ``users`` of them.

    hosts: of a worker, each with as many users. workers: of a host; None: users are counted for the pool.
    """

    number: int
    among: int
    users: int
    hosts: int = 1
    workers: int | None = None

    def bought(self, replicas: int) -> int:
        """How many of it so many workers need, which fill hosts one after the other."""
        if self.workers is None:
            return self._whole(replicas * self.users)
        if self.hosts > 1:
            return replicas * self.hosts * self._whole(-(-self.users // self.hosts))
        full, rest = divmod(replicas, self.workers)
        return full * self._whole(self.workers * self.users) + self._whole(rest * self.users)

    def _whole(self, users: int) -> int:
        return -(-users // self.among) * self.number


def shared_devices(pool: PoolSpec, entry: AttachedDeviceSpec, host: HostSpec | None) -> Shared:
    """Devices of a pool's entry, on hosts of that kind."""
    split = pool.parallelism
    plain = Shared(entry.count, entry.shared_by, split.ranks)
    if host is None or entry.shared_by > host.accelerators:
        return plain
    return plain._replace(hosts=nodes_per_worker(split, host), workers=workers_per_node(split, host))


def ffn_accelerators(pool: PoolSpec) -> Shared | None:
    """FFN accelerators of a pool; None without attention-FFN disaggregation."""
    afd = pool.devices.attention_ffn if pool.devices is not None else None
    return Shared(afd.ffn, afd.attention, 1) if afd is not None else None
