"""Stage 1 for all shapes of a space: one pool, prefill/decode disaggregation, unequal workers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from hisearch.search.model.candidates import Cluster
from hisearch.search.model.problem import Problem
from hisearch.search.stages.clusters import role_problem, search_clusters
from hisearch.search.stages.execution import group_count, search_execution
from hisearch.search.stages.execution_report import ExecutionReport
from hisearch.specs.deployments.cluster import RoleName


def combinations(problem: Problem) -> int:
    """Number of combinations that ``screen`` checks, except mixes, which combine the others."""
    pools = problem.space.pools
    roles: list[RoleName] = ["unified"] if pools.unified or pools.mixed is not None else []
    roles += ["prefill", "decode"] if pools.disaggregated is not None else []
    return sum(group_count(role_problem(problem, role)) for role in roles)


def screen(problem: Problem, keep: int, advanced: Callable[[int], None] = lambda _: None) -> ExecutionReport:
    """Run stage 1.

    Args:
        problem: the question.
        keep: most candidates to keep of each shape, beyond one look at every accelerator and engine.
        advanced: called with the number of combinations processed since its last call.

    Returns:
        The report; its candidates alternate between shapes, so that a small budget sees the best of each.
    """
    pools = problem.space.pools
    if pools.disaggregated is None and pools.mixed is None:
        return search_execution(problem, keep, advanced)
    unified = search_execution(problem, keep, advanced) if pools.unified or pools.mixed is not None else None
    clusters = search_clusters(problem, unified, keep, advanced)
    if unified is None:
        return clusters
    disaggregated, mixed = (
        [kept for kept in clusters.kept if isinstance(kept, Cluster) and kept.shape == shape]
        for shape in ("disaggregated", "mixed")
    )
    turns = itertools.zip_longest(unified.kept if pools.unified else [], disaggregated, mixed)
    return replace(
        unified,
        combinations=unified.combinations + clusters.combinations,
        skipped=dict(Counter(unified.skipped) + Counter(clusters.skipped)),
        kept=[candidate for turn in turns for candidate in turn if candidate is not None],
        nearest_fit=unified.nearest_fit or clusters.nearest_fit,
        sides=clusters.sides,
    )
