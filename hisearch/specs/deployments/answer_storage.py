"""Checks that prefill workers can read the output that decode workers write back to their storage.

SGLang 0.5.9: pages are in storage under names that have their tokens' hash and, but for MLA, rank and number of ranks
(``hicache_storage.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hisearch.base.policies import WRITE_POLICIES
from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
from hisearch.specs.deployments.tier_checks import TierProblem, scope_of
from hisearch.specs.machines.hardware import HostSpec, MediumSpec
from hisearch.specs.models.model import ModelSpec

#: Example of the tiers that a prefill pool needs.
_EXAMPLE = "tiers: [{medium: ddr5, gib: 512}, {medium: rdma-pool, gib: 4096}]"


def storage_problems(
    deployment: DeploymentSpec,
    pool: PoolSpec,
    model: ModelSpec,
    media: Mapping[str, MediumSpec],
    host_name: str | None,
    host: HostSpec | None,
) -> Iterator[TierProblem]:
    """Why the prefill workers cannot read what the decode workers of ``pool`` write back to their storage.

    pool: valid decode workers. media: by the names that tiers use. host_name, host: of its workers; None where unknown.
    """
    if not pool.writes_back_output:
        return
    ref = deployment.model_ref(pool)
    prefill_pools = [
        candidate
        for candidate in deployment.pools
        if candidate.role == "prefill" and deployment.model_ref(candidate) == ref
    ]
    if len(prefill_pools) != 1:
        names = ", ".join(candidate.name for candidate in prefill_pools) or "none"
        yield TierProblem("tiers", f"needs one prefill pool of {ref}, whose storage it writes to; there are {names}")
        return
    front = prefill_pools[0]
    if front.kv_connector != "hicache" or front.engine.name != "sglang" or len(front.tiers) < 2:
        message = f"what decode workers make goes to storage behind HiCache, and pool {front.name} has none"
        yield TierProblem("tiers", f"{message}: give it one of scope cluster, as in {_EXAMPLE}")
        return
    last = front.tiers[-1]
    medium = media[last.medium]
    scope = scope_of(last, medium)
    if scope != "cluster":
        message = f"pool {front.name} reads from {last.medium} of scope {scope}, which decode workers do not reach"
        yield TierProblem("tiers", f"{message}: give it storage of scope cluster, as in {_EXAMPLE}")
        return
    if WRITE_POLICIES[front.movement.write_policy].at_eviction:
        message = (
            f"pool {front.name} writes no prompt to storage under {front.movement.write_policy}, without which no "
            "output is found"
        )
        yield TierProblem("tiers", f"{message}: give it movement.write_policy write_through")
    if len(front.tiers) > 2 and front.movement.hierarchy == "exclusive":
        message = f"pool {front.name} keeps a page in one of two stores (movement.hierarchy exclusive)"
        yield TierProblem("tiers", f"{message}: decode workers, which write to the farther one, cannot tell; inclusive")
    if front.engine.page_size != pool.engine.page_size:
        message = f"{pool.engine.page_size}, but pool {front.name} looks for pages of {front.engine.page_size} tokens"
        yield TierProblem("engine.page_tokens", f"{message}: they must be alike where storage is shared")
    if model.mla is None and front.tensor_parallel != pool.tensor_parallel:
        message = f"{pool.tensor_parallel}, but pool {front.name} has {front.tensor_parallel}: SGLang names pages in"
        yield TierProblem("tensor_parallel", f"{message} storage by rank and number of ranks, so they must be alike")
    if medium.kind != "cxl" and (host is None or host.network is None):
        missing = "nothing says what a node is" if host is None else f"{host_name} has no network"
        yield TierProblem("tiers", f"{missing}: decode workers write to {last.medium} over their node's")
