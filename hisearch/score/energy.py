"""Energy of a simulation, by what draws it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hisearch.simulate.result import Result

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True)
class EnergyUse:
    """Joules of all workers over the makespan.

    idle_j: accelerators' idle power all the while, less what standby saves. active_j: their work, above idle.
    host_j: base load of the workers' shares of their hosts. cpu_j: what CPUs draw beyond it while workers step.
    links_j: collectives, and KV moved over hosts' links and networks. tiers_j: KV written to and read from media.
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

    ``result.idle_w`` is one lane's idle power, ``result.workers.energy_j`` each lane's joules above idle,
    ``result.workers.standby_s`` what each worker's accelerators spent in standby.
    """
    workers, power, span_s = result.workers, result.power, result.makespan_s
    lanes = len(workers.energy_j)
    count = lanes / result.lanes
    saved = float(workers.standby_s.sum()) * power.standby_saving_w * power.accelerators
    tokens = float((workers.prefill_tokens + workers.decode_tokens).sum())
    per_token = dict(enumerate(result.tier_energy, start=1))
    moved = sum(
        (store.stored_tokens + store.read_tokens) * per_token[store.tier].joules
        for store in result.stores
        if store.tier in per_token
    )
    linked = sum(
        link.tokens * per_token[link.tier].bytes * (
            power.network_j_per_byte if link.path == "network" else power.host_link_j_per_byte
        )
        for link in result.links
        if link.tier in per_token
    )  # fmt: skip
    return EnergyUse(
        idle_j=result.idle_w * lanes * span_s - saved,
        active_j=float(workers.energy_j.sum()),
        host_j=power.host_w * count * span_s,
        cpu_j=power.cpu_w * float(workers.busy_s.sum()) / result.lanes,
        links_j=power.peer_j_per_token * tokens + linked,
        tiers_j=moved,
    )


def mean_w(result: Result) -> float:
    """Mean watts of all workers and their shares of their hosts; 0 where nothing happened."""
    return energy_use(result).total_j / result.makespan_s if result.makespan_s > 0 else 0.0


def energy_usd_per_hour(result: Result) -> float:
    """Dollars per hour of electricity, the site's own use included; 0 where no host states a price of it."""
    power = result.power
    return mean_w(result) * power.pue * power.usd_per_kwh * 3600.0 / JOULES_PER_KWH
