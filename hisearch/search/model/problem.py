"""Input of a search: the question, the trace's demand, and means to size and simulate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hisearch.latency.costs import CompiledCosts
from hisearch.search.model.demand import Demand
from hisearch.search.model.tier_choices import TierChoices
from hisearch.specs.base import DTYPE_BYTES, DType, EngineName
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.machines.hardware import ScopeName
from hisearch.specs.studies.search_space import SearchSpaceSpec
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.studies.study import CAPACITY, PRICE, BudgetSpec, LimitSpec, RecommendSpec

#: Bytes of a KV number as models compute it: 16 bits, whatever the format of the weights.
OWN_KV_BYTES = 2.0

#: Largest load that is usually tried, as a factor on the study's own.
USUAL_MOST_LOAD = 8.0


class Planner(Protocol):
    """Facts about workers that need no simulation."""

    def requests_kv_tokens(self, pool: PoolSpec, context_tokens: float) -> int:
        """Tokens of requests with ``context_tokens`` each in one worker's KV memory; cheap to compute.

        Raises:
            ValueError: the model does not fit, or cannot be split this way (``DoesNotFit``, ``InvalidParallelism``).
        """

    def can_build(self, pool: PoolSpec) -> bool:
        """True if the worker fits its accelerator, and its tiers suit the engine and the host."""

    def costs(self, pool: PoolSpec) -> CompiledCosts:
        """Step costs of one worker; tens of milliseconds if not cached."""

    def usd_per_hour(self, deployment: DeploymentSpec) -> float:
        """Dollars per hour of a deployment.

        Raises:
            ValueError: the host cannot carry such a worker.
        """


@dataclass(frozen=True)
class Problem:
    """The question.

    model, profile: names for the deployments. objectives: 2 to 4 names of ``specs.studies.study.Objective``. scopes: of
    the space's media, by name. limits: bounds by objective. refuses: why to skip a worker that could be built, or "";
    absent, no worker is skipped. kept_page_tokens: tokens of the engines' KV pages for the model; None for each
    engine's own. window_pool_engines: those that keep windows in a pool of their own. checkpoint_dtype: format of
    the published weights, None where it is not known. replicas_down: replicas of each pool that may be away while
    the SLO holds. recommend: the rule of the recommendation. most_load: largest load that is tried of a deployment.
    """

    model: str
    slo: SloSpec
    space: SearchSpaceSpec
    objectives: tuple[str, ...]
    budget: BudgetSpec
    seed: int
    demand: Demand
    planner: Planner
    scopes: Mapping[str, ScopeName] = field(default_factory=dict)
    limits: Mapping[str, LimitSpec] = field(default_factory=dict)
    refuses: Callable[[PoolSpec], str] | None = None
    kept_page_tokens: int | None = None
    window_pool_engines: frozenset[EngineName] = frozenset()
    checkpoint_dtype: DType | None = None
    replicas_down: int = 0
    recommend: RecommendSpec = field(default_factory=RecommendSpec)
    most_load: float = USUAL_MOST_LOAD

    @property
    def asks_load(self) -> bool:
        """True if the load that deployments carry is an objective, or what the rule goes by."""
        by_rule = self.recommend.rule == "most_headroom" and self.demand.scales_with_load
        return by_rule or CAPACITY in self.objectives

    @property
    def most_usd_per_hour(self) -> float:
        """Most that may be spent, by a limit and by the rule."""
        limit, most = self.limits.get(PRICE), self.recommend.usd_per_hour
        return min(math.inf if limit is None else limit.bound, math.inf if most is None else most)

    def keeps_formats(self, pool: PoolSpec) -> bool:
        """True if a pool serves the published weights in their own format, and KV as the model computes it."""
        weights, own = pool.weight_dtype, self.checkpoint_dtype
        if weights is not None and own is not None and DTYPE_BYTES[weights] < DTYPE_BYTES[own]:
            return False
        return DTYPE_BYTES[pool.kv_dtype] >= OWN_KV_BYTES

    def tier_choices(self, engine: EngineName) -> TierChoices:
        """Options for an engine's cache tiers."""
        return TierChoices(self.space.cache, engine, self.scopes)

    def page_tokens(self, engine: EngineName) -> int | None:
        """Tokens per KV page under an engine; None for its own default."""
        page_tokens = self.space.execution.sglang_page_tokens if engine == "sglang" else None
        return self.kept_page_tokens if page_tokens is None else page_tokens

    def engine_settings(self, engine: EngineName) -> list[dict[str, Any]]:
        """Every combination of an engine's batch limits and policies; see ``ExecutionSpace``."""
        combinations = self.space.execution.engine_settings(engine, engine in self.window_pool_engines)
        return [settings | self.order_settings(settings["schedule"]) for settings in combinations]

    def order_settings(self, schedule: str) -> dict[str, Any]:
        """An order of the waiting queue, with the deadlines that the SLO sets where it goes by them."""
        return {"schedule": schedule} | ({"ttft_targets_s": self.slo.ttft_targets_s} if schedule == "edf" else {})

    @property
    def profile(self) -> str:
        """Name of the latency profile."""
        return self.space.profile

    def max_replicas(self, pool: PoolSpec) -> int:
        """Most replicas of a pool that the space and a limit on accelerators allow; 0 if one worker is too many."""
        return min(self.space.execution.max_replicas, self.max_accelerators // pool.parallelism.ranks)

    @property
    def max_accelerators(self) -> int:
        """Most accelerators of a deployment, by the space and by a limit on them."""
        most, limit = self.space.execution.max_accelerators, self.limits.get("accelerators")
        return most if limit is None else min(most, math.floor(limit.bound))
