"""From a trace's agents and a worker's plan for them to the kernels' arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hisearch.kernels.agents import prepare
from hisearch.kernels.layout import agents as al
from hisearch.simulate.arrays.agent_objects import ObjectsDoNotFit, check_sizes, count_of, object_of, scale
from hisearch.simulate.plans.agent_plan import AgentPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import TierPlan
from hisearch.traces.adapter_tree import requested_adapters, separate_adapters
from hisearch.traces.agents import AgentArrays, gate_count, of_requests, of_sessions
from hisearch.traces.compiled import CompiledTrace, TraceArrays

#: (loading, order) of each policy.
POLICIES = {
    "lru": (al.AT_LAUNCH, al.BY_USE),
    "by_slot": (al.AT_LAUNCH, al.BY_SLOT),
    "queued": (al.ON_CALL, al.BY_USE),
    "duration": (al.ON_CALL, al.BY_DURATION),
    "steps": (al.AHEAD, al.BY_STEPS),
    "distance": (al.AHEAD, al.BY_DISTANCE),
}


#: Separates the seed of errors from other streams': the first 64 bits of the square root of 3's fraction.
_ERRORS = 0xBB67AE8584CAA73B
_SOURCES = {
    "trace": al.HINTS,
    "past": al.PAST,
    "last": al.LAST,
    "ewma": al.EWMA,
    "survival": al.SURVIVAL,
    "oracle": al.ORACLE,
}
#: Separates the seed of samples of predictions: the first 64 bits of the square root of 5's fraction.
_SAMPLES = 0x3C6EF372FE94F82B


def evicts_by_predicted_call(plan: AgentPlan | None) -> bool:
    """Whether HBM evicts by agents' predicted calls instead of the engine's policy."""
    return plan is not None and POLICIES[plan.policy][0] != al.AT_LAUNCH


def agents_of(trace: CompiledTrace, plan: AgentPlan | None) -> AgentArrays | None:
    """The trace's agents; without any, its sessions if the plan needs agents, each with its own adapter.

    Where the trace names adapters, sessions have those.
    """
    if trace.agents is not None or plan is None:
        return trace.agents
    if trace.adapters is not None:
        return of_requests(trace.arrays.session, trace.adapters)
    return of_sessions(trace.arrays.session, adapters=any(kind.per == "adapter" for kind in plan.kinds))


def arrays_of(trace: CompiledTrace, workers: Sequence[WorkerPlan]) -> TraceArrays:
    """The trace's arrays; if any of the pools' workers serves adapters, no two of them share KV."""
    plan = workers[0].agents
    agents = agents_of(trace, plan)
    if any(worker.lora is not None for worker in workers) and (adapters := requested_adapters(trace)) is not None:
        return separate_adapters(trace.arrays, adapters.adapter)
    if agents is None or plan is None or all(kind.per != "adapter" for kind in plan.kinds):
        return trace.arrays
    return separate_adapters(trace.arrays, agents.adapter[agents.agent])


def record_count(agents: AgentArrays | None, plan: AgentPlan | None) -> int:
    """Node records of a worker's objects: one for each, and one for its host copy if that may be dropped."""
    return object_count(agents, plan) * (2 if plan is not None and plan.host_pages else 1)


def object_count(agents: AgentArrays | None, plan: AgentPlan | None) -> int:
    """Objects of all kinds."""
    if agents is None or plan is None:
        return 0
    return sum(count_of(kind.per, agents) for kind in plan.kinds)


def all_pages(agents: AgentArrays | None, plan: AgentPlan | None) -> int:
    """Pages that objects of all kinds take, on each rank."""
    if agents is None or plan is None:
        return 0
    return sum(count_of(kind.per, agents) * kind.pages for kind in plan.kinds)


