"""From step costs to the kernels' arrays."""

from __future__ import annotations

import numpy as np

from hisearch.hardware.power import Standby
from hisearch.kernels.layout import costs as cost_layout
from hisearch.latency.costs import DraftCosts, HostFloor, LateCosts, SharedPrompts, StepCosts
from hisearch.simulate.arrays.records import record
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.traces.compiled import TraceArrays


def kernel_costs(costs: StepCosts) -> cost_layout.Costs:
    """The tables of step costs in the kernels' layout."""
    skewed = costs.skew_s is not None or costs.late is not None
    even = np.zeros(1)
    attached = np.zeros((0, 0, 0, 0)) if costs.mixed_decode_s is None else costs.mixed_decode_s
    prompts, befores, sequences, means = attached.shape
    late = LateCosts(np.zeros((0, 0, 0)), 1.0) if costs.late is None else costs.late
    lates, longs, contexts = late.shares.shape
    floor = HostFloor() if costs.floor is None else costs.floor
    draft = DraftCosts(0, 0.0, np.zeros(2), np.zeros(2)) if costs.draft is None else costs.draft
    shared = SharedPrompts(1, 0, np.zeros(2)) if costs.shared is None else costs.shared
    return cost_layout.Costs(
        host=record(
            cost_layout.HOST_COST,
            step_s=costs.host_s,
            per_sequence_s=costs.host_per_sequence_s,
            skewed=skewed,
            mixed_prompts=prompts,
            mixed_befores=befores,
            mixed_sequences=sequences,
            mixed_means=means,
            late_sequences=lates,
            late_longs=longs,
            late_contexts=contexts,
            late_ratio=late.ratio,
            floor_step_s=floor.step_s,
            floor_sequence_s=floor.per_sequence_s,
            floor_pieces_s=floor.pieces_s,
            floor_eager_s=floor.eager_s,
            floor_graph_tokens=floor.graph_tokens,
            draft_tokens=draft.tokens,
            draft_share=draft.share,
            shared_ranks=shared.ranks,
            shared_layout=shared.layout,
        ),
        token_s=costs.token_s,
        sequence_s=costs.sequence_s,
        chunk_rate=costs.chunk_rate,
        decode_s=costs.decode_s,
        mixed_decode_s=np.ascontiguousarray(attached).ravel(),
        prompt_s=np.zeros(2) if costs.prompt_s is None else costs.prompt_s,
        skew_s=even if costs.skew_s is None else costs.skew_s,
        late=np.ascontiguousarray(late.shares).ravel(),
        draft_token_s=draft.token_s,
        draft_sequence_s=draft.sequence_s,
        shared_s=shared.token_s,
        whole_rate=np.zeros((0, 0)) if shared.whole_rate is None else shared.whole_rate,
    )


def power_settings(plan: WorkerPlan) -> dict[str, float]:
    """Settings of what a worker draws besides its steps, and of which parts of their joules are told apart."""
    power = plan.power
    ffn = power.ffn or Standby()
    return {
        "standby_after_s": power.standby_after_s,
        "wake_s": power.wake_s,
        "ffn_standby_after_s": ffn.after_s,
        "ffn_wake_s": ffn.wake_s,
        "attached": bool(plan.costs.attached),
        "linked": plan.costs.link_joules is not None,
    }


def joules_arrays(plan: WorkerPlan) -> dict[str, cost_layout.Costs]:
    """Joules of steps, all and of some components; of those that a worker does not have, they are not read."""
    costs, joules = plan.costs, kernel_costs(plan.costs.joules)
    parts = {"attached_joules": costs.attached_joules, "link_joules": costs.link_joules}
    return {"joules": joules} | {name: joules if part is None else kernel_costs(part) for name, part in parts.items()}


def scheduler_costs(plan: WorkerPlan) -> StepCosts:
    """Step costs of a single scheduler."""
    seconds, lockstep = plan.costs.seconds, plan.costs.lockstep
    if plan.scheduler_kind != "lockstep" or lockstep is None:
        return seconds
    draft = seconds.draft
    if draft is not None and draft.own_s is not None:
        draft = draft._replace(token_s=draft.own_s)
    return seconds._replace(token_s=lockstep.own_s, draft=draft)


def lockstep_arrays(plan: WorkerPlan) -> dict[str, np.ndarray]:
    """Costs that DP ranks share in a lockstep step, and the padding of their tokens; unused without DP ranks."""
    lockstep, draft = plan.costs.lockstep, plan.costs.seconds.draft
    unused = {"shared_s": np.zeros(2), "lockstep_pad": np.zeros(0, np.int64), "by_kind_s": np.zeros((3, 0))}
    if plan.scheduler_kind != "lockstep" or lockstep is None:
        return unused | {"draft_shared_s": np.zeros(2)}
    graphs = np.array(lockstep.graph_batches, np.int64)
    drafts = plan.speculation
    each = 1 + drafts.draft_tokens if drafts is not None and plan.engine.name == "trtllm" else 1
    sizes = np.arange(each * graphs[-1] + 1) if len(graphs) else np.zeros(0, np.int64)
    padded = each * graphs[np.searchsorted(graphs, -(-sizes // each))] if len(graphs) else sizes
    by_kind_s = np.zeros((3, 0)) if lockstep.by_kind_s is None else lockstep.by_kind_s
    return {
        "shared_s": np.ascontiguousarray(lockstep.shared_s),
        "lockstep_pad": padded.astype(np.int64),
        "by_kind_s": np.ascontiguousarray(by_kind_s),
        "draft_shared_s": np.zeros(2) if draft is None or draft.shared_s is None else draft.shared_s,
    }


def compiled_lengths(plan: WorkerPlan, trace: TraceArrays, workers: int) -> np.ndarray:
    """Whether a worker has compiled a kernel for a number of tokens.

    Without chunks a step takes one request of any length, with output where it was preempted.
    """
    engine = plan.engine
    if not plan.kernel_compile_s:
        return np.zeros((workers, 1), np.int8)
    longest = max(engine.chunk_tokens, engine.max_prefill_tokens)
    if not engine.chunked_prefill:
        longest = max(longest, int((trace.input_tokens + trace.output_tokens).max(initial=0)))
    return np.zeros((workers, longest + engine.max_running_requests + 1), np.int8)
