"""Two stores in a chain on random sequences of operations, against two slow stores and the rules said plainly."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.fleet import cluster
from hisearch.kernels.hicache import stores
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.kernels.traffic import moves
from hisearch.simulate import engine
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan, TransferLaw
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels import store_invariants
from tests.kernels.store_reference import Page, Rules, Store
from tests.kernels.systems import examples
from tests.kernels.tier_systems import STORE_EVICTIONS, TieredSystem
from tests.reference.random_traces import TraceShape

SHAPE = TraceShape(requests=8, prompt_tokens=40, output_tokens=12, shared_prefixes=2, follow_up=0.5, repeat=0.0)
NEAR, FAR = 1, 2
LAW = TransferLaw(0.1, 0.01)


@dataclass(frozen=True)
class Setting:
    """The two stores of one worker, and a trace that gives them their paths."""

    seed: int
    page: int
    exclusive: bool
    pages: tuple[int, int]
    policies: tuple[str, str] = ("lru", "lru")
    ttl_s: tuple[float, float] = (math.inf, math.inf)


@dataclass(frozen=True)
class Operation:
    """``shares``: of the path of a request, where the pages that it is about begin and end."""

    kind: str
    request: int
    shares: tuple[float, float]
    after_s: float


SETTINGS = st.builds(
    Setting,
    seed=st.integers(0, 50),
    page=st.sampled_from([1, 4]),
    exclusive=st.booleans(),
    pages=st.tuples(st.sampled_from([3, 8, 20]), st.sampled_from([5, 30, 1000])),
    policies=st.tuples(st.sampled_from(STORE_EVICTIONS), st.sampled_from(STORE_EVICTIONS)),
    ttl_s=st.tuples(*[st.sampled_from([math.inf, math.inf, 3.0])] * 2),
)
OPERATIONS = st.builds(
    Operation,
    kind=st.sampled_from(["write", "read", "read", "move"]),
    request=st.integers(0, SHAPE.requests - 1),
    shares=st.tuples(st.just(0.0), st.floats(0, 1)) | st.tuples(st.floats(0, 1), st.floats(0, 1)),
    after_s=st.sampled_from([0.0, 0.5, 2.0]),
)


class Chain:
    """The slow one; ``moves``: (path, begin, end, True for the nearer store), in order."""

    def __init__(self, near: Store, far: Store, exclusive: bool) -> None:
        self.near, self.far, self.exclusive = near, far, exclusive
        self.moves: list[tuple[int, int, int, bool]] = []
        self.demoted = 0

    def look(self, trace_node: int, begin: int, end: int, now: float) -> list[tuple[Store, int, int]]:
        """What is found without a gap behind ``begin``: stretches of pages, each from one store."""
        stretches: list[tuple[Store, int, int]] = []
        while begin < end:
            store, stop = self.near, begin + self.near.leading(trace_node, begin, end, now)
            if stop == begin:
                upto = begin + self.near.gap(trace_node, begin, end, now)
                store, stop = self.far, begin + self.far.leading(trace_node, begin, upto, now)
            if stop == begin:
                break
            stretches.append((store, begin, stop))
            begin = stop
        return stretches

    def read(self, trace_node: int, begin: int, end: int, now: float) -> None:
        """Use the hits; pages that only the farther store has move to the nearer."""
        for store, first, stop in self.look(trace_node, begin, end, now):
            store.touch(trace_node, first, stop, now)
        for store in (self.near, self.far):
            if store.rules.policy == "tlru":
                store.reach(trace_node, end)
        stop = max((stop for _, _, stop in self.look(trace_node, begin, end, now)), default=begin)
        self.moves += [
            (trace_node, at, to, True) for store, at, to in self.look(trace_node, begin, stop, now) if store is self.far
        ]

    def write(self, trace_node: int, begin: int, end: int, now: float) -> None:
        """Put pages where the hierarchy has them."""
        self.near.gone.clear()
        self.near.put(trace_node, begin, end, now)
        if self.exclusive:
            held = self.near.leading(trace_node, begin, end, now)
            self.far.take_out(trace_node, begin, begin + held)
            self.moves += [(page[0], at, page[1], False) for page, at in ranges(self.near.gone, self.near.page)]

    def move(self, now: float) -> None:
        """The first move takes place."""
        trace_node, begin, end, to_near = self.moves.pop(0)
        if to_near:
            self.write(trace_node, begin, end, now)
            return
        self.demoted += end - begin
        while begin < end:
            stop = begin + self.near.gap(trace_node, begin, end, now)
            if stop > begin:
                self.far.put(trace_node, begin, stop, now)
            begin = stop + self.near.leading(trace_node, stop, end, now)


def ranges(gone: list[Page], page: int) -> list[tuple[Page, int]]:
    """Pages that have gone one after another from an end: (the last of them, where the first begins)."""
    stretches: list[tuple[Page, int]] = []
    for node, at in gone:
        if stretches and stretches[-1][0][0] == node and stretches[-1][1] == at:
            stretches[-1] = (stretches[-1][0], at - page)
        else:
            stretches.append(((node, at), at - page))
    return stretches


def empty(setting: Setting) -> tuple[la.Sim, Chain]:
    """The same empty stores, by the kernels and slow."""
    plans = [
        TierPlan(
            "storage", "worker", pages * setting.page, setting.page, eviction=policy, ttl_s=ttl_s, read=LAW, write=LAW
        )
        for pages, policy, ttl_s in zip(setting.pages, setting.policies, setting.ttl_s, strict=True)
    ]  # fmt: skip
    system = TieredSystem(
        seed=setting.seed,
        engine=EngineSpec(name="sglang", page_tokens=setting.page),
        capacity_tokens=1000,
        shape=SHAPE,
        movement=MovementPlan("hicache", hierarchy="exclusive" if setting.exclusive else "inclusive"),
        storage=plans[0],
        farther=plans[1],
    )
    _, (sim,) = engine.allocate(FleetPlan((PoolPlan(system.plan),), system.router), system.trace, [6000])
    sim.trace.priority[:] = 0
    cluster._reset_pool(sim)
    slow = [
        Store(system.trace.arrays, Rules(setting.page, pages, policy, ttl_s))
        for pages, policy, ttl_s in zip(setting.pages, setting.policies, setting.ttl_s, strict=True)
    ]
    return sim, Chain(slow[0], slow[1], setting.exclusive)


def read(sim: la.Sim, request: int, trace_node: int, begin: int, end: int, now: float) -> int:
    """As a fetch does; returns how many tokens the stores have."""
    cached = int(stores.look(sim, 0, trace_node, begin, end, now))
    stores.use(sim, 0, request, trace_node, begin, begin + cached, end, now)
    fetch = sim.fetches[0]
    fetch.request, fetch.trace_node, fetch.begin, fetch.read, fetch.stopped = request, trace_node, begin, 0, 0
    stores.begin_reading(sim, 0, 0, cached, now)
    stores.end_reading(sim, 0, 0, cached, now)
    return cached


def move(sim: la.Sim, now: float) -> None:
    """The first move of the worker's line takes place."""
    server = sim.servers[hl.CONNECTOR_SERVER]
    m = int(server.head)
    tokens = int(sim.moves[m].end - sim.moves[m].begin)
    stores.begin_moving(sim, 0, m, tokens, now)
    stores.end_moving(sim, 0, m, tokens, now)
    server.head = sim.moves[m].next
    moves.release(sim, m)