def with_objects(plan: WorkerPlan, trace: CompiledTrace) -> WorkerPlan:
    """The worker with the capacity of its tiers reduced by the objects in them.

    If host memory may not hold all objects, the second tier does; otherwise the disk has none.

    Raises:
        ObjectsDoNotFit: they leave less than SGLang needs for KV in host memory, or nothing of the second tier; or an
            adapter or a memory is larger than the deployment has places for.
    """
    check_sizes(plan.agents, trace.agents)
    if plan.agents is None or not plan.agents.in_tier:
        return plan
    agents, tiers = plan.agents, list(plan.tiers)
    taken = all_pages(agents_of(trace, agents), agents)
    if 0 < agents.host_pages < taken:
        tiers[1] = _with_objects(tiers[1], taken * plan.engine.page_size)
        taken = agents.host_pages
    else:
        agents = replace(agents, host_pages=0)
    host = tiers[0]
    kv_tokens = host.capacity_tokens - taken * plan.engine.page_size
    if kv_tokens <= plan.kv_capacity_tokens:
        gib = host.bytes_per_token / 2**30
        raise ObjectsDoNotFit(
            f"agents' objects take {(host.capacity_tokens - kv_tokens) * gib:.1f} GiB of the first tier's "
            f"{host.capacity_tokens * gib:.1f}; SGLang's host pool must exceed its device pool of "
            f"{plan.kv_capacity_tokens} tokens ({plan.kv_capacity_tokens * gib:.1f} GiB)"
        )
    tiers[0] = replace(host, capacity_tokens=kv_tokens)
    return replace(plan, tiers=tuple(tiers), agents=agents)


def _with_objects(disk: TierPlan, tokens: int) -> TierPlan:
    """The second tier with the capacity of each store reduced by ``tokens``, taken by objects."""
    kv_tokens = (disk.capacity_tokens - tokens) // disk.page_tokens * disk.page_tokens
    if kv_tokens <= 0:
        gib = disk.bytes_per_token / 2**30
        raise ObjectsDoNotFit(
            f"agents' objects take {tokens * gib:.1f} GiB of the second tier's {disk.capacity_tokens * gib:.1f}: no KV "
            "has room"
        )
    return replace(disk, capacity_tokens=kv_tokens)


def _records(count: int, dtype: np.dtype[Any]) -> Any:
    return np.zeros(count, dtype).view(np.recarray)


@dataclass(frozen=True)
class _Uses:
    """Objects of each agent, one agent after another; ``entry`` is -1 for an object with a single user."""

    begin: np.ndarray
    uses: np.ndarray
    entry: np.ndarray
    things: Any
    entries: int


def _uses(agents: AgentArrays, plan: AgentPlan, first_entry: int) -> _Uses:
    count = len(agents.adapter)
    rows = []
    things = _records(object_count(agents, plan), al.THING)
    base = 0
    for kind in plan.kinds:
        kind_count = count_of(kind.per, agents)
        things["pages"][base : base + kind_count] = kind.pages
        things["load_s"][base : base + kind_count] = kind.load_s
        things["read_s"][base : base + kind_count] = kind.read_s
        scale(things[base : base + kind_count], agents, kind, plan)
        index = object_of(agents, kind.per)
        having = np.flatnonzero(index >= 0)
        rows.append(np.stack([having, base + index[having]], axis=1))
        base += kind_count
    pairs = np.concatenate(rows) if rows else np.empty((0, 2), np.int64)
    pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
    users = np.bincount(pairs[:, 1], minlength=len(things))
    entry = np.full(len(pairs), -1, np.int32)
    order = np.argsort(pairs[:, 1], kind="stable")
    shared = order[users[pairs[order, 1]] > 1]
    entry[shared] = first_entry + np.arange(len(shared))
    ends = first_entry + np.cumsum(np.where(users > 1, users, 0))
    things["first"] = ends - np.where(users > 1, users, 0)
    things["after"] = ends
    things["owner"] = -1
    alone = users[pairs[:, 1]] == 1
    things["owner"][pairs[alone, 1]] = pairs[alone, 0]
    begin = np.searchsorted(pairs[:, 0], np.arange(count + 1)).astype(np.int32)
    return _Uses(begin, pairs[:, 1].astype(np.int32), entry, things, len(shared))


