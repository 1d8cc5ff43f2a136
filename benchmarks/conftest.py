"""One simulation that has run to its end, as a state for kernels to work on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from hisearch.api.bench.cases import CASES, plan_of
from hisearch.api.workload import load_trace
from hisearch.kernels import cluster
from hisearch.simulate.engine import _allocate, _config
from hisearch.specs.catalogue import Catalogue
from hisearch.specs.routing import RouterSpec

#: Requests of ``chat-multiturn`` that fill the caches.
REQUESTS = 5_000


@pytest.fixture(scope="session")
def state_after() -> Callable[[str], Any]:
    """All arrays of a one-worker simulation of the named case's engine on chat, after its end."""

    def run(case_name: str) -> Any:
        catalogue = Catalogue()
        trace = load_trace("chat-multiturn", limit=REQUESTS, catalogue=catalogue)
        plan = plan_of(CASES[case_name], catalogue)
        config = _config(plan, 1, RouterSpec(), math.inf)
        sim = _allocate(plan, trace.arrays, config, 1.0, 0, 20 * len(trace))
        cluster.run(sim)
        return sim

    return run
