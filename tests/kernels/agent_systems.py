"""Small random populations of agents with objects, and invariants of a run's arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from hypothesis import assume, currently_in_test_context
from hypothesis import strategies as st

from hisearch.base.policies import PREFETCHES, WRITE_POLICIES
from hisearch.kernels.cache import eviction
from hisearch.kernels.fleet import cluster
from hisearch.kernels.layout import agents as al
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.layout.hicache import BATCH_PAGES
from hisearch.simulate import Result, engine, simulate
from hisearch.simulate.arrays import agents as agent_arrays
from hisearch.simulate.plans.agent_plan import AgentPlan, KindPlan
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.specs.base import EngineName
from hisearch.specs.deployments.agent_memory import AgentPolicyName, DistanceSourceName
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.workloads.agent_workload import AgentWorkloadSpec
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.generators import generate_agents
from tests.kernels import invariants as shared
from tests.kernels import store_invariants as stores
from tests.kernels import tier_invariants as tiers
from tests.kernels.systems import System

POLICIES: tuple[AgentPolicyName, ...] = get_args(AgentPolicyName)
SOURCES: tuple[DistanceSourceName, ...] = get_args(DistanceSourceName)


def population(kind: str = "independent", *, seed: int = 0, **changes: Any) -> CompiledTrace:
    """A few agents with short prompts."""
    spec: dict[str, Any] = {
        "kind": kind, "agents": 12, "calls": 80, "history_cap_tokens": 120, "summary_tokens": 10,
        "world_prompt_tokens": 12, "system_prompt_tokens": 20, "active_rate": 0.3, "seed": seed,
        "new_input": {"distribution": "lognormal", "mean_log": 2.5, "sigma_log": 0.8, "max_tokens": 60},
        "output": {"distribution": "lognormal", "mean_log": 2.0, "sigma_log": 0.8, "max_tokens": 40},
        "world": {"size_m": 40.0, "radius_m": 3.0, "tick_s": 2.0}, "graph": {"degree": 2},
    }  # fmt: skip
    return compile_trace(generate_agents(AgentWorkloadSpec.model_validate(spec | changes)), "population")


FREE = {"pacing": "free", "action": {"p50_s": 0.3, "p90_s": 1.0}}


@dataclass(frozen=True)
class Population:
    """A population on a deployment."""

    trace: CompiledTrace
    agents: AgentPlan
    engine: EngineName = "sglang"
    capacity_tokens: int = 1200
    workers: int = 1
    page_tokens: int = 1
    max_running: int = 6
    overlap: bool = True
    mixed_chunk: bool = False
    host_tokens: int = 0
    write_policy: str = "write_through"
    host_s_per_token: float = 2e-5
    store_tokens: int = 0
    store_s_per_token: float = 1e-4
    prefetch: str = "best_effort"

    @property
    def plan(self) -> WorkerPlan:
        """Of a worker; with host memory where that has any tokens."""
        settings = EngineSpec(
            name=self.engine,
            page_tokens=self.page_tokens,
            max_running_requests=self.max_running,
            chunk_tokens=96,
            overlap=self.overlap,
            **({"mixed_chunk": self.mixed_chunk} if self.engine == "sglang" else {}),
        )
        plain = System(seed=1, engine=settings, capacity_tokens=self.capacity_tokens, workers=1).plan
        if not self.host_tokens:
            return replace(plain, agents=self.agents)
        law = TransferLaw(0.0, self.host_s_per_token)
        movement = MovementPlan("hicache", self.write_policy, load_back_tokens=4, host_read=law, host_write=law)
        tokens = self.host_tokens // self.page_tokens * self.page_tokens
        plans = [TierPlan("host", "worker", tokens, self.page_tokens)]
        if self.store_tokens:
            store_law = TransferLaw(1e-4, self.store_s_per_token)
            size = self.store_tokens // self.page_tokens * self.page_tokens
            plans.append(
                TierPlan("disk", "node", size, self.page_tokens, read=store_law, write=store_law, query_s=1e-3)
            )
            movement = replace(movement, prefetch=self.prefetch, prefetch_threshold_tokens=8)
        return replace(plain, agents=self.agents, tiers=tuple(plans), movement=movement)

    def run(self, horizon_s: float = math.inf) -> la.Sim:
        """All arrays at the end, or at the horizon."""
        plan = agent_arrays.with_objects(self.plan, self.trace)
        fleet = FleetPlan((PoolPlan(plan, self.workers),))
        node_records = 50 * len(self.trace) + 1000
        arrays, sims = engine.allocate(fleet, self.trace, [node_records], horizon_s=horizon_s)
        cluster.run(arrays)
        if self.host_tokens and currently_in_test_context():
            # Copies to the host hold memory that the engine's admission rule counts on: it would stop.
            assume(sims[0].counters[la.FAULT] != la.OUT_OF_MEMORY)
        assert not sims[0].counters[la.FAULT]
        # What pools share is kept alive with them.
        assert sims[0].fleet is arrays
        return sims[0]

    def simulate(self, **options: Any) -> Result:
        """The run's result."""
        return simulate(self.plan, self.trace, replicas=self.workers, **options)


