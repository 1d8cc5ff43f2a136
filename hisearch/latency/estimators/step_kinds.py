"""What lockstep steps of attention groups add by their kind: two-batch overlap, or prompts that SGLang gathers."""

from __future__ import annotations

from collections.abc import Callable

from hisearch.base.dtypes import F8
from hisearch.latency.costs import LockstepCosts
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.priced import PricedWorker
from hisearch.latency.workers.gathered_prompts import with_gathered_prompts
from hisearch.latency.workers.overlap import with_overlap
from hisearch.latency.workers.roofline import Rates


def with_step_kinds(
    lockstep: LockstepCosts,
    priced: PricedWorker,
    routed_s: Callable[[F8], F8],
    collectives: Collectives,
    rates: Rates,
    multiprocessors: int | None,
) -> LockstepCosts:
    """``lockstep`` of ``priced`` with ``by_kind_s``, where its engine goes by the kind of a step.

    Args:
        lockstep: of several attention groups.
        priced: the worker.
        routed_s: seconds of routed experts, by tokens of each group, at least 1.
        collectives: of the worker's ranks.
        rates: attained.
        multiprocessors: of the accelerator; None: not known.
    """
    model, split = priced.model, priced.split
    if priced.engine.experts.two_batch_overlap:
        return with_overlap(lockstep, model, split, routed_s, collectives, multiprocessors)
    if priced.engine.name == "sglang" and not (split.all_to_all and model.moe is not None):
        return with_gathered_prompts(lockstep, model, split, collectives, rates.elementwise.bytes_per_s)
    return lockstep
