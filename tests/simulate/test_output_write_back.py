"""Decode workers that write what they make to the storage of the prefill workers: against a restatement, and laws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hisearch.kernels.layout import hicache as hl
from hisearch.kernels.layout import sim as la
from hisearch.latency.step_cost import decode_step_seconds, step_seconds
from hisearch.simulate.engine import simulate, simulate_fleet
from hisearch.simulate.plans.fleet import Incident
from hisearch.simulate.plans.tier_plan import TransferLaw
from hisearch.simulate.results.tables import Outcome
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace
from tests.kernels import store_invariants
from tests.kernels.systems import compiled, examples
from tests.reference.random_traces import TraceShape, random_trace
from tests.simulate.write_back_systems import AMPLE, Laws, finished, fleet, restated, run, workers

SHAPE = TraceShape(requests=30, rate_rps=20.0, output_tokens=40, follow_up=0.6)
SLOW = st.builds(TransferLaw, st.sampled_from([0.0, 1e-4, 0.02]), st.sampled_from([0.0, 1e-5, 2e-3, 0.05]))


def pages_on_path(sim: la.Sim, r: int, begin: int, end: int) -> set[tuple[int, int]]:
    """The pages of ``r`` from token to token, as ``store_invariants.pages_of`` names them."""
    page = int(sim.config.page_tokens)
    pages = set()
    for last in range(begin + page, end + 1, page):
        s = int(sim.trace.output_node[r])
        while sim.trace.start_tokens[s] >= last:
            s = int(sim.trace.parent[s])
        pages.add((s, last))
    return pages


@examples(25)
@given(
    seed=st.integers(0, 10**6),
    page=st.sampled_from([1, 4, 16]),
    count=st.integers(1, 3),
    host=st.sampled_from([32, 64, AMPLE]),
    laws=st.builds(Laws, SLOW, SLOW, SLOW),
    horizon_s=st.floats(0.2, 8.0),
)
def test_copies_and_writes_are_those_of_the_restatement(
    seed: int, page: int, count: int, host: int, laws: Laws, horizon_s: float
) -> None:
    """Every copy, every batch written, every refusal, and what storage holds, up to any time."""
    shape = random_trace(seed, SHAPE)
    # Somebody comes long after the horizon: a run that has served all leaves undone what has not been written.
    last = np.flatnonzero(shape.previous < 0)[-1]
    trace = compiled(shape._replace(arrival_s=np.where(np.arange(len(shape.arrival_s)) == last, 1e5, shape.arrival_s)))
    prefill, decode = workers(page=page, host=host, laws=laws, policy="write_back")
    arrays, front, back = run(fleet(prefill, decode, (1, count)), trace, seed, horizon_s)
    expected = restated(decode, laws, trace, finished(back), horizon_s)
    assert {r for r, write_back in enumerate(arrays.output_write_back) if write_back.end > 0} == set(expected.copied_s)
    for r, at in expected.copied_s.items():
        assert arrays.output_write_back[r].copied_s == pytest.approx(at, abs=1e-12)
    written = {r: int(arrays.output_write_back[r].begin) for r in expected.copied_s} | {
        r: end for _, r, _, end in expected.written
    }
    assert {r: int(arrays.output_write_back[r].written) for r in expected.copied_s} == written
    held = set().union(*(pages_on_path(front, r, begin, end) for _, r, begin, end in expected.written))
    assert store_invariants.pages_of(front, int(front.store_tiers[0].first)) == held
    for w, worker in enumerate(expected.workers):
        pool = back.trees[count + w]
        assert (pool.free_pages, pool.peak_pages) == (worker.free_pages, worker.peak_pages)
        mine = [r for r in expected.copied_s if back.requests[r].worker == w]
        assert pool.stored_tokens == sum(
            int(arrays.output_write_back[r].end - arrays.output_write_back[r].begin) for r in mine
        )
        assert pool.read_tokens == sum(written[r] - int(arrays.output_write_back[r].begin) for r in mine)
        refused = [r for r in expected.refused if back.requests[r].worker == w]
        assert (pool.evicted_tokens > 0) == bool(refused)


@examples(20)
@given(seed=st.integers(0, 10**6), page=st.sampled_from([1, 4]), tight=st.booleans())
def test_next_turns_find_as_much_as_at_a_worker_that_does_both(seed: int, page: int, tight: bool) -> None:
    """With instant copies and ample memory, a lone request hits prompts and outputs of all before (L7)."""
    shape = TraceShape(requests=25, rate_rps=0.01, output_tokens=40, follow_up=0.8, same_time=0.0)
    arrays = random_trace(seed, shape)
    # First turns come an hour after each other, and turns wait for a minute: forks of one turn for one more each.
    think_s = 60.0 + 60.0 * np.arange(len(arrays.think_s))
    trace = compiled(arrays._replace(arrival_s=3600.0 * np.arange(len(think_s)), think_s=think_s))
    longest = int((arrays.input_tokens + arrays.max_output_tokens).max())
    hbm_tokens = longest // page * page + 128 if tight else AMPLE
    # With overlap a unified worker keeps the newest token's KV too, which one more step than needed has made.
    prefill, decode = workers(page=page, prompts_hbm=hbm_tokens, overlap=False)
    disaggregated = simulate_fleet(fleet(prefill, decode), trace)
    together = simulate(prefill, trace)
    for result in (disaggregated, together):
        assert (result.requests.outcome == Outcome.FINISHED).all()
    hits = [
        r.hit_tokens + r.host_hit_tokens + r.storage_hit_tokens for r in (disaggregated.requests, together.requests)
    ]  # fmt: skip
    np.testing.assert_array_equal(hits[0], hits[1])
    without = simulate_fleet(fleet(prefill, replace(decode, tiers=(), movement=None)), trace).requests
    assert hits[0].sum() >= (without.hit_tokens + without.host_hit_tokens + without.storage_hit_tokens).sum()


@examples(15)
@given(seed=st.integers(0, 10**6), hbm=st.sampled_from([400, AMPLE]), laws=st.builds(Laws, SLOW, SLOW, SLOW))
def test_without_host_memory_for_a_page_nothing_changes(seed: int, hbm: int, laws: Laws) -> None:
    """Byte for byte: what is not copied is not held either."""
    trace = compiled(random_trace(seed, SHAPE))
    prefill, decode = workers(hbm=hbm, host=0, laws=laws)
    plain = replace(decode, tiers=(), movement=None)
    result = simulate_fleet(fleet(prefill, decode, (1, 2)), trace, seed=seed)
    expected = simulate_fleet(fleet(prefill, plain, (1, 2)), trace, seed=seed)
    for name in ("first_token_s", "finish_s", "hit_tokens", "storage_hit_tokens", "preemptions"):
        np.testing.assert_array_equal(getattr(result.requests, name), getattr(expected.requests, name))


@example(seed=51468, hbm=AMPLE, host=40, laws=Laws(), down_s=0.19760052558082508)
@examples(25)
@given(
    seed=st.integers(0, 10**6),
    hbm=st.sampled_from([300, AMPLE]),
    host=st.sampled_from([40, AMPLE]),
    laws=st.builds(Laws, SLOW, SLOW, SLOW),
    down_s=st.floats(0.0, 3.0),
)
def test_nothing_is_lost_or_held_twice_when_decode_workers_die(
    seed: int, hbm: int, host: int, laws: Laws, down_s: float
) -> None:
    """L1, L3: HBM and host memory of live workers is free, or held by copies in transit; dead ones send nothing."""
    trace = compiled(random_trace(seed, SHAPE))
    prefill, decode = workers(hbm=hbm, host=host, laws=laws)
    deployment = replace(
        fleet(prefill, decode, (1, 2), spare=1),
        incidents=(Incident(down_s, 1, 0, "down"), Incident(down_s + 0.5, 1, 2, "up")),
    )
    arrays, front, back = run(deployment, trace, seed)
    assert set(back.requests["outcome"].tolist()) | set(front.requests["outcome"].tolist()) <= {
        la.FINISHED,
        la.UNREACHED,
        la.TOO_LARGE,
    }
    records = store_invariants.runs_of(front, int(front.store_tiers[0].first))
    store_invariants.check_store(front, int(front.store_tiers[0].first), records)
    for w in range(int(back.config.workers)):
        copying, writing = (_line(arrays, back, hl.SERVERS * w + kind) for kind in (0, 1))
        pool, cache_id = back.trees[int(back.config.workers) + w], back.trees[w]
        if arrays.members[1 + w].died:
            assert not copying + writing
            assert pool.free_pages == pool.capacity_pages
            continue
        held = sum(int(arrays.output_write_back[r].end - arrays.output_write_back[r].begin) for r in copying + writing)
        assert pool.free_pages + held == pool.capacity_pages
        assert (
            cache_id.free_pages + sum(int(arrays.output_write_back[r].held_pages) for r in copying)
            == cache_id.capacity_pages
        )
        assert pool.stored_tokens == pool.read_tokens + sum(
            int(arrays.output_write_back[r].end - arrays.output_write_back[r].written) for r in copying + writing
        )


def _line(arrays: object, sim: la.Sim, k: int) -> list[int]:
    requests = []
    r = int(sim.servers[k].head)
    while r >= 0:
        requests.append(r)
        r = int(arrays.output_write_back[r].next)  # type: ignore[attr-defined]
    return requests


def _turns(*rows: tuple[float, int, int]) -> CompiledTrace:
    """Prompts of nothing in common: (arrival, prompt tokens, output tokens)."""
    arrival_s, input_tokens, output_tokens = zip(*rows, strict=True)
    trace = make_trace(arrival_s=arrival_s, input_tokens=input_tokens, output_tokens=output_tokens)
    return compile_trace(trace, "rows")


def test_hbm_is_held_until_the_copy_is_done() -> None:
    """HBM of the prompt is free when a request has finished, that of its output when host memory has it."""
    laws = Laws(host=TransferLaw(0.5, 0.25))
    prefill, decode = workers(hbm=120, laws=laws)
    trace = _turns((0.0, 60, 11), (0.1, 110, 3))
    arrays, _, back = run(fleet(prefill, decode, reserved=1), trace)
    costs = prefill.costs.seconds
    done = step_seconds(costs, [(60, 0)], []) + sum(decode_step_seconds(costs, 1, 60 + k) for k in range(1, 11))
    assert back.requests[0].finish_s == pytest.approx(done)
    assert arrays.output_write_back[0].copied_s == pytest.approx(done + 0.5 + 10 * 0.25)
    # Its prompt is computed once it fits next to the token that is kept: 110 free tokens are not enough.
    first = arrays.output_write_back[0].copied_s + step_seconds(costs, [(110, 0)], [])
    assert back.requests[1].first_token_s == pytest.approx(first)


def test_tables_show_the_bytes() -> None:
    """Of the host pool what came and went on, of links what they carried; the storage's are the prefill pool's."""
    prefill, decode = workers(overlap=False)
    trace = _turns((0.0, 60, 11), (50.0, 70, 31), (100.0, 80, 1))
    result = simulate_fleet(fleet(prefill, decode), trace)
    host = next(use for use in result.stores if (use.pool, use.tier) == (1, 1))
    assert (host.stored_tokens, host.read_tokens, host.evicted_tokens) == (40, 40, 0)
    written = {(use.tier, use.path): use.tokens for use in result.links if use.pool == 1 and use.write}
    assert written == {(1, "medium"): 40, (2, "network"): 40}
    storage = next(use for use in result.stores if (use.pool, use.tier) == (0, 2))
    prompts = next(use.tokens for use in result.links if (use.pool, use.path, use.write) == (0, "network", True))
    assert storage.stored_tokens == prompts + 40
    assert [tier.kind for tier in result.pools[1].tier_energy] == ["dram", "dram"]


def test_storage_that_is_not_there_is_refused() -> None:
    prefill, decode = workers()
    alone = replace(prefill, tiers=prefill.tiers[:1])
    with pytest.raises(ValueError, match="not one prefill pool with storage of scope cluster"):
        simulate_fleet(fleet(alone, decode), _turns((0.0, 60, 11)))
    assert decode.movement is not None
    offline = replace(decode, movement=replace(decode.movement, network_write=None))
    with pytest.raises(ValueError, match="no network leads to the storage of pool prefill"):
        simulate_fleet(fleet(prefill, offline), _turns((0.0, 60, 11)))
