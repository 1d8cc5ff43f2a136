"""Use, cost and marginal value of each tier of a simulated deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from hisearch.score.stated import percentile_of, spoken_of, stated
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.plans.tier_plan import TierPlan
from hisearch.simulate.results.parts import of_pool
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tier_series import tier_series
from hisearch.simulate.results.uses import LinkUse, StoreUse

if TYPE_CHECKING:
    from hisearch.api.deployments.simulated import SimulatedRun
    from hisearch.hardware.prices import CostBreakdown, TierCost
    from hisearch.simulate.plans.plan import WorkerPlan

_GIB = float(2**30)

#: Share by which a tier is enlarged to measure its marginal value.
VALUE_STEP = 0.1


def tier_rows(simulated: SimulatedRun) -> list[dict[str, Any]]:
    """A row for HBM and each tier below it, of every pool with such tiers; see docs/json.md for the keys."""
    rows: list[dict[str, Any]] = []
    bought = 0
    for p, (pool, plan) in enumerate(zip(simulated.resolved.deployment.pools, simulated.fleet.pools, strict=True)):
        if not plan.plan.tiers:
            continue
        tiers = simulated.cost.tiers[bought : bought + len(plan.plan.tiers)]
        bought += len(tiers)
        cost = replace(simulated.cost, tiers=tiers)
        pool_result = simulated.result if len(simulated.fleet.pools) == 1 else of_pool(simulated.result, p)
        pool_rows = rows_of(plan.plan, pool_result, cost, pool.parallelism.group_ranks)
        rows += [{"pool": pool.name, **row} for row in pool_rows]
    return rows


def rows_of(plan: WorkerPlan, result: Result, cost: CostBreakdown, ranks: int) -> list[dict[str, Any]]:
    """``tier_rows`` of a worker's plan; ``ranks``: number of ranks that share a token's KV in HBM."""
    if not plan.tiers:
        return []
    prompt = result.prompt_tokens
    # Prompts get no hits at decode workers.
    hits = (0,) * (1 + len(plan.tiers)) if plan.writes_back_output else result.tier_hit_tokens
    hbm_bytes = plan.memory.kv_bytes_per_token_per_rank * ranks
    rows = []
    for index in range(1 + len(plan.tiers)):
        tier = plan.tiers[index - 1] if index else None
        stores = [store for store in result.stores if store.tier == index]
        per_token = tier.bytes_per_token if tier else hbm_bytes
        row: dict[str, Any] = {
            "tier": tier.medium if tier else "hbm",
            "scope": tier.scope if tier else "worker",
            "stores": len(stores),
            "capacity_tokens": _sum(stores, "capacity_tokens"),
            "capacity_gib": _sum(stores, "capacity_tokens") * per_token / _GIB,
            "peak_tokens": _sum(stores, "peak_tokens"),
            "hit_tokens": hits[index],
            "evicted_tokens": _sum(stores, "evicted_tokens"),
            "expired_tokens": _sum(stores, "expired_tokens"),
            "demoted_tokens": _sum(stores, "demoted_tokens"),
        }
        row["hit_rate"] = row["hit_tokens"] / prompt if prompt else 0.0
        if tier:
            row |= _traffic(result, index, stores, tier)
            row["usd_per_hour"] = cost.tiers[index - 1].usd_per_hour
        rows.append(row)
    return rows


def _traffic(result: Result, index: int, stores: Sequence[StoreUse], tier: TierPlan) -> dict[str, Any]:
    """Bytes in and out of a tier, wasted fetches, and utilisation of its links."""
    read_tokens = _sum(stores, "read_tokens") + _sum(stores, "demoted_tokens")
    links = [link for link in result.links if link.tier == index]
    return {
        "stored_bytes": _sum(stores, "stored_tokens") * tier.bytes_per_token,
        "read_bytes": read_tokens * tier.bytes_per_token,
        "wasted_fetch_tokens": result.wasted_tokens(index),
        "write_utilisation": _utilisation(result, [link for link in links if link.write]),
        "read_utilisation": _utilisation(result, [link for link in links if not link.write]),
        "energy_j": (_sum(stores, "stored_tokens") + read_tokens) * tier.energy_j_per_token,
    }


def _sum(stores: Sequence[StoreUse], name: str) -> int:
    return sum(getattr(store, name) for store in stores)


def _utilisation(result: Result, links: Sequence[LinkUse]) -> float:
    """Busy share of the busiest link, of the observed time."""
    if not links or result.observed_s == 0:
        return 0.0
    return max(link.busy_s for link in links) / result.observed_s


def series_of(plans: Sequence[WorkerPlan], result: Result, interval_s: float | None = None) -> pd.DataFrame:
    """``simulate.results.tier_series`` with each store's medium and scope; ``plans``: of all pools."""
    frame = tier_series(result, interval_s)
    tiers: dict[tuple[int, int], TierPlan] = {}
    for plan, pool in zip(plans, result.pools, strict=True):
        for worker in range(pool.first_worker, pool.first_worker + pool.workers):
            tiers |= {(worker, index): tier for index, tier in enumerate(plan.tiers, 1)}
    row_tiers = [tiers[key] for key in zip(frame["first_worker"], frame["tier"], strict=True)]
    frame.insert(1, "medium", [tier.medium for tier in row_tiers])
    frame.insert(2, "scope", [tier.scope for tier in row_tiers])
    return frame


