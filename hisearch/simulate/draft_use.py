"""What drafted tokens rest on in a run, and up to which batch they pay by step times."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from hisearch.latency.costs import StepCosts
from hisearch.latency.drafting.mean_steps import with_speculation
from hisearch.latency.step_cost import decode_step_seconds
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.traces.compiled import CompiledTrace


def notes(plans: Sequence[WorkerPlan], trace: CompiledTrace) -> tuple[str, ...]:
    """For each worker that drafts: what its acceptance rests on, and the largest batch for which drafts pay."""
    outputs = trace.arrays.output_tokens
    contexts = trace.arrays.input_tokens + outputs / 2.0
    mean_context = float((outputs * contexts).sum() / max(outputs.sum(), 1))
    return tuple(
        f"{plan.speculation.note}; {_up_to(plan, mean_context)}" for plan in plans if plan.speculation is not None
    )


def plain_costs(plan: WorkerPlan) -> StepCosts:
    """Step costs of a worker as if nothing were drafted, at equal contexts; decodes in mixed steps cost as alone."""
    return _even(plan.costs.seconds)._replace(draft=None)


def _even(costs: StepCosts) -> StepCosts:
    return costs._replace(mixed_decode_s=None, skew_s=None)


def token_costs(plan: WorkerPlan) -> StepCosts:
    """Costs of steps of one token that take as long, on average, as those of a worker that drafts."""
    drafts = plan.speculation
    return plain_costs(plan) if drafts is None else with_speculation(_even(plan.costs.seconds), drafts)


def _up_to(plan: WorkerPlan, context_tokens: float) -> str:
    most = plan.scheduler_running_requests
    paying = paying_batch(plan, context_tokens)
    if paying == most:
        return f"by step times they pay up to the batch limit of {most:,}"
    return f"by step times they pay up to a batch of {paying:,}" if paying else "by step times they never pay"


def paying_batch(plan: WorkerPlan, context_tokens: float) -> int:
    """Largest batch in which a token takes less time with drafts than without; 0 where none does.

    At equal contexts of ``context_tokens``, in steps without prompts.
    """
    plain, drafted = plain_costs(plan), token_costs(plan)

    def costs_more(batch: int) -> bool:
        read = round(batch * context_tokens)
        return decode_step_seconds(drafted, batch, read) >= decode_step_seconds(plain, batch, read)

    return bisect_left(range(1, plan.scheduler_running_requests + 1), True, key=costs_more)