def _entries(trace: TraceArrays, agents: AgentArrays) -> dict[str, np.ndarray]:
    """Owners of trace nodes, and an entry for each agent and each deepest shared node on its paths."""
    nodes, count = len(trace.parent), len(agents.agent)
    owner, first, after = (np.empty(nodes, np.int32) for _ in range(3))
    prepare.owners(agents.agent, trace.output_node, trace.parent, owner)
    prepare.places(trace.parent, first, after)
    path_node = np.empty(count, np.int32)
    prepare.shared_paths(trace.parent, owner, trace.output_node, path_node)
    pairs = first[path_node].astype(np.int64) * (len(agents.adapter) + 1) + agents.agent
    known, entry = np.unique(np.where(path_node >= 0, pairs, -1), return_inverse=True)
    missing = int(known[0] == -1)
    at = known[missing:] // (len(agents.adapter) + 1)
    return {
        "owner": owner,
        "first": first,
        "after": after,
        "entry": (entry - missing).astype(np.int32),
        "entries_begin": np.searchsorted(at, first).astype(np.int32),
        "entries_end": np.searchsorted(at, after).astype(np.int32),
        "entries": np.array(len(at)),
    }


def _next_calls(agents: AgentArrays) -> tuple[np.ndarray, np.ndarray]:
    """Each agent's first request, and each request's successor by the same agent, or -1; shapes (A,), (N,)."""
    order = np.argsort(agents.agent, kind="stable")
    same = agents.agent[order][1:] == agents.agent[order][:-1]
    after = np.full(len(order), -1, np.int32)
    after[order[:-1][same]] = order[1:][same]
    first = np.full(len(agents.adapter), -1, np.int32)
    begins = np.concatenate(([True], ~same))
    first[agents.agent[order[begins]]] = order[begins]
    return first, after


def _hints(agents: AgentArrays, count: int) -> dict[str, np.ndarray]:
    gates = gate_count(agents)
    begin = np.searchsorted(agents.hint_trigger, np.arange(-1, count + gates + 1)).astype(np.int32)
    waiting = len(agents.hint_agent)
    return {
        "hint_begin": begin,
        "hint_agent": np.array(agents.hint_agent),
        "hint_after_s": np.array(agents.hint_after_s),
        "hint_s": np.array(agents.hint_s),
        "hint_steps": np.array(agents.hint_steps),
        "hint_line": np.empty(waiting, np.int32),
        "hint_at_s": np.empty(waiting),
    }


def _policy(plan: AgentPlan, agents: AgentArrays, objects: int, kv_pages: int) -> Any:
    policy = _records(1, al.POLICY)
    policy["loading"], policy["order"] = POLICIES[plan.policy]
    policy["source"] = _SOURCES[plan.source]
    policy["by_frames"] = agents.by_frames[0]
    policy["objects"] = objects
    policy["shared"] = plan.pool_pages == 0
    policy["preempts"] = plan.preempt and plan.policy == "distance"
    policy["tested"] = plan.tested and plan.policy == "distance" and plan.source != "oracle"
    for name in ("ahead_s", "ahead_steps", "budget_pages", "host_pages", "noise", "bias"):
        policy[name] = getattr(plan, name)
    policy["kv_budget_pages"] = int(plan.kv_share * kv_pages) if POLICIES[plan.policy][0] == al.AHEAD else 0
    if plan.policy == "steps":
        policy["ahead_steps"] = 1.0
    return policy


