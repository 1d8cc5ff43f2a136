"""Usage of agents' objects at the end of a run, and what predictions of their calls were worth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import sim as la
from hisearch.simulate.arrays.agent_objects import all_bytes_per_rank
from hisearch.simulate.arrays.agents import POLICIES, agents_of
from hisearch.simulate.plans.agent_plan import AgentPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.results.uses import HINT_COUNTS, HintQuality, ObjectUse
from hisearch.specs.wording import counted
from hisearch.traces.agents import AgentArrays
from hisearch.traces.compiled import CompiledTrace


def caveats(plans: Sequence[WorkerPlan], trace: CompiledTrace) -> tuple[str, ...]:
    """What is doubtful about adapters and memories: of a workload whose deployment has none, or the other way round."""
    held = {kind.per for plan in plans if plan.agents is not None for kind in plan.agents.kinds}
    serves = "adapter" in held or any(plan.lora is not None for plan in plans)
    return (*_adapter_caveats(serves, "adapter" in held, trace), *_memory_caveats("memory" in held, trace))


def _memory_caveats(held: bool, trace: CompiledTrace) -> tuple[str, ...]:
    memories = 0 if trace.agents is None else len(np.unique(trace.agents.memory[trace.agents.memory >= 0]))
    if held and not memories:
        return (
            "the deployment has places for memories (agents.objects with per: memory), and the workload names none: "
            "none was loaded; name them in the trace form for agents (docs/traces.md)",
        )
    if memories and not held:
        return (
            f"the workload's agents have {counted(memories, 'memory', 'memories')}, and the deployment no "
            "agents.objects with per: memory: it was simulated as if loading them took no time",
        )
    return ()


def _adapter_caveats(held: bool, placed: bool, trace: CompiledTrace) -> tuple[str, ...]:
    if trace.agents is None:
        if not held or trace.adapters is not None or not placed:
            return ()
        count = len(np.unique(trace.arrays.session))
        return (
            f"the trace says nothing of adapters: each of its {counted(count, 'session')} was given one of its own; "
            "name them in the trace form for agents (docs/traces.md)",
        )
    adapters = len(np.unique(trace.agents.adapter[trace.agents.adapter >= 0]))
    if placed and not adapters:
        agents = counted(len(trace.agents.adapter), "agent")
        return (
            f"the deployment has places for adapters, and the workload's {agents} name none: the places and the time "
            "to apply adapters were counted, loading them was not; name them (--adapters of `hisearch trace import`, "
            "docs/traces.md#agents), or leave adapters out of the deployment",
        )
    if not adapters or held:
        return ()
    return (
        f"the workload's agents have {counted(adapters, 'adapter')}, and the deployment no section agents with "
        "adapters: it was simulated without them, as if loading and applying them took no time",
    )


def object_uses(plan: AgentPlan | None, sim: la.Sim, ranks: int, agents: AgentArrays | None) -> tuple[ObjectUse, ...]:
    """Usage of objects at each worker of ``ranks`` ranks; empty without objects. agents: of the trace."""
    if plan is None or not (plan.kinds or plan.kv_share):
        return ()
    page = int(sim.config.page_tokens)
    all_bytes = ranks * all_bytes_per_rank(agents, plan)
    pages = int(sim.agents.things["pages"].sum())
    disk_bytes = all_bytes if plan.host_pages else 0.0
    return tuple(
        ObjectUse(
            calls=int(worker.requests),
            object_calls=int(loader.object_calls),
            resident_calls=int(loader.resident_calls),
            loads=int(loader.loads),
            loads_ahead=int(loader.loads_ahead),
            used_ahead=int(loader.used_ahead),
            preempted=int(loader.preempted),
            evicted=int(loader.evicted),
            load_s=float(loader.load_s),
            stall_s=float(loader.stall_s),
            wasted_s=float(loader.wasted_s),
            peak_tokens=int(loader.peak_pages) * page,
            kv_tokens_ahead=int(loader.kv_loaded_pages) * page,
            kv_tokens_used=int(loader.kv_used_pages) * page,
            kv_load_s=float(loader.kv_load_s),
            kv_tokens_fetched=int(loader.fetched_pages) * page,
            loaded_bytes=ranks * _transferred_bytes(plan, float(loader.load_s), int(loader.loads)),
            lost_bytes=ranks * _transferred_bytes(plan, float(loader.wasted_s), int(loader.preempted)),
            host_bytes=all_bytes * plan.host_pages / pages if plan.host_pages else all_bytes,
            on_disk_bytes=disk_bytes,
            disk_reads=int(loader.reads),
            disk_reads_ahead=int(loader.reads_ahead),
            disk_preempted=int(loader.reads_preempted),
            host_evicted=int(loader.dropped),
            disk_s=float(loader.read_s),
            disk_wasted_s=float(loader.read_wasted_s),
            disk_bytes=_read_bytes(plan, float(loader.read_s), int(loader.reads)),
            disk_lost_bytes=_read_bytes(plan, float(loader.read_wasted_s), int(loader.reads_preempted)),
        )
        for worker, loader in zip(sim.workers, sim.agents.loaders, strict=True)
    )


def separate_bytes(plan: WorkerPlan, trace: CompiledTrace) -> float:
    """Bytes of agents' objects in host memory of one worker, outside its tiers; 0 without any."""
    agents = plan.agents
    if agents is None or agents.in_tier:
        return 0.0
    return plan.ranks * all_bytes_per_rank(agents_of(trace, agents), agents)


def hint_quality(plan: AgentPlan | None, sim: la.Sim) -> HintQuality | None:
    """What the agents' predicted calls turned out to be worth; None for a policy without, and for the oracle."""
    if plan is None or plan.source == "oracle":
        return None
    loading, order = POLICIES[plan.policy]
    if loading == al.AT_LAUNCH or order == al.BY_USE:
        return None
    by_frames = bool(sim.agents.policy.by_frames) and plan.source == "trace"
    population = sim.agents.population
    return HintQuality(
        source=plan.source,
        unit="frames" if by_frames else "s",
        near=plan.ahead_steps if by_frames else plan.ahead_s,
        load_s=sum(kind.load_s for kind in plan.kinds),
        **{name: population[name].item() for name in HINT_COUNTS},
    )


def _transferred_bytes(plan: AgentPlan, seconds: float, loads: int) -> float:
    """Bytes that ``loads`` whole or partial loads moved over a rank's link in ``seconds``."""
    return max(seconds - loads * plan.link_latency_s, 0.0) * plan.link_bytes_per_s


def _read_bytes(plan: AgentPlan, seconds: float, reads: int) -> float:
    """Bytes that ``reads`` whole or partial reads moved from the disk in ``seconds``, for all ranks."""
    return max(seconds - reads * plan.disk_latency_s, 0.0) * plan.disk_bytes_per_s