def perform(sim: la.Sim, slow: Chain, operation: Operation, now: float) -> None:
    """The same operation on both."""
    trace, page = slow.near.trace, slow.near.page
    trace_node = int(trace.output_node[operation.request])
    pages = int(trace.end_tokens[trace_node]) // page
    begin, end = (round(share * pages) * page for share in sorted(operation.shares))
    if operation.kind == "move":
        if slow.moves:
            move(sim, now)
            slow.move(now)
    elif operation.kind == "write":
        stores.begin_writing(sim, 0, end - begin, now)
        stores.end_writing(sim, 0, trace_node, begin, end, now, 0)
        slow.write(trace_node, begin, end, now)
        if not slow.exclusive:
            slow.far.put(trace_node, begin, end, now)
    else:
        expected = slow.look(trace_node, begin, end, now)
        assert read(sim, operation.request, trace_node, begin, end, now) == sum(stop - at for _, at, stop in expected)
        slow.read(trace_node, begin, end, now)


def waiting(sim: la.Sim) -> list[tuple[int, int, int, bool]]:
    """The worker's line of moves."""
    queued, m = [], int(sim.servers[hl.CONNECTOR_SERVER].head)
    while m >= 0:
        record = sim.moves[m]
        queued.append((int(record.trace_node), int(record.begin), int(record.end), record.to == stores.NEAR))
        m = int(record.next)
    return queued