def handle(
    trace: TraceArrays,
    agents: AgentArrays | None,
    plan: AgentPlan | None,
    pools: int,
    workers: int,
    nodes: int,
    kv_pages: int,
    seed: int,
) -> al.Agents:
    """All arrays.

    Args:
        trace: the requests.
        agents: of the requests; None: no agents.
        plan: of a worker; None: agents have only KV.
        pools: tree index of the first worker's pool of objects; the pools of copies, if any, follow all of these.
        workers: how many.
        nodes: records of cached runs.
        kv_pages: of the KV pool.
        seed: of the errors of distances, and of the pairs that test them.
    """
    count = len(trace.arrival_s)
    if agents is None or plan is None:
        return al.Agents(**_empty_fields())
    entries = _entries(trace, agents)
    uses = _uses(agents, plan, int(entries.pop("entries")))
    total = max(int(entries["entry"].max(initial=-1)) + 1 + uses.entries, 1)
    first, after = _next_calls(agents)
    states = _records(len(agents.adapter), al.AGENT)
    states["worker"] = 0 if workers == 1 else -1
    states["end_s"] = -1.0
    states["predicted_call"] = al.NOBODY
    states["next_call"] = first
    states["newest"] = first
    states["sought"] = -1
    states["sampled_at"] = -1.0
    states["trace_node"] = np.where(first >= 0, trace.prompt_node[np.maximum(first, 0)], 0)
    states["entry"] = np.where(first >= 0, entries["entry"][np.maximum(first, 0)], -1)
    loaders = _records(workers, al.LOADER_STATE)
    loaders["pool"] = np.arange(workers) + (pools if plan.pool_pages else 0)
    loaders["ahead_worth"] = 1.0
    loaders["copies"] = np.arange(workers) + pools + workers
    population = _records(1, al.POPULATION)
    population["right"], population["right_by_use"], population["trusted"] = 1.0, 0.5, 1
    return al.Agents(
        **entries | _hints(agents, count),
        policy=_policy(plan, agents, len(uses.things), kv_pages),
        population=population,
        agent=np.array(agents.agent),
        agents=states,
        next_call=after,
        uses_begin=uses.begin,
        uses=uses.uses,
        uses_entry=uses.entry,
        things=uses.things,
        objects=np.zeros((workers, len(uses.things)), al.OBJECT).view(np.recarray),
        loaders=loaders,
        slots=np.full((workers, _slots(plan)), -1, np.int32),
        line=np.empty((4 * workers, len(states)), np.int32),
        line_slot=np.full((4 * workers, len(states)), -1, np.int32),
        line_size=np.zeros(4 * workers, np.int64),
        least=np.full(2 * total, al.NOBODY),
        keys=np.empty(nodes if evicts_by_predicted_call(plan) else 1),
        holds=np.zeros(count, np.int32),
        gap_counts=np.zeros(al.GAP_BINS, np.int64),
        gap_sums_s=np.zeros(al.GAP_BINS),
        rng=np.array([seed], np.uint64) ^ np.uint64(_ERRORS),
        worth_rng=np.array([seed], np.uint64) ^ np.uint64(_SAMPLES),
    )


def _slots(plan: AgentPlan) -> int:
    """Numbered slots of a worker."""
    if plan.policy != "by_slot" or not plan.kinds:
        return 0
    if len(plan.kinds) > 1 or not plan.pool_pages:
        raise ValueError("policy by_slot: one kind of objects, in a pool of their own")
    return plan.pool_pages // plan.kinds[0].pages


def _empty_fields() -> dict[str, Any]:
    """Fields without agents, or for agents with only KV."""
    no_index, no_value = np.empty(0, np.int32), np.empty(0)
    return {
        **{name: _records(1, dtype) for name, dtype in (("policy", al.POLICY), ("population", al.POPULATION))},
        **dict.fromkeys(
            ("agent", "next_call", "uses_begin", "uses", "uses_entry", "owner", "first", "after"), no_index
        ),
        **dict.fromkeys(("entries_begin", "entries_end", "entry", "holds"), no_index),
        **dict.fromkeys(("hint_begin", "hint_agent", "hint_line"), no_index),
        **dict.fromkeys(("least", "keys", "hint_after_s", "hint_s", "hint_steps", "hint_at_s"), no_value),
        **{name: np.empty((0, 0), np.int32) for name in ("line", "line_slot", "slots")},
        "agents": _records(0, al.AGENT),
        "things": _records(0, al.THING),
        "objects": np.zeros((0, 0), al.OBJECT).view(np.recarray),
        "loaders": _records(0, al.LOADER_STATE),
        "line_size": np.empty(0, np.int64),
        "gap_counts": np.empty(0, np.int64),
        "gap_sums_s": no_value,
        "rng": np.zeros(1, np.uint64),
        "worth_rng": np.zeros(1, np.uint64),
    }
