"""A finished simulation whose state the kernel benchmarks work on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hisearch.api.bench.cases import CASES, plan_of
from hisearch.api.deployments.workload import load_trace
from hisearch.kernels.fleet import cluster
from hisearch.simulate.engine import allocate, node_limit, prepare
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.specs.documents.catalogue import Catalogue

#: Requests of ``chat-multiturn`` that fill the caches.
REQUESTS = 5_000


@pytest.fixture(scope="session")
def state_after() -> Callable[[str], Any]:
    """All arrays of a finished one-worker simulation of the named case's engine on ``chat-multiturn``."""

    def run(case_name: str) -> Any:
        catalogue = Catalogue()
        trace = load_trace("chat-multiturn", limit=REQUESTS, catalogue=catalogue)
        pool = PoolPlan(plan_of(CASES[case_name], catalogue))
        prepare([(pool.plan.engine.name, None)])
        fleet, sims = allocate(FleetPlan((pool,)), trace, [node_limit(pool, trace)])
        cluster.run(fleet)
        return sims[0]

    return run