@dataclass(frozen=True)
class TierValue:
    """The value of one more GiB of a tier, from a second simulation with ``VALUE_STEP`` more of it.

    Attributes:
        tier: name of the medium. pool: name of its pool.
        added_gib: in all stores together.
        hit_rate_gained: over all tiers.
        busy_s_saved: device time of all workers.
        usd_per_hour_saved_per_gib: price of accelerators and hosts, times the saved share of the simulated time.
        usd_per_gib_hour: price.
        ttft_saved_s: of finished requests, by percentile: the median (``p50``), and those of the SLO, or p99.
    """

    tier: str
    added_gib: float
    hit_rate_gained: float
    busy_s_saved: float
    usd_per_hour_saved_per_gib: float
    usd_per_gib_hour: float
    ttft_saved_s: Mapping[str, float]
    pool: str = "main"


def tier_values(simulated: SimulatedRun) -> list[TierValue]:
    """The marginal value of each tier below HBM of each pool, one more simulation for each."""
    places = [(p, index) for p, pool in enumerate(simulated.fleet.pools) for index in range(len(pool.plan.tiers))]
    costs = simulated.cost.tiers
    return [_tier_value(simulated, *place, cost) for place, cost in zip(places, costs, strict=True)]


def _tier_value(simulated: SimulatedRun, p: int, index: int, cost: TierCost) -> TierValue:
    pools, result = simulated.fleet.pools, simulated.result
    plan = pools[p].plan
    tier = plan.tiers[index]
    pages = tier.capacity_tokens // tier.page_tokens
    larger_tier = replace(tier, capacity_tokens=(pages + max(int(pages * VALUE_STEP), 1)) * tier.page_tokens)
    tiers = (*plan.tiers[:index], larger_tier, *plan.tiers[index + 1 :])
    larger_pool = replace(pools[p], plan=replace(plan, tiers=tiers))
    enlarged = simulate_fleet(
        replace(simulated.fleet, pools=(*pools[:p], larger_pool, *pools[p + 1 :])),
        simulated.trace,
        seed=simulated.seed,
        horizon_s=simulated.horizon_s,
        load=simulated.load,
    )
    added_gib = (larger_tier.capacity_tokens - tier.capacity_tokens) * tier.bytes_per_token * cost.stores / _GIB
    saved_s = float(result.workers.busy_s.sum() - enlarged.workers.busy_s.sum())
    device_s = result.makespan_s * len(result.workers.busy_s)
    machines_usd = simulated.cost.accelerator_usd_per_hour + simulated.cost.host_usd_per_hour
    saved_usd = machines_usd * saved_s / device_s if device_s > 0 else 0.0
    ttft_metrics = spoken_of("ttft", stated(check.label for check in simulated.score.slo))
    percentiles = sorted({50.0, *(percentile_of(name) for name in ttft_metrics)})
    return TierValue(
        tier.medium,
        added_gib,
        enlarged.hit_rate - result.hit_rate,
        saved_s,
        saved_usd / added_gib,
        cost.usd_per_hour / (cost.gib * cost.stores),
        {f"p{percent:g}": _ttft(result, percent) - _ttft(enlarged, percent) for percent in percentiles},
        pools[p].name,
    )


def _ttft(result: Result, percent: float) -> float:
    finished = result.requests.finished
    return float(np.percentile(result.requests.ttft_s[finished], percent)) if finished.any() else 0.0
