"""Load imbalance of expert parallelism: how unevenly tokens fall on ranks, and the cost of the busiest rank.

A layer ends with its busiest rank. Each of x tokens goes to k experts. Expert e is chosen with share p_e, so rank r
gets x k P_r on average, with P_r the sum over its experts. Even shares still load a rank above the mean, and more so
with fewer tokens. The factor on expert time is

    f(x) = E[max over ranks of tokens on the rank] / (x k / ranks)

by seeded Monte Carlo over multinomial draws. Experts are dealt to ranks in order. Redundant copies go, one by one, to
the expert with the most tokens per copy, and onto the rank with the least load, as load balancers do (DeepSeek's EPLB).
Copies of an expert share its tokens evenly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.sharding import Parallelism
from hisearch.specs.models.experts import ExpertsSpec
from hisearch.specs.models.model import ModelSpec

#: Draws of each number of tokens; the standard error of a factor is then below 1 %.
DRAWS = 512


def expert_shares(spec: ExpertsSpec, experts: int) -> F8:
    """Share of the routed tokens that each expert gets, shape (experts,), in sum 1.

    Raises:
        ValueError: a histogram of another number of experts.
    """
    if spec.distribution == "histogram":
        if len(spec.shares) != experts:
            raise ValueError(f"experts.shares has {len(spec.shares)} entries; the model has {experts} experts")
        weights = np.array(spec.shares)
    elif spec.distribution == "zipf":
        ranks = np.random.default_rng(spec.seed).permutation(experts) + 1.0
        weights = ranks**-spec.zipf_exponent
    else:
        weights = np.ones(experts)
    return np.asarray(weights / weights.sum())


def rank_shares(spec: ExpertsSpec, experts: int, ranks: int) -> F8:
    """Share of the routed tokens that each set of ranks gets, shape (ranks,), in sum 1."""
    shares = expert_shares(spec, experts)
    copies = np.ones(experts)
    for _ in range(spec.redundant):
        copies[int(np.argmax(shares / copies))] += 1
    load = (shares / copies).reshape(ranks, -1).sum(axis=1)
    extra = np.repeat(shares / copies, (copies - 1).astype(int))
    for share in np.sort(extra)[::-1]:
        load[int(np.argmin(load))] += share
    return np.asarray(load)


def busiest_rank_factor(spec: ExpertsSpec, experts: int, uses: int, ranks: int, tokens: F8) -> F8:
    """The factor above for each number of ``tokens`` (of all groups, at least 1); 1 for balanced experts or one rank.

    Args:
        spec: how tokens spread.
        experts: routed experts of a layer.
        uses: experts that a token uses.
        ranks: sets of ranks that hold different experts.
        tokens: shape (n,).
    """
    if spec.distribution == "balanced" or ranks == 1:
        return np.ones_like(tokens)
    shares = rank_shares(spec, experts, ranks)
    knots = np.unique(np.geomspace(1, max(float(tokens.max()), 2.0), 24).astype(int))
    rng = np.random.default_rng(spec.seed)
    most = [rng.multinomial(int(x) * uses, shares, size=DRAWS).max(axis=1).mean() / (x * uses / ranks) for x in knots]
    return np.asarray(np.interp(tokens, knots, most))


def with_uneven_experts(
    costs: CompiledCosts,
    spec: ExpertsSpec,
    model: ModelSpec,
    split: Parallelism,
    routed_s: Callable[[F8], F8],
    *,
    knows_even: bool = False,
) -> CompiledCosts:
    """``costs`` with routed experts at the busiest rank's time; ``routed_s``: their seconds by one group's tokens.

    ``knows_even``: ``routed_s`` already includes the busiest rank of even routing.
    """
    if model.moe is None or spec.distribution == "balanced" or split.expert == 1:
        return costs
    moe, tokens = model.moe, np.arange(1.0, len(costs.seconds.token_s))
    of_all = tokens * split.attention_data
    factor = busiest_rank_factor(spec, moe.experts, moe.experts_per_token, split.expert, of_all)
    if knows_even:
        even = ExpertsSpec(distribution="routed", seed=spec.seed)
        factor = factor / busiest_rank_factor(even, moe.experts, moe.experts_per_token, split.expert, of_all)
    excess = np.concatenate(([0.0], (factor - 1.0) * routed_s(tokens)))
    seconds = costs.seconds._replace(token_s=costs.seconds.token_s + excess)
    lockstep = costs.lockstep
    if lockstep is not None:
        lockstep = lockstep._replace(shared_s=lockstep.shared_s + excess[: len(lockstep.shared_s)])
    return replace(costs, seconds=seconds, lockstep=lockstep)
