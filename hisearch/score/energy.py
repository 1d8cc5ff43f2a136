"""Energy of a simulation by consumer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

from hisearch.hardware.power import BaseParts
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.uses import PoolUse

JOULES_PER_KWH = 3.6e6

#: Kinds of media that are memory; others are storage.
_MEMORY = frozenset({"hbm", "dram", "cxl"})


@dataclass(frozen=True)
class EnergyUse:
    """Joules of all workers over the makespan.

    idle_j: accelerators' idle power while their workers are present, less standby savings. active_j: accelerators'
    work, above idle, and attached devices'. host_j: base load of the workers' shares of their hosts, while present.
    cpu_j: CPU energy above that base load while workers step. links_j: collectives, bytes between a worker's devices,
    and KV and agents' objects moved over hosts' links and networks. tiers_j: the same data written to and read from
    media.
    """

    idle_j: float
    active_j: float
    host_j: float
    cpu_j: float
    links_j: float
    tiers_j: float

    @property
    def total_j(self) -> float:
        """Sum of all consumers."""
        return float(sum(asdict(self).values()))


@dataclass(frozen=True)
class EnergyParts:
    """Joules of all workers over the makespan, by the node's components; the sum is that of ``EnergyUse``.

    accelerators: idle and active. devices: PIM, NPUs and memory attached to them, likewise. cpu: waiting and
    working. dram: main memory kept, KV moved in and out of main and CXL memory. links: switches between
    accelerators, and bytes over links of accelerators, attached devices and hosts. nics: adapters, and bytes over the
    network.
    storage: disks and remote pools. rest: hosts' base load without a known component.
    """

    accelerators_j: float
    devices_j: float
    cpu_j: float
    dram_j: float
    links_j: float
    nics_j: float
    storage_j: float
    rest_j: float

    @property
    def total_j(self) -> float:
        """Sum of all components."""
        return float(sum(asdict(self).values()))


def energy_parts(result: Result) -> EnergyParts:
    """Energy by component of the nodes; see docs/power.md."""
    use, moved = energy_use(result), _moved_j(result)
    base, devices_j = dict.fromkeys(asdict(BaseParts()), 0.0), float(result.workers.attached_j.sum())
    for pool, present_s in zip(pools_of(result), _present_s(result), strict=True):
        devices_j += pool.attached_idle_w * present_s
        for name, watts in asdict(pool.power.base_parts).items():
            base[name] += watts * present_s
    media = dict.fromkeys(("dram", "storage"), 0.0)
    for kind, joules in moved.media.items():
        media["dram" if kind in _MEMORY else "storage"] += joules
    return EnergyParts(
        accelerators_j=use.idle_j + use.active_j - devices_j,
        devices_j=devices_j,
        cpu_j=base["cpu_w"] + use.cpu_j,
        dram_j=base["dram_w"] + media["dram"],
        links_j=base["links_w"] + use.links_j - moved.network_j,
        nics_j=base["nics_w"] + moved.network_j,
        storage_j=base["storage_w"] + media["storage"],
        rest_j=use.host_j - sum(base.values()),
    )


def energy_use(result: Result) -> EnergyUse:
    """Energy by consumer; see ``hardware.power`` for the law.

    ``result.workers.energy_j``: joules of each worker above idle, links between its devices among them.
    """
    uses, moved = _pool_energies(result), _moved_j(result)
    idle_j, active_j, host_j, cpu_j, links_j = (float(sum(column)) for column in zip(*uses, strict=True))
    return EnergyUse(idle_j, active_j, host_j, cpu_j, links_j + moved.links_j, moved.media_j)


def pools_of(result: Result) -> tuple[PoolUse, ...]:
    """The result's pools, or a single pool of all workers if the result names none."""
    workers = len(result.workers.energy_j)
    return result.pools or (PoolUse("main", "unified", 0, workers, result.kv_capacity_tokens, result.idle_w),)


def paid_workers(result: Result) -> float:
    """Workers of all pools, averaged over the makespan."""
    return sum(result.mean_workers) if result.pools else float(len(result.workers.busy_s))


def _pool_energies(result: Result) -> list[tuple[float, ...]]:
    """``_pool_energy`` of each pool."""
    pairs = zip(pools_of(result), _present_s(result), strict=True)
    return [_pool_energy(result, pool, present_s) for pool, present_s in pairs]


def _present_s(result: Result) -> list[float]:
    """Worker-seconds of each pool."""
    present = result.mean_workers or tuple(float(pool.workers) for pool in pools_of(result))
    return [mean * result.makespan_s for mean in present]