@examples(150)
@given(setting=SETTINGS, operations=st.lists(OPERATIONS, max_size=25))
def test_chain_equals_two_dictionaries_of_pages(setting: Setting, operations: list[Operation]) -> None:
    sim, slow = empty(setting)
    now = 0.0
    for operation in operations:
        now += operation.after_s
        perform(sim, slow, operation, now)
        assert not sim.counters[la.FAULT]
        assert waiting(sim) == slow.moves
        for v, store in ((NEAR, slow.near), (FAR, slow.far)):
            assert store_invariants.pages_of(sim, v) == set(store.pages)
            store_invariants.check_store(sim, v, store_invariants.runs_of(sim, v))
        assert sim.trees[NEAR].demoted_tokens == slow.demoted
        # What has moved is what the links have carried (L4).
        for v, link in ((NEAR, 2), (FAR, 4)):
            out = sim.trees[v].read_tokens + sim.trees[v].demoted_tokens
            assert sim.links[link + 1].tokens == out
            assert sim.trees[v].stored_tokens <= sim.links[link].tokens


# ---- by hand ---------------------------------------------------------------------------------------------------------


def path(slow: Chain, tokens: int) -> int:
    """A trace-tree node below the root that is so long."""
    trace = slow.near.trace
    return next(s for s in range(1, len(trace.parent)) if trace.parent[s] == 0 and trace.end_tokens[s] >= tokens)


@pytest.mark.parametrize("exclusive", [False, True])
def test_what_the_nearer_store_loses_is_found_in_the_farther(exclusive: bool) -> None:
    sim, slow = empty(Setting(3, 1, exclusive, (4, 100)))
    trace_node = path(slow, 8)
    stores.end_writing(sim, 0, trace_node, 0, 4, 0.0, 0)
    stores.end_writing(sim, 0, trace_node, 4, 8, 1.0, 0)
    while sim.servers[hl.CONNECTOR_SERVER].head >= 0:
        # It has been evicted, and has not come yet.
        assert stores.look(sim, 0, trace_node, 0, 8, 1.0) < 8
        move(sim, 1.0)
    assert stores.look(sim, 0, trace_node, 0, 8, 1.0) == 8
    assert len(store_invariants.pages_of(sim, FAR)) == (4 if exclusive else 8)


def test_a_batch_comes_over_both_links_at_once() -> None:
    """The nearer store has the middle of it."""
    sim, slow = empty(replace(Setting(3, 1, False, (4, 100)), policies=("fifo", "lru")))
    trace_node = path(slow, 8)
    stores.end_writing(sim, 0, trace_node, 0, 2, 0.0, 0)
    stores.end_writing(sim, 0, trace_node, 6, 8, 0.0, 0)
    stores.end_writing(sim, 0, trace_node, 2, 6, 0.0, 0)
    held = {at for _, at in store_invariants.pages_of(sim, NEAR)}
    fetch = sim.fetches[0]
    fetch.trace_node, fetch.begin, fetch.read = trace_node, 0, 0
    end_s = stores.begin_reading(sim, 0, 0, 8, 0.0)
    assert 0 < len(held) < 8
    assert (sim.links[3].tokens, sim.links[5].tokens) == (len(held), 8 - len(held))
    assert end_s == pytest.approx(LAW.base_s + max(len(held), 8 - len(held)) * LAW.s_per_token)
