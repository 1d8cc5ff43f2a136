"""The kernels' store against the slow one on random sequences of operations, page for page."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.policies import EVICTIONS
from hisearch.kernels.cache import store, store_eviction
from hisearch.kernels.fleet import cluster
from hisearch.kernels.layout import sim as la
from hisearch.simulate import engine
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.plans.tier_plan import MovementPlan, TierPlan
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels import store_invariants
from tests.kernels.arc_reference import OFTEN, ONCE
from tests.kernels.store_reference import Page, Rules, Store
from tests.kernels.systems import examples
from tests.kernels.tier_systems import STORE_EVICTIONS, TieredSystem
from tests.reference.random_traces import TraceShape

SHAPE = TraceShape(requests=8, prompt_tokens=40, output_tokens=12, shared_prefixes=2, follow_up=0.5, repeat=0.0)
#: Index of the store of one worker.
STORE = 1


@dataclass(frozen=True)
class Setting:
    """A store, and a trace that gives it its paths."""

    seed: int
    page: int
    capacity_pages: int
    policy: str
    ttl_s: float = math.inf
    reclaim: str = "lazy"
    tail_tokens: int = 8192
    turn_tokens: int = 1024
    small_share: float = 0.1


@dataclass(frozen=True)
class Operation:
    """``shares``: of the path of a request, where the pages that it is about begin and end."""

    kind: str
    request: int
    shares: tuple[float, float]
    after_s: float
    priority: int


SETTINGS = st.builds(
    Setting,
    seed=st.integers(0, 50),
    page=st.sampled_from([1, 4]),
    capacity_pages=st.sampled_from([1, 5, 12, 30, 1000]),
    policy=st.sampled_from(STORE_EVICTIONS),
    ttl_s=st.sampled_from([math.inf, 3.0]),
    reclaim=st.sampled_from(["lazy", "periodic", "pressure"]),
    tail_tokens=st.sampled_from([1, 10, 30]),
    turn_tokens=st.sampled_from([1, 8]),
    small_share=st.sampled_from([0.1, 0.5, 1.0]),
)
OPERATIONS = st.builds(
    Operation,
    kind=st.sampled_from(["put", "put", "put", "touch", "look", "look", "sweep", "take out", "come up", "reach"]),
    request=st.integers(0, SHAPE.requests - 1),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)) | st.tuples(st.just(0.0), st.floats(0, 1)),
    after_s=st.sampled_from([0.0, 0.5, 2.0]),
    priority=st.integers(-1, 2),
)


def empty(setting: Setting) -> tuple[la.Sim, Store]:
    """The same empty store, by the kernels and slow."""
    system = TieredSystem(
        seed=setting.seed,
        engine=EngineSpec(name="sglang", page_tokens=setting.page),
        capacity_tokens=1000,
        shape=SHAPE,
        movement=MovementPlan("hicache"),
        storage=TierPlan(
            "storage", "worker", setting.capacity_pages * setting.page, setting.page, eviction=setting.policy,
            ttl_s=setting.ttl_s, reclaim=setting.reclaim,
            parameters=(
                ("tail_tokens", setting.tail_tokens), ("turn_tokens", setting.turn_tokens),
                ("small_share", setting.small_share),
            ),
        ),
    )  # fmt: skip
    _, (sim,) = engine.allocate(FleetPlan((PoolPlan(system.plan),), system.router), system.trace, [6000])
    cluster._reset_pool(sim)
    rules = Rules(
        setting.page, setting.capacity_pages, setting.policy, setting.ttl_s, setting.reclaim, setting.tail_tokens,
        setting.turn_tokens, setting.small_share,
    )  # fmt: skip
    return sim, Store(system.trace.arrays, rules)


def perform(sim: la.Sim, slow: Store, operation: Operation, now: float) -> None:
    """The same operation on both; what a look-up finds is used, as by those who read it."""
    trace, page = slow.trace, slow.page
    trace_node = int(trace.output_node[operation.request])
    pages = int(trace.end_tokens[trace_node]) // page
    begin, end = (round(share * pages) * page for share in sorted(operation.shares))
    if operation.kind == "sweep":
        store_eviction.sweep(sim, STORE, now)
        slow.sweep(now)
    elif operation.kind == "come up":
        sim.requests[operation.request].outcome = la.IN_FLIGHT
        store.come_up(sim, operation.request)
        slow.come_up(operation.request)
    elif operation.kind == "take out":
        store.take_out(sim, STORE, trace_node, begin, end)
        slow.take_out(trace_node, begin, end)
    elif operation.kind == "reach":
        store.reach(sim, STORE, trace_node, end)
        slow.reach(trace_node, end)
    elif operation.kind == "look":
        matched = store.leading(sim, STORE, trace_node, begin, end, now)
        assert matched == slow.leading(trace_node, begin, end, now)
        assert 0 <= matched <= end - begin
    elif operation.kind == "touch":
        matched = slow.leading(trace_node, begin, end, now)
        assert store.leading(sim, STORE, trace_node, begin, end, now) == matched
        store.touch(sim, STORE, trace_node, begin, begin + matched, now, operation.priority)
        slow.touch(trace_node, begin, begin + matched, now, operation.priority)
    else:
        store.put(sim, STORE, trace_node, begin, end, now, operation.priority)
        slow.put(trace_node, begin, end, now, operation.priority)


@examples(250)
@given(setting=SETTINGS, operations=st.lists(OPERATIONS, max_size=25))
def test_store_equals_a_dictionary_of_pages(setting: Setting, operations: list[Operation]) -> None:
    sim, slow = empty(setting)
    now = 0.0
    for operation in operations:
        now += operation.after_s
        perform(sim, slow, operation, now)
        cache, page = sim.trees[STORE], setting.page
        assert not sim.counters[la.FAULT]
        assert store_invariants.pages_of(sim, STORE) == set(slow.pages)
        assert cache.free_pages == slow.free_pages
        if setting.policy == "arc":
            assert cache.target == slow.adaptive.target
            for which in (ONCE, OFTEN):
                assert store_invariants.pages_of(sim, int(cache.shadows) + which) == set(slow.adaptive.gone[which])
        counts = (cache.stored_tokens, cache.evicted_tokens, cache.expired_tokens, cache.given_tokens)
        assert counts == (slow.stored * page, slow.evicted * page, slow.expired * page, slow.given * page)
        store_invariants.check_store(sim, STORE, store_invariants.runs_of(sim, STORE))


# ---- by hand ---------------------------------------------------------------------------------------------------------


def long_path(slow: Store) -> int:
    """End of the path that leads through most trace-tree nodes."""
    return max(range(len(slow.trace.parent)), key=lambda s: len({page[0] for page in path_of(slow, s)[:40]}))


def path_of(slow: Store, trace_node: int) -> list[Page]:
    return slow.path(trace_node, 0, int(slow.trace.end_tokens[trace_node]))


@pytest.mark.parametrize("policy", sorted(name for name in STORE_EVICTIONS if EVICTIONS[name].deepest_first))
def test_of_runs_used_together_the_deepest_goes_first(policy: str) -> None:
    """A store without what comes before is of no use: with all of a path used at once its end goes first."""
    sim, slow = empty(Setting(3, 1, 40, policy, math.inf, "lazy"))
    trace_node = long_path(slow)
    path = path_of(slow, trace_node)[:40]
    assert len({page[0] for page in path}) > 1
    end = path[-1][1]
    store.put(sim, STORE, trace_node, 0, end, 0.0, 0)
    store.touch(sim, STORE, trace_node, 0, end, 1.0, 0)
    other = next(s for s in reversed(range(1, len(slow.trace.parent))) if path_of(slow, s)[0] not in path)
    store.put(sim, STORE, other, 0, 40 - end + 7, 2.0, 0)
    assert store.leading(sim, STORE, trace_node, 0, end, 2.0) == end - 7


@pytest.mark.parametrize("policy", ["lru", "mru"])
def test_what_was_put_first_does_not_go_first_for_that(policy: str) -> None:
    """The beginning of a path is put before its end, and both are read together."""
    sim, slow = empty(Setting(3, 1, 40, policy, math.inf, "lazy"))
    trace_node = long_path(slow)
    path = path_of(slow, trace_node)[:40]
    first = max(at for node, at in path if node == path[0][0])
    end = path[-1][1]
    assert first < end
    store.put(sim, STORE, trace_node, 0, first, 0.0, 0)
    store.put(sim, STORE, trace_node, first, end, 0.0, 0)
    store.touch(sim, STORE, trace_node, 0, end, 1.0, 0)
    other = next(s for s in reversed(range(1, len(slow.trace.parent))) if path_of(slow, s)[0] not in path)
    store.put(sim, STORE, other, 0, 40 - end + 3, 2.0, 0)
    assert store.leading(sim, STORE, trace_node, 0, end, 2.0) == end - 3


def test_a_put_is_a_use_of_what_is_held_and_none_of_what_it_joins() -> None:
    sim, slow = empty(Setting(3, 1, 40, "lfu"))
    trace_node = next(s for s in range(1, len(slow.trace.parent)) if slow.trace.end_tokens[s] > 4)
    for begin, end, uses in ((0, 1, 0), (0, 1, 1), (0, 2, 2), (2, 4, 2)):
        store.put(sim, STORE, trace_node, begin, end, 0.0, 0)
        (run,) = store_invariants.runs_of(sim, STORE)
        assert sim.nodes[run].hits == uses


def test_a_put_that_does_not_fit_holds_its_first_pages() -> None:
    """The last page is held already, and one page is free."""
    sim, slow = empty(Setting(3, 1, 2, "lru", math.inf, "lazy"))
    trace_node = next(s for s in range(1, len(slow.trace.parent)) if slow.trace.end_tokens[s] > 4)
    store.put(sim, STORE, trace_node, 3, 4, 0.0, 0)
    store.put(sim, STORE, trace_node, 0, 4, 0.0, 0)
    assert store.leading(sim, STORE, trace_node, 0, 4, 0.0) == 1
    assert store.leading(sim, STORE, trace_node, 3, 4, 0.0) == 1


def test_a_put_behind_a_run_keeps_it() -> None:
    """The first page joins the run, which frees no pages for the others from then on."""
    sim, slow = empty(Setting(3, 1, 3, "lru", math.inf, "lazy"))
    trace_node = next(s for s in range(1, len(slow.trace.parent)) if slow.trace.end_tokens[s] > 6)
    assert len({page[0] for page in path_of(slow, trace_node)[:6]}) == 1
    store.put(sim, STORE, trace_node, 0, 2, 0.0, 0)
    store.put(sim, STORE, trace_node, 2, 6, 1.0, 0)
    assert store.leading(sim, STORE, trace_node, 0, 6, 1.0) == 3


@pytest.mark.parametrize("reclaim", ["lazy", "periodic", "pressure"])
def test_what_has_expired_does_not_come_back(reclaim: str) -> None:
    """Neither by a page that is put next to it nor by one that is put over it."""
    for begin in (2, 1):
        sim, slow = empty(Setting(3, 1, 40, "lru", 3.0, reclaim))
        trace_node = next(s for s in range(1, len(slow.trace.parent)) if slow.trace.end_tokens[s] > 4)
        store.put(sim, STORE, trace_node, 0, 2, 0.0, 0)
        store.put(sim, STORE, trace_node, begin, 3, 3.5, 0)
        assert store.leading(sim, STORE, trace_node, 0, 3, 3.5) == 0
        assert store.leading(sim, STORE, trace_node, begin, 3, 3.5) == 3 - begin
        assert sim.trees[STORE].stored_tokens == 2 + 3 - begin
