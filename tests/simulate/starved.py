"""Runs a system with every size of the node pool up to one that suffices.

``test_engine`` runs it in a process of its own: a kernel that goes round in circles cannot be interrupted, only killed.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from hisearch.kernels.fleet import cluster
from hisearch.kernels.layout import sim as la
from hisearch.simulate import engine
from hisearch.simulate.arrays import tiers as tier_arrays
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import System

_GUARDS = 8
_MARK = -77


def _guarded(pool: Any, field: str) -> Any:
    """A pool of as many records, with guards behind them."""
    guarded = np.zeros(len(pool) + _GUARDS, pool.dtype).view(np.recarray)
    guarded[field][-_GUARDS:] = _MARK
    return guarded


def starve(name: str, host_tokens: int) -> int:
    """Returns the first size that suffices.

    Raises:
        AssertionError: a run with too few nodes wrote behind them.
    """
    spec = EngineSpec.model_validate({"name": name, "page_tokens": 4, "max_running_requests": 8, "chunk_tokens": 64})
    system = System(seed=11, engine=spec, capacity_tokens=1200, workers=2, host_tokens=host_tokens)
    plan = system.plan
    tiers = tier_arrays.tier_record(plan)
    records = 0
    while True:
        records += 1
        fleet, (sim,) = engine.allocate(FleetPlan((PoolPlan(plan, 2),), system.router), system.trace, [records])
        nodes = len(sim.nodes)
        guarded = np.zeros(nodes + _GUARDS, la.NODE).view(np.recarray)
        guarded["begin"][nodes:] = _MARK
        arrays = {field: getattr(sim, f"_{field}_owner", getattr(sim, field)) for field in la.Sim.FIELDS}
        runs, transfers = _guarded(sim.runs, "begin"), _guarded(sim.transfers, "tokens")
        pools = {"nodes": guarded[:nodes], "runs": runs[:-_GUARDS], "transfers": transfers[:-_GUARDS]}
        sim = la.Sim(**{**arrays, **pools, "tiers": tiers})
        fleet.sims[0] = sim.address
        print(name, host_tokens, records, file=sys.stderr, flush=True)
        cluster.run(fleet)
        assert (guarded["begin"][nodes:] == _MARK).all()
        assert (runs["begin"][-_GUARDS:] == _MARK).all()
        assert (transfers["tokens"][-_GUARDS:] == _MARK).all()
        if not sim.counters[la.FAULT]:
            return records


if __name__ == "__main__":
    print(starve(sys.argv[1], int(sys.argv[2])))
