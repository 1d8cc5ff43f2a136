"""The law of parents: where no page is resident without the ones before it, and what look-ups make of it elsewhere.

HiCache's HBM is closed towards the root, and so is HBM and host memory together, as far as look-ups reach. What is on
the host alone below a node that was dropped is cut off: it holds memory, and no look-up comes to it. Stores behind the
host, and those of vLLM's connectors, may hold a page without the one before it. A hit ends at the first one missing,
everywhere (vLLM's: ``tests/reference_validation/test_vllm_tier_laws.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from hisearch.kernels.cache import store
from hisearch.kernels.hicache import nodes
from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from tests.kernels import store_invariants as store_checks
from tests.kernels import tier_invariants
from tests.kernels.invariants import run_until
from tests.kernels.systems import examples, settled
from tests.kernels.tier_systems import TieredSystem, chains, limited_stores, tiered

SYSTEMS = tiered(limited_stores(), most_workers=3, mixed=False) | chains(most_workers=3, mixed=False)
STOPS = st.floats(0.05, 1.0)


def stopped(system: TieredSystem, stop: float) -> la.Sim:
    """The arrays as they are after a share of the run."""
    complete = settled(system)
    return run_until(system, float(complete.requests.arrival_s.min()) + stop * complete.makespan_s)


def path(sim: la.Sim, trace_node: int) -> list[int]:
    """Trace-tree nodes from the root's child down to ``trace_node``."""
    nodes_up: list[int] = []
    while trace_node > 0:
        nodes_up.append(trace_node)
        trace_node = int(sim.trace.parent[trace_node])
    return nodes_up[::-1]


def ends_of_paths(sim: la.Sim) -> list[int]:
    """Where the sequences of the trace end in its tree."""
    return sorted({int(trace_node) for trace_node in sim.trace.output_node})


def resident(sim: la.Sim, reachable: list[int], trace_node: int, where: int) -> list[bool]:
    """By token of the path to ``trace_node``: whether a node that look-ups can reach has it in one of ``where``."""
    to_root = path(sim, trace_node)
    flags = np.zeros(int(sim.trace.end_tokens[trace_node]), bool)
    for d in reachable:
        node = sim.nodes[d]
        if not sim.hosted[d].where & where:
            continue
        shared = [s for s in path(sim, int(node.trace_node)) if s in to_root]
        if shared:
            end = min(int(node.end), int(sim.trace.end_tokens[shared[-1]]))
            flags[int(node.begin) : max(end, int(node.begin))] = True
    return flags.tolist()


def leading(flags: list[bool]) -> int:
    """How many there are before the first that is False."""
    return sum(1 for _ in takewhile(bool, flags))


@examples(60)
@given(system=SYSTEMS, stop=STOPS)
def test_no_page_of_hicache_is_found_without_its_parent(system: TieredSystem, stop: float) -> None:
    sim = stopped(system, stop)
    page = int(sim.config.page_tokens)
    records = tier_invariants._sorted_records(sim)
    for w in range(int(sim.config.workers)):
        for trace_node in ends_of_paths(sim):
            in_hbm = resident(sim, records.nodes[w], trace_node, hl.IN_HBM)
            either = resident(sim, records.nodes[w], trace_node, hl.IN_HBM | hl.ON_HOST)
            assert sum(in_hbm) == leading(in_hbm)
            assert sum(either) == leading(either)
            tokens = int(sim.trace.end_tokens[trace_node]) // page * page
            matched, _, _ = nodes.find(sim, w, trace_node, tokens)
            assert matched // page == min(leading(either), tokens) // page


@examples(60)
@given(system=SYSTEMS, stop=STOPS, share=st.floats(0, 1))
def test_hits_of_a_store_end_at_the_first_page_that_it_has_not(system: TieredSystem, stop: float, share: float) -> None:
    sim = stopped(system, stop)
    page = int(sim.config.page_tokens)
    for v in store_checks.stores(sim):
        # Before anything was written nothing has expired: what has is dropped by the look-up itself.
        now = -1.0
        held = store_checks.pages_of(sim, v)
        for trace_node in ends_of_paths(sim):
            pages = pages_on(sim, trace_node)
            begin = int(share * len(pages))
            expected = leading([of in held for of in pages[begin:]])
            assert store.leading(sim, v, trace_node, begin * page, len(pages) * page, now) == expected * page


def pages_on(sim: la.Sim, trace_node: int) -> list[tuple[int, int]]:
    """The whole pages of a path in order, named as ``store_invariants.pages_of`` names them."""
    page, pages = int(sim.config.page_tokens), []
    for s in path(sim, trace_node):
        first = int(sim.trace.start_tokens[s]) // page * page + page
        pages += [(s, end) for end in range(first, int(sim.trace.end_tokens[s]) + 1, page)]
    return pages


@examples(60)
@given(system=SYSTEMS, stop=STOPS)
def test_what_is_cut_off_is_not_found(system: TieredSystem, stop: float) -> None:
    sim = stopped(system, stop)
    for d in tier_invariants._sorted_records(sim).cut_off:
        for w in range(int(sim.config.workers)):
            pages = set(tier_invariants._sorted_records(sim).nodes[w])
            _, deepest, _ = nodes.find(sim, w, int(sim.nodes[d].trace_node), int(sim.nodes[d].end))
            assert deepest != d
            assert deepest in pages or deepest < len(sim.trees)


def has_hole(sim: la.Sim) -> bool:
    """Whether a store holds a page without the one before it."""
    for v in store_checks.stores(sim):
        held = store_checks.pages_of(sim, v)
        for trace_node in ends_of_paths(sim):
            flags = [of in held for of in pages_on(sim, trace_node)]
            if sum(flags) > leading(flags):
                return True
    return False


def has_cut_off(sim: la.Sim) -> bool:
    """Whether host memory holds what no look-up comes to."""
    return bool(tier_invariants._sorted_records(sim).cut_off)


@pytest.mark.parametrize("seen", [has_hole, has_cut_off])
def test_both_happen(seen: Callable[[la.Sim], bool]) -> None:
    """Else the tests above would say little."""
    search = settings(examples(300), phases=[Phase.generate])
    find(st.tuples(SYSTEMS, STOPS), lambda example: seen(stopped(*example)), settings=search)
