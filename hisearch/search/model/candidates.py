"""Candidates that stage 1 passes on: a worker, or the workers of several pools, with their estimates."""

from __future__ import annotations

from dataclasses import dataclass

from hisearch.search.model.estimates import Estimate
from hisearch.search.model.sizing import Counts
from hisearch.specs.deployments.deployment import PoolSpec


@dataclass(frozen=True)
class Candidate:
    """A worker that may meet the SLO.

    pool: one replica. estimate: at the expected hit rate. replicas: fewest that carry the busiest window by the
    estimate. usd_per_hour: of that many. rps_per_usd: capacity per dollar per hour. margin: relative error of the
    estimates. shortfall: why even the most favourable estimate misses the SLO, or ""; miss: by which share of the
    bound. ruled_out: the same by bounds that no deployment of such workers can beat (TTFT and TPOT at zero load, all
    the replicas allowed), or ""; ruled_out_by: by which share.
    """

    pool: PoolSpec
    estimate: Estimate
    replicas: int
    max_replicas: int
    usd_per_hour: float
    rps_per_usd: float
    margin: float
    shortfall: str = ""
    miss: float = 0.0
    ruled_out: str = ""
    ruled_out_by: float = 0.0

    @property
    def sides(self) -> tuple[Candidate, ...]:
        """The workers of each pool: one."""
        return (self,)

    @property
    def group(self) -> tuple[object, ...]:
        """Key that chunk and batch-limit variants share."""
        pool = self.pool
        devices = pool.devices.model_dump_json() if pool.devices is not None else ""
        drafts = "" if pool.engine.speculation is None else pool.engine.speculation.model_dump_json()
        return (pool.accelerator, pool.engine.name, pool.parallelism, pool.weight_dtype, pool.kv_dtype, devices, drafts)


@dataclass(frozen=True)
class Cluster:
    """Workers of several pools that may meet the SLO together.

    shape: ``disaggregated`` or ``mixed``. sides: a candidate for each pool, named, with its role; their ``replicas``
    balance each other at the trace's busiest minute. estimate: of all pools together.
    """

    shape: str
    sides: tuple[Candidate, ...]
    estimate: Estimate
    usd_per_hour: float
    rps_per_usd: float
    margin: float
    shortfall: str = ""
    miss: float = 0.0

    @property
    def pool(self) -> PoolSpec:
        """A worker of the first pool."""
        return self.sides[0].pool

    @property
    def pools(self) -> tuple[PoolSpec, ...]:
        """A worker of each pool."""
        return tuple(side.pool for side in self.sides)

    @property
    def counts(self) -> Counts:
        """Workers of each pool by the estimate."""
        return tuple(side.replicas for side in self.sides)

    @property
    def group(self) -> tuple[object, ...]:
        """Key that chunk and batch-limit variants share."""
        return (self.shape, *(side.group for side in self.sides))


#: Candidates that stage 1 passes on.
Kept = Candidate | Cluster
