"""What workers did with LoRA adapters, and what to know of a workload's adapters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hisearch.kernels.layout import sim as la
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.uses import AdapterUse
from hisearch.specs.wording import counted
from hisearch.traces.adapter_tree import adapters_of
from hisearch.traces.compiled import CompiledTrace


def caveats(plans: Sequence[WorkerPlan], trace: CompiledTrace) -> tuple[str, ...]:
    """What is doubtful about adapters: of a workload whose deployment serves none, or the other way round."""
    served = any(plan.lora is not None for plan in plans)
    adapters = adapters_of(trace)
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


def adapter_uses(plan: WorkerPlan, sim: la.Sim, trace: CompiledTrace) -> tuple[AdapterUse, ...]:
    """What each worker did; empty where it serves no adapters."""
    lora, adapters = plan.lora, adapters_of(trace)
    if lora is None:
        return ()
    count = 0 if adapters is None else len(adapters.names)
    asking = 0 if adapters is None else int(np.count_nonzero(adapters.adapter >= 0))
    return tuple(
        AdapterUse(
            slots=lora.slots,
            slot_bytes=lora.slots * lora.slot_bytes * plan.ranks,
            requests=asking,
            adapters=count,
            host_adapters=min(lora.copies or count, count),
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
        for state in sim.lora.states
    )
