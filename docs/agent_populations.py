"""Populations and workers of docs/agents.md: what ScaleSim states, and ``agent_assumptions`` where it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from agent_assumptions import case

from hisearch.simulate import Result, WorkerPlan, plan_worker, simulate
from hisearch.simulate.engine import EngineOutOfMemory
from hisearch.specs.deployments.agent_memory import AgentMemorySpec
from hisearch.specs.deployments.deployment import EngineSpec, PoolSpec
from hisearch.specs.deployments.tiers import MovementSpec, PrefetchName, TierSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import generate_agents, resized

KINDS = ("independent", "interaction", "diffusion")
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
#: KV policies, in order: each adds one thing to the one before it. (name, policy, settings.) All but the first have
#: KV in host memory; noise has no information.
STAGES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("lru, no host tier", "lru", {}),
    ("host tier", "lru", {"dram_gib": DRAM_GIB}),
    ("queued first", "queued", {"dram_gib": DRAM_GIB}),
    ("noise", "distance", {"dram_gib": DRAM_GIB, "noise": 8.0}),
    ("distance, nothing ahead", "distance", {"dram_gib": DRAM_GIB, "ahead_budget": 0.0, "ahead_kv": False}),
    ("distance", "distance", {"dram_gib": DRAM_GIB}),
    ("oracle", "distance", {"dram_gib": DRAM_GIB, "distance": "oracle"}),
)


@cache
def _population(described: str, name: str) -> CompiledTrace:
    return compile_trace(generate_agents(AgentWorkloadSpec.model_validate_json(described)), name)


def population(kind: str, agents: int, active_rate: float = 0.2, frames: int = FRAMES, **given: float) -> CompiledTrace:
    """Calls of so many frames; ``given``: values of what is open, see ``agent_assumptions``."""
    calls = max(round(frames * active_rate * agents), 2 * agents)
    changes = case(kind, agents, **given).changes | {"calls": calls, "active_rate": active_rate}
    return _population(json.dumps(changes, sort_keys=True), kind)


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


def run(
    kind: str, policy: str, agents: int, *, active_rate: float = 0.2, log: bool = False, slots: int = 0,
    given: dict[str, float] | None = None, **settings: Any,
) -> Result:  # fmt: skip
    """A population on a worker, with the published slots where none are given; ``given``: of what is open."""
    slots = slots or slots_of(agents)
    values = given or {}
    own = case(kind, agents, **values).worker
    tokens_per_agent = own.pop("tokens_per_agent")
    plan = worker(policy, slots, **own | settings)
    room = min(plan.kv_capacity_tokens, max(slots * tokens_per_agent, 16_384))
    trace = population(kind, agents, active_rate, **values)
    return simulate(replace(plan, kv_capacity_tokens=room), trace, log=log)


def stages(kind: str, agents: int, **options: Any) -> list[Result | None]:
    """The runs of ``STAGES``; None where the engine would stop for want of memory."""
    runs: list[Result | None] = []
    for _, policy, settings in STAGES:
        try:
            runs.append(run(kind, policy, agents, **settings | options))
        except EngineOutOfMemory:
            runs.append(None)
    return runs


def ttft_s(result: Result) -> float:
    """Mean time to the first token."""
    return float(np.mean(result.requests.ttft_s))


#: Numbers of agents of the shipped population that are tried, each some 5 % above the one before it.
NUMBERS = tuple(round(100 * 1.05**k) for k in range(72))


@cache
def shipped_population(agents: int) -> CompiledTrace:
    """The workload of ``studies/agent-society.yaml``, of so many agents."""
    spec = Catalogue().get("Workload", "agent-society").spec.agents
    assert spec is not None
    return compile_trace(generate_agents(resized(spec, agents), seed=0), "agent-society")


@cache
def in_time(policy: str, agents: int, **memory: Any) -> Result | None:
    """The shipped population on one H100 with the study's slots, over its own link; None where its SLO is not met."""
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
