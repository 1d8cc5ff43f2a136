"""Exclusive hierarchies keep what they were given: a page leaves a store only once another one has it."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from tests.kernels import store_invariants as store_checks
from tests.kernels import tier_invariants
from tests.kernels.invariants import run_until
from tests.kernels.systems import examples
from tests.kernels.tier_systems import UNLIMITED_TOKENS, TieredSystem, chains

Page = tuple[int, int]


def _in_transit(sim: la.Sim) -> set[Page]:
    """Pages that the nearer stores have let go and the farther ones have not got."""
    page, far = int(sim.config.page_tokens), len(sim.store_tiers) - 1
    pages = set()
    for w in range(int(sim.config.workers)):
        for m in tier_invariants._line(sim, hl.SERVERS * w + hl.CONNECTOR_SERVER):
            move = sim.moves[m]
            if move.to == far:
                ends = range(int(move.begin) + page, int(move.end) + 1, page)
                pages |= {(int(move.trace_node), end) for end in ends}
    return pages


def _kept(sim: la.Sim) -> set[Page]:
    """Pages that the stores have, or that move between them."""
    return set().union(*(store_checks.pages_of(sim, v) for v in store_checks.stores(sim)), _in_transit(sim))


@examples(200)
@given(system=chains(most_workers=3, mixed=False), stop=st.floats(0.0, 1.0), best_effort=st.booleans())
def test_l2_an_exclusive_hierarchy_with_room_loses_no_page(
    system: TieredSystem, stop: float, best_effort: bool
) -> None:
    """Whatever is fetched, stopped, taken back and evicted between two moments: it is all there at the later one."""
    near, far = system.storage, system.farther
    assert near is not None
    assert far is not None
    movement = replace(system.movement, hierarchy="exclusive")
    if best_effort:
        movement = replace(movement, prefetch="best_effort")
    system = replace(
        system,
        movement=movement,
        storage=replace(near, ttl_s=math.inf),
        farther=replace(far, ttl_s=math.inf, capacity_tokens=UNLIMITED_TOKENS),
    )
    finished = run_until(system)
    then = run_until(system, stop * float(max(finished.workers["event_s"])))
    assert _kept(then) <= _kept(finished)
