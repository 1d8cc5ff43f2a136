"""Energy of a simulation, by what draws it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hisearch.simulate.result import PoolUse, Result

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class EnergyUse:
    """Joules of all workers over the makespan.

    idle_j: accelerators' idle power while their workers are there, less what standby saves. active_j: their work, above
    idle. host_j: base load of the workers' shares of their hosts, likewise. cpu_j: what CPUs draw beyond it while
    workers step. links_j: collectives, and KV moved over hosts' links and networks. tiers_j: KV written to and read
    from media.
    """

    idle_j: float
    active_j: float
    host_j: float
    cpu_j: float
    links_j: float
    tiers_j: float

    @property
    def total_j(self) -> float:
        """All of it."""
        return float(sum(asdict(self).values()))


def energy_use(result: Result) -> EnergyUse:
    """Energy by what draws it; see ``hardware.power`` for the law.

    ``result.workers.energy_j`` are each worker's joules above idle, ``result.workers.standby_s`` what its accelerators
    spent in standby.
    """
    uses = _pool_energies(result)
    links_j, tiers_j = _movement_j(result)
    idle_j, active_j, host_j, cpu_j, peer_j = (float(sum(column)) for column in zip(*uses, strict=True))
    return EnergyUse(idle_j, active_j, host_j, cpu_j, peer_j + links_j, tiers_j)


def pools_of(result: Result) -> tuple[PoolUse, ...]:
    """The result's pools, or one of all its workers where it does not say."""
    workers = len(result.workers.energy_j)
    return result.pools or (PoolUse("main", "unified", 0, workers, result.kv_capacity_tokens, result.idle_w),)


def paid_workers(result: Result) -> float:
    """Workers of all pools that are there on average over the makespan."""
    return sum(result.mean_workers) if result.pools else float(len(result.workers.busy_s))


def _pool_energies(result: Result) -> list[tuple[float, ...]]:
    """Of each pool, as of ``_pool_energy``."""
    pools = pools_of(result)
    present = result.mean_workers or tuple(float(pool.workers) for pool in pools)
    return [_pool_energy(result, pool, mean * result.makespan_s) for pool, mean in zip(pools, present, strict=True)]


def _pool_energy(result: Result, pool: PoolUse, present_s: float) -> tuple[float, ...]:
    """Joules of a pool, whose workers were there for so long together: idle, active, host, CPUs, collectives."""
    workers, power = result.workers, pool.power
    mine = slice(pool.first_worker, pool.first_worker + pool.workers)
    tokens = float((workers.prefill_tokens[mine] + workers.decode_tokens[mine]).sum())
    saved = float(workers.standby_s[mine].sum()) * power.standby_saving_w * power.accelerators
    return (
        pool.idle_w * present_s - saved,
        float(workers.energy_j[mine].sum()),
        power.host_w * present_s,
        power.cpu_w * float(workers.busy_s[mine].sum()),
        power.peer_j_per_token * tokens,
    )


def _movement_j(result: Result) -> tuple[float, float]:
    """Joules of links and of media for KV that moved between tiers, by the first pool's figures."""
    power = pools_of(result)[0].power
    per_token = dict(enumerate(result.tier_energy, start=1))
    media = sum(
        (store.stored_tokens + store.read_tokens) * per_token[store.tier].joules
        for store in result.stores
        if store.tier in per_token
    )
    j_per_byte = {"network": power.network_j_per_byte}
    links = sum(
        link.tokens * per_token[link.tier].bytes * j_per_byte.get(link.path, power.host_link_j_per_byte)
        for link in result.links
        if link.tier in per_token
    )
    return links, media


def mean_w(result: Result) -> float:
    """Mean watts of all workers and their shares of their hosts; 0 where nothing happened."""
    return energy_use(result).total_j / result.makespan_s if result.makespan_s > 0 else 0.0


def energy_usd_per_hour(result: Result) -> float:
    """Dollars per hour of electricity, the sites' own use included; 0 where no host states a price of it.

    Links' and media's joules count at the first pool's price.
    """
    if result.makespan_s <= 0:
        return 0.0
    pools = pools_of(result)
    joules = [sum(parts) for parts in _pool_energies(result)]
    joules[0] += sum(_movement_j(result))
    usd = sum(
        use * pool.power.pue * pool.power.usd_per_kwh / JOULES_PER_KWH for use, pool in zip(joules, pools, strict=True)
    )
    return usd * 3600.0 / result.makespan_s