def adapters(pages: int = 60, load_s: float = 0.004, read_s: float = 0.0) -> KindPlan:
    """One for each adapter of the trace."""
    return KindPlan("adapters", "adapter", pages, load_s, 1e6, read_s)


def on_disk(case: Population, share: float, read_s: float) -> Population:
    """The case with objects on its disk; host memory holds as many as the slots, and ``share`` of the others.

    Host memory and disk are larger by what objects take of them.
    """
    plan = replace(case.agents, kinds=tuple(replace(kind, read_s=read_s) for kind in case.agents.kinds))
    pages = agent_arrays.all_pages(case.trace.agents, plan)
    copy_pages = plan.pool_pages + int(share * max(pages - plan.pool_pages, 0))
    return replace(
        case,
        agents=replace(plan, in_tier=True, host_pages=copy_pages),
        host_tokens=case.host_tokens + min(copy_pages, pages) * case.page_tokens,
        store_tokens=case.store_tokens + pages * case.page_tokens,
    )


@st.composite
def populations(
    draw: st.DrawFn, *, tiered: bool = False, stored: bool = False, engine: EngineName = "sglang"
) -> Population:
    """Every policy, source, pacing and kind; pools of their own and shared ones, several objects and workers.

    ``tiered``: with host memory for KV, which is loaded ahead or is not; ``stored``: and a disk behind it.
    """
    slotted = tiered or engine == "vllm"
    policy = draw(st.sampled_from([policy for policy in POLICIES if engine == "sglang" or policy != "by_slot"]))
    numbered = policy == "by_slot"
    pacing = draw(st.sampled_from([{}, FREE]))
    trace = population(
        draw(st.sampled_from(["independent", "interaction", "diffusion"])),
        seed=draw(st.integers(0, 5)),
        adapters=draw(st.sampled_from([None, 4, 0])),
        **pacing,
    )
    page = draw(st.sampled_from([1, 4]))
    kinds = [adapters(60 // page, draw(st.sampled_from([0.0005, 0.02])))]
    if not numbered and draw(st.booleans()):
        kinds.append(KindPlan("index", "agent", 20 // page, 0.003, 1e6))
    if not numbered and draw(st.booleans()):
        kinds.append(KindPlan("draft", "all", 40 // page, 0.05, 1e6))
    # The largest call has some 250 tokens, its objects 120.
    slots = draw(st.sampled_from([2, 5, 9] if slotted or numbered else [0, 0, 2, 5]))
    each = sum(kind.pages for kind in kinds if kind.per != "all")
    common = sum(kind.pages for kind in kinds if kind.per == "all")
    plan = AgentPlan(
        policy=policy,
        source=draw(st.sampled_from(SOURCES)),
        kinds=tuple(kinds),
        pool_pages=slots * each + common if slots else 0,
        ahead_s=draw(st.sampled_from([0.0, 0.1, 5.0])),
        budget_pages=draw(st.sampled_from([0, 150, 10_000])) // page,
        kv_share=draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])) if tiered else 0.0,
        preempt=draw(st.booleans()),
        tested=draw(st.booleans()),
        noise=draw(st.sampled_from([0.0, 1.0, 6.0])),
        bias=draw(st.sampled_from([1.0, 3.0])),
    )
    case = Population(
        trace,
        plan,
        engine,
        # The least that the largest call and all of its objects fit into is some 380.
        capacity_tokens=draw(st.sampled_from([1000, 1500, 4000] if tiered else [480, 640, 1200, 4000])),
        workers=draw(st.integers(1, 2)),
        page_tokens=page,
        max_running=draw(st.integers(1, 8)),
        overlap=draw(st.booleans()),
        mixed_chunk=draw(st.booleans()),
        host_tokens=draw(st.sampled_from([1500, 6000])) if tiered else 0,
        write_policy=draw(st.sampled_from(tuple(WRITE_POLICIES))),
        host_s_per_token=draw(st.sampled_from([1e-6, 2e-5, 1e-3])),
        store_tokens=draw(st.sampled_from([4000, 20_000])) if stored else 0,
        store_s_per_token=draw(st.sampled_from([1e-6, 1e-4, 2e-3])),
        prefetch=draw(st.sampled_from(tuple(PREFETCHES))),
    )
    if not stored or not draw(st.booleans()):
        return case
    case = replace(case, host_tokens=max(case.host_tokens, case.capacity_tokens + page))
    return on_disk(case, draw(st.sampled_from([0.0, 0.3, 0.9])), draw(st.sampled_from([0.001, 0.05])))


def slow_predicted_call(sim: la.Sim, d: int) -> float:
    """Predicted call of node ``d``, by a scan of every agent."""
    agents, s = sim.agents, int(sim.nodes[d].trace_node)
    calls = [al.NOBODY]
    for a in range(len(agents.agents)):
        agent = agents.agents[a]
        if s < 0:
            uses = agents.uses[agents.uses_begin[a] : agents.uses_begin[a + 1]]
            if int(sim.nodes[d].parent) in uses.tolist():
                calls.append(float(agent.predicted_call))
            continue
        at = int(agent.trace_node)
        while at > s:
            at = int(sim.trace.parent[at])
        if at == s:
            calls.append(float(agent.predicted_call))
    return min(calls)


def check(sim: la.Sim) -> None:
    """Raise AssertionError unless objects, pools, links and orders add up (L3, L4)."""
    for w in range(int(sim.config.workers)):
        _check_objects(sim, w)
        _check_order(sim, w)
        for row in range(w, len(sim.agents.line), int(sim.config.workers)):
            _check_line(sim, row)
        if sim.config.hicache:
            _check_kv(sim, w)
        if sim.tiers.storage:
            _check_fetch(sim, w)
        if sim.agents.policy.host_pages:
            _check_copies(sim, w)
    if sim.config.hicache:
        _check_host(sim)
    if sim.tiers.storage:
        _check_disk_link(sim)


def _check_copies(sim: la.Sim, w: int) -> None:
    """Every object is on the host, in transit to it, or on the disk alone; copies and free pages fill their pool."""
    agents, loader, objects = sim.agents, sim.agents.loaders[w], sim.agents.objects[w]
    pool = sim.trees[int(loader.copies)]
    assert np.isin(objects.on_host, [al.COPIED, al.DROPPED, al.COMING]).all()
    assert np.flatnonzero(objects.on_host == al.COMING).tolist() == [int(loader.reading)] * int(loader.reading >= 0)
    assert pool.capacity_pages == agents.policy.host_pages >= loader.peak_copies
    assert 0 <= pool.free_pages == pool.capacity_pages - agents.things.pages[objects.on_host != al.DROPPED].sum()
    loading = objects["where"] == al.LOADING
    assert (objects.on_host[loading] == al.COPIED).all(), "what is loaded is not on the host"
    assert (objects["where"][objects.on_host == al.COMING] == al.ABSENT).all()
    may_go = sim.nodes.heap_slot[objects.copy_node] >= 0
    np.testing.assert_array_equal(may_go, (objects.on_host == al.COPIED) & ~loading)
    # At the beginning the host has as many as fit; each read since has brought one, each that was dropped is one less.
    first = 0
    left = int(pool.capacity_pages)
    for pages in agents.things.pages.tolist():
        first += pages <= left
        left -= pages if pages <= left else 0
    assert (objects.on_host == al.COPIED).sum() == first + loader.reads - loader.dropped
    assert loader.reads_ahead <= loader.reads
    if agents.policy.loading == al.AT_LAUNCH:
        assert loader.reading == -1
        assert loader.reads_preempted == 0
    elif loader.reading >= 0 and not loader.read_ahead:
        assert agents.agents[int(loader.read_for)].worker != w or agents.agents[int(loader.read_for)].calls > 0


def _check_disk_link(sim: la.Sim) -> None:
    """Tokens that have left each store: batches of fetches, objects, and the moved share of preempted reads (L4)."""
    tier, workers = sim.store_tiers[0], int(sim.config.workers)
    for store in range(int(tier.stores)):
        link = sim.links[int(tier.first_link) + 2 * store + 1]
        tokens = reads = 0
        busy_s = 0.0
        for w in range(store * int(tier.workers_per_store), min((store + 1) * int(tier.workers_per_store), workers)):
            loader, job = sim.agents.loaders[w], int(sim.servers[hl.SERVERS * w + hl.READER].head)
            tokens += int(sim.hosts[w].fetched_tokens)
            if job >= 0:
                batch = BATCH_PAGES * int(sim.config.page_tokens)
                tokens += min(int(sim.fetches[job].stored_tokens - sim.fetches[job].read), batch)
            busy_s += float(loader.read_s + loader.read_wasted_s)
            reads += int(loader.reads) + (loader.reading >= 0)
            if loader.reading >= 0:
                takes_s = float(sim.agents.things[int(loader.reading)].read_s)
                ends_s = sim.servers[hl.SERVERS * workers + al.AGENT_SERVERS * w + al.DISK].end_s
                assert ends_s >= loader.read_begun_s + takes_s - 1e-9
                busy_s += takes_s
        busy_s += tokens * float(link.s_per_token) + (int(link.transfers) - reads) * float(link.base_s)
        assert math.isclose(link.busy_s, busy_s, rel_tol=1e-9, abs_tol=1e-9)
        assert link.free_s >= busy_s - 1e-9


def _check_objects(sim: la.Sim, w: int) -> None:
    agents = sim.agents
    loader, objects = agents.loaders[w], agents.objects[w]
    v = int(loader.pool)
    pool = sim.trees[v]
    held = np.zeros(len(agents.things), np.int64)
    for r in np.flatnonzero(agents.holds).tolist():
        if sim.requests[r].worker == w:
            a = int(agents.agent[r])
            held[agents.uses[agents.uses_begin[a] : agents.uses_begin[a + 1]]] += 1
    taken = locked = fresh = 0
    numbered = agents.policy.order == al.BY_SLOT
    for o, (thing, copy) in enumerate(zip(agents.things, objects, strict=True)):
        loading = copy.where == al.LOADING
        assert loading == (int(loader.object) == o)
        lock = int(sim.nodes[copy.node].lock)
        assert lock == held[o] + loading
        if held[o] and not numbered:
            assert copy.where == al.RESIDENT, "a call holds what is not there"
        taken += int(thing.pages) * (copy.where != al.ABSENT)
        locked += int(thing.pages) * (copy.where == al.RESIDENT and lock > 0)
        fresh += int(thing.pages) * int(copy.fresh)
        if numbered:
            continue
        assert (int(sim.nodes[copy.node].heap_slot) >= 0) == (copy.where == al.RESIDENT and lock == 0)
    assert fresh == loader.fresh_pages
    if v != w:
        assert pool.free_pages + taken == pool.capacity_pages
        assert pool.free_pages >= 0
    loading_object = int(loader.object)
    loading_pages = int(agents.things[loading_object].pages) if 0 <= loading_object < len(agents.things) else 0
    resident = taken - loading_pages
    if numbered:
        _check_slots(sim, w, held)
    elif v != w:
        assert pool.evictable_pages == resident - locked
    assert loader.peak_pages <= pool.capacity_pages
    assert math.isclose(loader.load_s, sum_of_loads(sim, w), abs_tol=1e-9)
    _check_link(sim, w)
    assert loader.used_ahead <= loader.loads_ahead + (loader.object >= 0)
    if v == w:
        _check_shared_pool(sim, w, taken)


def _check_slots(sim: la.Sim, w: int, held: np.ndarray) -> None:
    """Every resident object has one slot; calls that run have slots enough, and it is known whose are taken away."""
    loader, objects = sim.agents.loaders[w], sim.agents.objects[w]
    slots = sim.agents.slots[w]
    resident = np.flatnonzero(objects.where == al.RESIDENT)
    assert sorted(slots[: loader.slots].tolist()) == resident.tolist()
    assert (slots[loader.slots :] == -1).all()
    assert loader.held == (held > 0).sum() <= len(slots)
    assert loader.lost == ((held > 0) & (objects.where == al.ABSENT)).sum()
    assert loader.loads == loader.slots + loader.evicted


def _check_link(sim: la.Sim, w: int) -> None:
    """Tokens moved to HBM: objects, KV ahead of calls, KV that steps loaded back, and interrupted loads."""
    loader, link = sim.agents.loaders[w], sim.links[2 * w + 1]
    busy_s = float(loader.load_s + loader.wasted_s + loader.kv_load_s)
    tokens = int(loader.loaded_pages + loader.kv_moved_pages) * int(sim.config.page_tokens)
    if sim.config.hicache:
        host = len(sim.trees) - int(sim.config.workers) + w
        loaded_back = int(sim.workers[w].host_hit_tokens) - int(sim.hosts[w].loading_tokens)
        assert sim.trees[host].read_tokens == loaded_back + loader.kv_moved_pages * sim.config.page_tokens
        busy_s += loaded_back * float(link.s_per_token)
        tokens += loaded_back
    else:
        assert link.transfers == loader.loads
    assert math.isclose(link.busy_s, busy_s, abs_tol=1e-9)
    assert link.tokens == tokens


def _check_kv(sim: la.Sim, w: int) -> None:
    """KV in HBM, KV of running requests and what is being loaded ahead fill what is not free."""
    agents, loader, page = sim.agents, sim.agents.loaders[w], int(sim.config.page_tokens)
    fresh = [int(agent.fresh_pages) for agent in agents.agents if agent.worker == w]
    assert min(fresh, default=0) >= 0
    assert sum(fresh) == loader.kv_fresh_pages <= agents.policy.kv_budget_pages
    assert loader.kv_used_pages + loader.kv_fresh_pages <= loader.kv_loaded_pages <= loader.kv_moved_pages
    loads = int(loader.object) == len(agents.things)
    assert loads == (loader.kv_node >= 0) == (loader.kv_anchor >= 0) == (loader.kv_pages > 0)
    if loads:
        _check_kv_load(sim, w)
    pool = sim.trees[w]
    cached = set()
    for d in set(sim.deepest_cached[w].tolist()) - {-1}:
        while d >= len(sim.trees) and d not in cached:
            cached.add(d)
            d = int(sim.nodes[d].parent)
    in_hbm = [d for d in cached if sim.hosted[d].where & hl.IN_HBM]
    pages = sum((int(sim.nodes[d].end) - int(sim.nodes[d].begin)) // page for d in in_hbm) + int(loader.kv_pages)
    assert pool.free_pages >= 0
    assert pool.free_pages + pages <= pool.capacity_pages
    if sim.workers[w].phase == la.IDLE and sim.workers[w].waiting == 0:
        assert pool.free_pages + pages == pool.capacity_pages


def _check_host(sim: la.Sim) -> None:
    """Pages of nodes, those that no look-up comes to among them, of fetches, and free ones are all that hosts have."""
    page, workers = int(sim.config.page_tokens), range(int(sim.config.workers))
    used = set(range(len(sim.trees), int(sim.counters[la.NODES_USED])))
    used -= set(shared._chain(sim.nodes, int(sim.counters[la.FREE_NODE])))
    used -= set(sim.agents.objects["node"].ravel().tolist())
    if sim.agents.policy.host_pages:
        used -= set(sim.agents.objects["copy_node"].ravel().tolist())
    if sim.tiers.storage:
        used -= {d for v in range(len(workers), len(sim.deepest_cached)) for d in stores.runs_of(sim, v)}
    on_host = [sim.nodes[d] for d in used if sim.hosted[d].where & hl.ON_HOST]
    held = sum((int(node.end) - int(node.begin)) // page for node in on_host)
    if sim.tiers.storage:
        held += sum(tiers._fetch_pages(sim, w) for w in workers)
    pools = [sim.trees[tiers.host_pool(sim, w)] for w in workers]
    assert min(int(pool.free_pages) for pool in pools) >= 0
    known = held + sum(int(pool.free_pages) for pool in pools) + sum(int(host.released_pages) for host in sim.hosts)
    capacity_pages = sum(int(pool.capacity_pages) for pool in pools)
    # See ``tier_invariants``: of retracted requests' fetches some memory may be lost, as in the engine.
    assert known == capacity_pages or (
        sim.tiers.storage and sim.workers["preemptions"].any() and known < capacity_pages
    )


def _check_fetch(sim: la.Sim, w: int) -> None:
    """A fetch ahead is of an agent's newest call there, which has ended, and of nothing that was sought before."""
    tiers._check_fetches(sim, w)
    agents, loader = sim.agents, sim.agents.loaders[w]
    active_fetch = int(loader.fetch)
    for r in np.flatnonzero(sim.requests["fetch"] >= 0).tolist():
        f = int(sim.requests[r].fetch)
        if sim.requests[r].worker == w and sim.requests[r].outcome == la.FINISHED:
            assert f == active_fetch or sim.fetches[f].refused
    if active_fetch < 0:
        return
    fetch, agent = sim.fetches[active_fetch], agents.agents[int(loader.fetch_agent)]
    assert agents.policy.loading == al.AHEAD
    assert agents.policy.kv_budget_pages > 0
    if sim.requests[int(loader.fetch_request)].fetch == active_fetch and agent.worker == w:
        assert agent.calls == 0
        assert agent.newest == loader.fetch_request == fetch.request
        assert agent.sought == agent.trace_node == fetch.trace_node


def _check_kv_load(sim: la.Sim, w: int) -> None:
    """It has pages for all that it brings, which nothing takes from the host meanwhile; none of it counts as cached."""
    loader, page = sim.agents.loaders[w], int(sim.config.page_tokens)
    d = int(loader.kv_node)
    assert sim.hosted[d].host_locks > 0
    assert sim.nodes[int(loader.kv_anchor)].lock > 0
    coming = 0
    while d >= len(sim.trees) and sim.hosted[d].where == hl.ON_HOST:
        coming += (int(sim.nodes[d].end) - int(sim.nodes[d].begin)) // page
        d = int(sim.nodes[d].parent)
    assert d < len(sim.trees) or sim.hosted[d].where & hl.IN_HBM
    assert coming <= loader.kv_pages


def sum_of_loads(sim: la.Sim, w: int) -> float:
    """Seconds of the loads that have ended, by what is resident and what was evicted: each was loaded once more."""
    things = sim.agents.things
    if len({float(thing.load_s) for thing in things}) == 1:
        return float(sim.agents.loaders[w].loads) * float(things[0].load_s)
    return float(sim.agents.loaders[w].load_s)


def _check_shared_pool(sim: la.Sim, w: int, taken: int) -> None:
    """KV in the tree, KV of running requests and objects fill all pages not free, except during a step."""
    pool, page = sim.trees[w], int(sim.config.page_tokens)
    cached = set()
    for d in set(sim.deepest_cached[w].tolist()) - {-1}:
        while d >= len(sim.trees) and d not in cached:
            cached.add(d)
            d = int(sim.nodes[d].parent)
    pages = sum((int(sim.nodes[d].end) - int(sim.nodes[d].begin)) // page for d in cached)
    assert pool.free_pages >= 0
    assert pool.free_pages + pages + taken <= pool.capacity_pages
    if sim.workers[w].phase == la.IDLE:
        assert pool.free_pages + pages + taken == pool.capacity_pages


def _check_order(sim: la.Sim, w: int) -> None:
    """Evictable nodes have the predicted calls of the slow scan, and leave in their order."""
    if sim.config.eviction != la.DISTANCE:
        return
    host = {len(sim.trees) - int(sim.config.workers) + w} if sim.config.hicache else set()
    host |= {int(sim.agents.loaders[w].copies)} if sim.agents.policy.host_pages else set()
    for v in {w, int(sim.agents.loaders[w].pool)} | host:
        assert sim.trees[v].line_places == 0
        heap = eviction.places(sim, v)[: sim.trees[v].heap_size].tolist()
        for slot, d in enumerate(heap):
            assert sim.nodes[d].heap_slot == slot
            assert float(sim.agents.keys[d]) == slow_predicted_call(sim, d)
            if slot:
                above = heap[(slot - 1) >> 1]
                assert sim.agents.keys[above] >= sim.agents.keys[d]


def _check_line(sim: la.Sim, row: int) -> None:
    size = int(sim.agents.line_size[row])
    line = sim.agents.line[row][:size].tolist()
    for slot, a in enumerate(line):
        assert sim.agents.line_slot[row, a] == slot
        if slot:
            assert sim.agents.agents[line[(slot - 1) >> 1]].predicted_call <= sim.agents.agents[a].predicted_call
    assert (sim.agents.line_slot[row] >= 0).sum() == size
