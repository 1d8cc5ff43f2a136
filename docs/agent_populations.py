"""Societies and workers of docs/agents.md: what ScaleSim publishes, and what is assumed where it does not.

Published (arXiv 2601.21473, and its code, github.com/PanZaifeng/KVFlow at 0db29c6): model, GPU, link, a fifth of the
agents active, a quarter resident and at most 125; adapters of rank 64 on all matrices; KV copied to host memory by
HiCache, 80 GB of it. Its SGLang is 0.5.2 by a third party's note alone, whose steps load the adapters that they miss
before they compute: loading beside computation came later (sgl-project/sglang#15512).
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from hisearch.latency.device_memory.plan import DoesNotFit
from hisearch.simulate import Result, WorkerPlan, plan_worker, simulate
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.simulate.plans.agent_memory import AgentsRefused
from hisearch.specs.deployments.agent_memory import AgentMemorySpec
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.deployments.tiers import MovementSpec, PrefetchName, TierSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import generate_agents, resized

KINDS = ("independent", "interaction", "diffusion")
POLICIES = ("lru", "queued", "duration", "steps", "distance")
#: Published peaks of the speed-up over SGLang, by kind.
PUBLISHED = {"independent": 1.73, "interaction": 1.31, "diffusion": 1.74}
AGENTS = (25, 50, 100, 250, 500, 1000)
#: At most a quarter of the agents is resident, and no more than these.
MOST_RESIDENT, SHARE = 125, 0.25
#: Bytes per second of the link to host memory.
LINK = 64e9
FRAMES = 24
#: Host memory for KV, GiB: 80 GB.
DRAM_GIB = 74.5
#: KV tokens that device memory has for each resident agent: its prompt at its longest, and an answer. Assumed.
TOKENS_PER_AGENT = 2048

#: Changes of a society's workload, as sorted pairs so that they can be looked up.
Changes = tuple[tuple[str, Any], ...]


def lengths(mean_log: float, sigma_log: float, most: int) -> dict[str, Any]:
    """A log-normal length distribution."""
    return {"distribution": "lognormal", "mean_log": mean_log, "sigma_log": sigma_log, "max_tokens": most}


#: Prompts that go on where the agent's last one ended, as AgentSociety's carry the agent's chats. Assumed lengths.
GROWING: dict[str, Any] = {
    "world_prompt_tokens": 128, "system_prompt_tokens": 512, "history_cap_tokens": 1024, "summary_tokens": 256,
    "new_input": lengths(4.6, 0.5, 512),
}  # fmt: skip
#: Prompts as Generative Agents composes them (github.com/joonspk-research/generative_agents, persona/prompt_template):
#: a template's examples, who the agent is, then what it has retrieved for this call alone, so that nothing behind the
#: description recurs. Eleven of its templates begin with 0 to 1,150 tokens of examples, 190 on average; the description
#: is one of seven lines. Lengths of what is retrieved are assumed.
RETRIEVED: dict[str, Any] = {
    "world_prompt_tokens": 192, "system_prompt_tokens": 192, "history": False, "history_cap_tokens": None,
    "new_input": lengths(5.42, 0.5, 1024),
}  # fmt: skip
PROMPTS = {"independent": GROWING, "interaction": RETRIEVED, "diffusion": GROWING}


@cache
def population(
    kind: str, agents: int, active_rate: float = 0.2, frames: int = FRAMES, changes: Changes = ()
) -> CompiledTrace:
    """Calls of so many frames; what is not published is assumed, see docs/agents.md."""
    spec: dict[str, Any] = {
        "kind": kind, "agents": agents, "calls": max(round(frames * active_rate * agents), 2 * agents),
        "active_rate": active_rate,
        "output": lengths(3.7, 0.5, 256),
        "world": {"size_m": 12.0 * agents**0.5 + 20.0}, "graph": {"model": "small_world", "degree": 4},
        "seeds": max(agents // 25, 1) if kind == "diffusion" else 1,
    }  # fmt: skip
    population_spec = AgentWorkloadSpec.model_validate(spec | PROMPTS[kind] | _thawed(changes))
    return compile_trace(generate_agents(population_spec), kind)


def frozen(changes: dict[str, Any]) -> Changes:
    """Changes that ``population`` can be asked for."""
    pairs = ((name, tuple(value.items()) if isinstance(value, dict) else value) for name, value in changes.items())
    return tuple(sorted(pairs))


#: Prompts that grow for all kinds: there is a history to lose, and to bring back.
GROW: dict[str, Changes] = {kind: frozen(GROWING | {"history": True}) for kind in KINDS}


def _thawed(changes: Changes) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, tuple) else value for name, value in changes}


@cache
def worker(
    policy: str,
    slots: int,
    *,
    model: str = "qwen2.5-7b",
    ranks: int = 1,
    rank: int = 64,
    dram_gib: float = 0.0,
    nvme_gib: float = 0.0,
    prefetch: PrefetchName = "best_effort",
    link: float = LINK,
    **settings: Any,
) -> WorkerPlan:
    """A worker whose device memory has room for the adapters of so many agents; rank 0: they have none."""
    catalogue = Catalogue()
    accelerator = catalogue.get("Accelerator", "h100-sxm").spec
    to_host = accelerator.host_link.model_copy(update={"bandwidth_bytes_per_s": link})
    accelerator = accelerator.model_copy(update={"host_link": to_host})
    objects: dict[str, Any] = {"adapters": {"rank": rank}, "slots": slots} if rank else {}
    agents = AgentMemorySpec.model_validate({"policy": policy, **objects, **settings})
    pool = PoolSpec(
        accelerator="h100-sxm",
        engine=EngineSpec(name="sglang"),
        tensor_parallel=ranks,
        tiers=[TierSpec(medium=name, gib=gib) for name, gib in (("ddr5", dram_gib), ("nvme-gen4", nvme_gib)) if gib],
        movement=MovementSpec(prefetch=prefetch),
        agents=agents,
    )
    assert accelerator.host is not None
    return plan_worker(
        pool,
        model=catalogue.get("Model", model).spec,
        accelerator=accelerator,
        host=catalogue.get("Host", accelerator.host).spec,
        media={name: catalogue.get("Medium", name).spec for name in ("ddr5", "nvme-gen4")},
        profile=catalogue.get("LatencyProfile", "sglang-h100-sxm").spec,
        profile_name="sglang-h100-sxm",
    )


def slots_of(agents: int) -> int:
    """Agents that may be resident."""
    return max(min(round(SHARE * agents), MOST_RESIDENT), 2)


def slots_with_room(agents: int, model: str, ranks: int) -> int:
    """Likewise, or fewer where more would leave them too little KV; 0: there is no room for two.

    Raises:
        InvalidParallelism: the model cannot be split so.
    """
    for slots in range(slots_of(agents), 1, -1):
        try:
            plan = worker("lru", slots, model=model, ranks=ranks)
        except (AgentsRefused, DoesNotFit):
            continue
        if plan.kv_capacity_tokens >= slots * TOKENS_PER_AGENT:
            return slots
    return 0


def run(
    kind: str,
    policy: str,
    agents: int,
    *,
    active_rate: float = 0.2,
    changes: Changes = (),
    tokens_per_agent: int = TOKENS_PER_AGENT,
    log: bool = False,
    slots: int = 0,
    **settings: Any,
) -> Result:
    """A society on a worker, with the published slots where none are given."""
    slots = slots or slots_of(agents)
    plan = worker(policy, slots, **settings)
    room = min(plan.kv_capacity_tokens, max(slots * tokens_per_agent, 16_384))
    trace = population(kind, agents, active_rate, changes=changes)
    return simulate(replace(plan, kv_capacity_tokens=room), trace, log=log)


def ttft_s(result: Result) -> float:
    """Mean time to the first token."""
    return float(np.mean(result.requests.ttft_s))


def frames_of(trace: CompiledTrace) -> int:
    """Frames that a society's calls fill."""
    assert trace.agents is not None
    return int(trace.agents.gate.max()) + 1