def _pool_energy(result: Result, pool: PoolUse, present_s: float) -> tuple[float, ...]:
    """Joules of a pool with ``present_s`` worker-seconds: idle, active, host, CPUs, links of its devices."""
    workers, power = result.workers, pool.power
    mine = slice(pool.first_worker, pool.first_worker + pool.workers)
    tokens = float((workers.prefill_tokens[mine] + workers.decode_tokens[mine]).sum())
    saved = float(workers.standby_s[mine].sum()) * power.own.saving_w
    if power.ffn is not None and workers.ffn_standby_s is not None:
        saved += float(workers.ffn_standby_s[mine].sum()) * power.ffn.saving_w
    link_j = 0.0 if workers.link_j is None else float(workers.link_j[mine].sum())
    return (
        pool.idle_w * present_s - saved,
        float(workers.energy_j[mine].sum()) - link_j,
        power.host_w * present_s,
        power.cpu_w * float(workers.busy_s[mine].sum()),
        power.peer_j_per_token * tokens + link_j,
    )


class _Moved(NamedTuple):
    """Joules of moving KV and agents' objects: over hosts' links, over networks, and in media by kind."""

    host_links_j: float
    network_j: float
    media: dict[str, float]

    @property
    def links_j(self) -> float:
        return self.host_links_j + self.network_j

    @property
    def media_j(self) -> float:
        return sum(self.media.values())


def _moved_j(result: Result) -> _Moved:
    pools = pools_of(result)
    media: dict[str, float] = {}
    for store in result.stores:
        if 0 < store.tier <= len(pools[store.pool].tier_energy):
            of_tier = pools[store.pool].tier_energy[store.tier - 1]
            joules = (store.stored_tokens + store.read_tokens) * of_tier.joules
            media[of_tier.kind] = media.get(of_tier.kind, 0.0) + joules
    network = others = 0.0
    for link in result.links:
        pool = pools[link.pool]
        # Traffic through what is shared on the way to host memory has already passed over links of its own.
        if not 0 < link.tier <= len(pool.tier_energy) or link.path in ("memory", "shared"):
            continue
        size = link.tokens * pool.tier_energy[link.tier - 1].bytes
        if link.path == "network":
            network += size * pool.power.network_j_per_byte
        else:
            others += size * pool.power.host_link_j_per_byte
    if result.objects:
        others += _add_objects(result, media)
    return _Moved(others, network, media)


def _add_objects(result: Result, media: dict[str, float]) -> float:
    """Add the media joules of agents' objects; return the joules on hosts' links that link counts lack.

    With tiers, the links' tokens include loads and reads that ended. Without tiers, host memory has no known joules per
    byte. Disk reads pass through both media.
    """
    pool = pools_of(result)[0]
    lost = sum(use.lost_bytes for use in result.objects)
    loaded = sum(use.loaded_bytes for use in result.objects)
    if not pool.tier_energy:
        return (loaded + lost) * pool.power.host_link_j_per_byte
    host = pool.tier_energy[0]
    read = sum(use.disk_bytes + use.disk_lost_bytes for use in result.objects)
    media[host.kind] = media.get(host.kind, 0.0) + (loaded + lost + read) * host.joules / host.bytes
    if read:
        disk = pool.tier_energy[1]
        media[disk.kind] = media.get(disk.kind, 0.0) + read * disk.joules / disk.bytes
        lost += sum(use.disk_lost_bytes for use in result.objects)
    return lost * pool.power.host_link_j_per_byte


def mean_w(result: Result) -> float:
    """Mean watts of all workers and their shares of their hosts; 0 for an empty makespan."""
    return energy_use(result).total_j / result.makespan_s if result.makespan_s > 0 else 0.0


def energy_usd_per_hour(result: Result) -> float:
    """Electricity in dollars per hour, including the sites' overhead; 0 if no host states a price.

    Links' and media's joules count at the first pool's price.
    """
    if result.makespan_s <= 0:
        return 0.0
    pools = pools_of(result)
    joules, moved = [sum(parts) for parts in _pool_energies(result)], _moved_j(result)
    joules[0] += moved.links_j + moved.media_j
    usd = sum(
        use * pool.power.pue * pool.power.usd_per_kwh / JOULES_PER_KWH for use, pool in zip(joules, pools, strict=True)
    )
    return usd * 3600.0 / result.makespan_s
