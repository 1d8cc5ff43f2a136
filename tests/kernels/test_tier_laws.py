"""Laws L4, L6 and L7 of stores that several workers share.

L3, and bytes moved against bytes accounted: ``tier_invariants``, wherever a run stops.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.simulate.plans.tier_plan import TierPlan
from tests.kernels.invariants import run_until
from tests.kernels.systems import examples, settled
from tests.kernels.test_laws import fingerprint
from tests.kernels.tier_systems import UNLIMITED_TOKENS, TieredSystem, chains, limited_stores, stores, tiered


@pytest.mark.parametrize("count", ["8", pytest.param("60", marks=pytest.mark.slow)])
def test_l4_stores_and_links_are_used_in_order_of_time(count: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::RuntimeWarning", "-m", "tests.kernels.store_order", count],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "in order\n"


@examples(40)
@given(system=tiered(limited_stores(), most_workers=4, mixed=False) | chains(most_workers=4, mixed=False))
def test_l4_links_never_carry_more_than_their_bandwidth(system: TieredSystem) -> None:
    """However many use one at once, it takes for all of them what it takes for each, one after another."""
    sim = run_until(system)
    for link in sim.links:
        assert link.busy_s == pytest.approx(link.transfers * link.base_s + link.tokens * link.s_per_token)
        assert link.busy_s <= link.free_s * (1 + 1e-12)
        assert (link.tokens == 0) == (link.transfers == 0)


@examples(60)
@given(
    system=tiered(limited_stores(), most_workers=4, mixed=False) | chains(most_workers=4, mixed=False),
    stop=st.floats(0.1, 1.0),
)
def test_l4_what_counts_as_moved_has_come_by_the_end(system: TieredSystem, stop: float) -> None:
    """No link is busier than the run was long, and no tier was given more than its links carried in that time."""
    complete = settled(system)
    first = float(complete.requests.arrival_s.min())
    cut = settled(system, horizon_s=first + stop * complete.makespan_s)
    for result in (complete, cut):
        assert result.observed_s >= result.makespan_s
        plans = system.plan.tiers
        for link in result.links:
            assert 0 <= link.busy_s <= result.observed_s + 1e-9
        for use in (use for use in result.stores if use.tier > 1):
            media = [link for link in result.links if (link.tier, link.path) == (use.tier, "medium")]
            sharing = system.plan.schedulers_sharing(plans[use.tier - 1], system.workers)
            write, read = (link for link in media if link.index == use.first_worker // sharing)
            law = plans[use.tier - 1]
            assert use.stored_tokens * law.write.s_per_token <= write.busy_s + 1e-9
            assert (use.read_tokens + use.demoted_tokens) * law.read.s_per_token <= read.busy_s + 1e-9
        behind = sum(use.read_tokens for use in result.stores if use.tier > 1)
        hosts = [use for use in result.stores if use.tier == 1]
        to_host = [link for link in result.links if link.tier == 1 and link.write]
        law = plans[0].write
        movement = system.movement
        pace = max(law.s_per_token, movement.host_write.s_per_token)
        moved = sum(use.stored_tokens for use in hosts) - behind
        assert 0 <= moved * pace <= sum(link.busy_s for link in to_host) + 1e-6


@examples(6)
@given(several=st.lists(tiered(limited_stores(), most_workers=4) | chains(most_workers=4), min_size=4, max_size=4))
def test_l6_threads_give_the_same_bytes_as_one_after_another(several: list[TieredSystem]) -> None:
    alone = [fingerprint(settled(system)) for system in several]
    for threads in (2, 4):
        with ThreadPoolExecutor(max_workers=threads) as pool:
            together = list(pool.map(lambda system: fingerprint(system.simulate()), several))
        assert together == alone


@pytest.mark.parametrize("hierarchy", ["inclusive", "exclusive"])
def test_l7_a_farther_store_behind_one_that_holds_all_changes_nothing(hierarchy: str) -> None:
    @examples(60)
    @given(system=tiered(stores(scope=st.sampled_from(["worker", "node", "cluster"])), most_workers=3))
    def check(system: TieredSystem) -> None:
        """The farther one is free, shared by the same workers, and not behind the network."""
        assert system.storage is not None
        movement = replace(system.movement, hierarchy=hierarchy, network_read=None, network_write=None)
        system = replace(system, movement=movement)
        chain = replace(system, farther=TierPlan("storage", system.storage.scope, UNLIMITED_TOKENS, 1))
        assert fingerprint(settled(chain)) == fingerprint(settled(system))

    check()
