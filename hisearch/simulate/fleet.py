"""What is simulated: pools of workers behind routers, and when a run ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from hisearch.latency.step_cost import step_seconds
from hisearch.simulate.plan import WorkerPlan
from hisearch.specs.routing import AdmissionSpec, RouterSpec

RoleName = Literal["unified", "prefill", "decode"]


@dataclass(frozen=True)
class GiveUp:
    """When a run is no longer worth finishing: once more than ``requests`` have waited over ``ttft_s`` for a token."""

    ttft_s: float = math.inf
    requests: int = 2**62


NEVER = GiveUp()


@dataclass(frozen=True)
class PoolPlan:
    """Identical workers.

    plan: one of them, compiled. replicas: how many. name: how messages call the pool. usd_per_hour: of one worker, for
    routers that look at prices.
    """

    plan: WorkerPlan
    replicas: int = 1
    name: str = "main"
    role: RoleName = "unified"
    usd_per_hour: float = 1.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prompt tokens that a worker computes in a second, in steps of its whole budget."""
        tokens = self.plan.engine.chunk_tokens
        return tokens / step_seconds(self.plan.costs.seconds, [(tokens, 0)], [])


@dataclass(frozen=True)
class FleetPlan:
    """Pools behind routers.

    pools: at least one; those of decode workers need one of prefill workers, and the other way round. router: in front
    of workers that take arriving requests. decode_router: in front of decode workers. admission: what is let in.
    """

    pools: tuple[PoolPlan, ...]
    router: RouterSpec = field(default_factory=RouterSpec)
    decode_router: RouterSpec = field(default_factory=RouterSpec)
    admission: AdmissionSpec = field(default_factory=AdmissionSpec)
