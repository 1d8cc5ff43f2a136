"""Notes on tier settings that do not do what they seem to say: for the reader to judge, never a refusal.

``hisearch doctor``, ``hisearch simulate`` and its JSON show the same notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from hisearch.base.policies import WRITE_POLICIES
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.deployments.tier_checks import TierProblem, capacity_problems, other_memory, spread_of
from hisearch.specs.documents.resolved import ResolvedDeployment
from hisearch.specs.errors import Problem


def tier_notes(resolved: ResolvedDeployment) -> list[Problem]:
    """For each pool: tiers too large for a full host, or in memory that it lacks; settings without effect."""
    media = {name: document.spec for name, document in resolved.media.items()}
    problems = []
    for index, pool in enumerate(resolved.deployment.pools):
        host_name = pool.host or resolved.accelerators[pool.accelerator].spec.host
        notes = list(_without_effect(pool))
        if host_name is not None:
            host = resolved.hosts[host_name].spec
            notes += other_memory(pool.tiers, media, host_name, host)
            spread = spread_of(pool, resolved.model_of(pool).spec, host)
            notes += capacity_problems(pool.tiers, pool.parallelism, media, host_name, host, spread)
        problems += [resolved.document.problem(f"spec.pools.{index}.{note.key}", note.message) for note in notes]
    return problems


def _without_effect(pool: PoolSpec) -> Iterator[TierProblem]:
    """Settings of HiCache that change nothing."""
    if pool.kv_connector != "hicache" or not pool.tiers:
        return
    if pool.tiers[0].eviction != pool.engine.eviction:
        message = f"SGLang evicts its host tier by engine.eviction, here {pool.engine.eviction}: no flag sets this one"
        yield TierProblem("tiers.0.eviction", message)
    if WRITE_POLICIES[pool.movement.write_policy].at_eviction and len(pool.tiers) > 1:
        behind = " and ".join(tier.medium for tier in pool.tiers[1:])
        message = (
            f"{pool.movement.write_policy}: SGLang writes nothing to storage then; nothing will ever be in {behind}, "
            "at full price"
        )
        yield TierProblem("movement.write_policy", message)
