"""What workers did with LoRA adapters, and what to know of a workload's adapters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hisearch.base.dtypes import I4
from hisearch.kernels.layout import sim as la
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.uses import AdapterUse
from hisearch.specs.wording import counted
from hisearch.traces.adapter_tree import requested_adapters
from hisearch.traces.compiled import CompiledTrace


def caveats(plans: Sequence[WorkerPlan], trace: CompiledTrace) -> tuple[str, ...]:
    """What is doubtful about adapters: of a workload whose deployment serves none, or the other way round."""
    served = any(plan.lora is not None for plan in plans)
    adapters = requested_adapters(trace)
    if served and adapters is None:
        return (
            "the deployment serves adapters (lora), and the workload names none: memory for slots and the engine's own "
            "cost were counted; name them in the workload (docs/how-to/adapters.md)",
        )
    if trace.adapters is not None and not served and all(plan.agents is None for plan in plans):
        count = counted(len(trace.adapters.names), "adapter")
        return (
            f"the workload's requests ask for {count}, and the deployment serves none (pools[].lora): all were served "
            "as if they asked for the base model",
        )
    return ()


def adapter_uses(
    plan: WorkerPlan, sim: la.Sim, trace: CompiledTrace, worker: I4, first_worker: int
) -> tuple[AdapterUse, ...]:
    """What each worker of a pool did; empty where they serve no adapters.

    Args:
        plan: of a worker.
        sim: the pool's arrays.
        trace: the workload.
        worker: of each request, among all pools' workers; -1: none. Shape (N,).
        first_worker: the pool's first.
    """
    lora, adapters = plan.lora, requested_adapters(trace)
    if lora is None:
        return ()
    count = 0 if adapters is None else len(adapters.names)
    asked = np.full(len(trace), -1, np.int32) if adapters is None else adapters.adapter
    own = [asked[(worker == first_worker + w) & (asked >= 0)] for w in range(len(sim.lora.states))]
    different = [len(np.unique(mine)) for mine in own]
    return tuple(
        AdapterUse(
            slots=lora.slots,
            slot_bytes=lora.slots * lora.slot_bytes * plan.ranks,
            requests=len(mine),
            adapters=names,
            host_adapters=min(lora.copies, names) if lora.copies else count,
            loads=int(state.loads),
            evicted=int(state.evicted),
            load_s=float(state.load_s),
            reads=int(state.reads),
            read_s=float(state.read_s),
            passed_over=int(state.passed_over),
            steps=int(state.steps),
            step_adapters=int(state.step_adapters),
            step_tokens=int(state.step_tokens),
            step_s=float(state.step_s),
        )
        for state, mine, names in zip(sim.lora.states, own, different, strict=True)
    )