#: How long a frame may take, seconds: a society that lives ten seconds of its world at once, in real time.
PACE_S = 10.0
#: Sizes that are tried, each some 12 % above the one before it.
SIZES = tuple(round(50 * 1.125**k) for k in range(44))


def _keeps_pace(policy: str, agents: int, *, slots: int, dram_gib: float, rank: int) -> bool:
    """Whether all calls of a frame are answered in time, on average: with all of the device's memory."""
    trace = population("independent", agents, frames=12)
    plan = worker(policy, slots, dram_gib=dram_gib, rank=rank)
    return simulate(plan, trace).makespan_s / frames_of(trace) <= PACE_S


def most_agents(policy: str, **memory: Any) -> int:
    """The largest size that keeps pace; 0: none does."""
    low, high = -1, len(SIZES)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _keeps_pace(policy, SIZES[middle], **memory) else (low, middle)
    return SIZES[low] if low >= 0 else 0


#: Numbers of agents of the shipped society that are tried, each some 5 % above the one before it.
NUMBERS = tuple(round(100 * 1.05**k) for k in range(64))


@cache
def shipped_population(agents: int) -> CompiledTrace:
    """The workload of ``studies/agent-society.yaml``, of so many agents."""
    spec = Catalogue().get("Workload", "agent-society").spec.agents
    assert spec is not None
    return compile_trace(generate_agents(resized(spec, agents), seed=0), "agent-society")


@cache
def in_time(policy: str, agents: int, **memory: Any) -> Result | None:
    """The shipped society on one H100 with the study's slots, over its own link; None where its SLO is not met."""
    catalogue = Catalogue()
    link = catalogue.get("Accelerator", "h100-sxm").spec.host_link.bandwidth_bytes_per_s
    (term,) = catalogue.get("SLO", "agent-society").spec.terms
    try:
        result = simulate(worker(policy, MOST_RESIDENT, link=link, **memory), shipped_population(agents))
    except EngineOutOfMemory:
        return None
    return result if np.percentile(result.requests.e2e_s, term.percentile) <= term.at_most_s else None


def most_in_time(policy: str, **memory: Any) -> tuple[int, Result | None]:
    """The largest of ``NUMBERS`` that is served in time, and its run; (0, None): none is."""
    low, high = -1, len(NUMBERS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if in_time(policy, NUMBERS[middle], **memory) is None else (middle, high)
    return (NUMBERS[low], in_time(policy, NUMBERS[low], **memory)) if low >= 0 else (0, None)
