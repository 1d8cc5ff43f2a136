"""Prefill and decode workers, with drafted tokens and without: the kernels against the slow restatement of a pair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.base.engine_rules import MODELLED
from hisearch.latency.costs import LockstepCosts
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import law_costs
from hisearch.simulate.engine import EngineStuck, simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan, TransferPlan
from hisearch.simulate.plans.speculation_plan import SpeculationPlan
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import compiled, compiled_costs, draft_costs, examples, plan, vllm_config
from tests.reference.cluster import requests_of
from tests.reference.random_traces import TraceShape, random_trace
from tests.reference.restatement import disaggregated as slow
from tests.reference.restatement.vllm import StuckError
from tests.reference.restatement.vllm_drafts import DraftsConfig
from tests.simulate.logged import assert_first_visible

#: Without attention a batch costs the same whatever of it is prompt, decode or draft.
LAW = law_costs(0.005, 2e-5, 0.0)
#: Seconds of a transfer and of a token, irrational: so that no arrival falls on the end of a step but for rounding.
BASE_S, PACES = np.pi / 1500, (0.0, np.pi * 3.3e-6, np.pi * 1.3e-4)
SHAPE = TraceShape(requests=25, rate_rps=60.0, prompt_tokens=60, output_tokens=30, follow_up=0.0)


def _cost(chunks: Any, decodes: Any, _sampling: int, drafted: int = 0) -> float:
    return 0.005 + 2e-5 * (sum(new for new, _ in chunks) + len(decodes) + drafted)


def _of_prefill(engine: EngineSpec) -> EngineSpec:
    """vLLM's, whatever the decode worker's engine: SGLang's own prefill is held elsewhere."""
    return engine if engine.name == "vllm" else engine.model_copy(update={"name": "vllm", "page_tokens": 8})


def _workers(engine: EngineSpec, tokens: int, drafts: SpeculationPlan | None, places: dict[Any, int]) -> list[Any]:
    """The prefill and the decode worker of the reference."""
    sglang = engine.name == "sglang"
    config = vllm_config(_of_prefill(engine), tokens)
    budget = engine.max_running_requests * (1 + (drafts.draft_tokens if drafts is not None and sglang else 0))
    of_decode = replace(
        vllm_config(engine, tokens), max_tokens=max(config.max_tokens, budget), prefix=config.prefix and not sglang,
        rules=config.rules,
    )  # fmt: skip
    if drafts is None:
        return [slow.Prefill(config, _cost), (slow.SglangDecode if sglang else slow.Decode)(of_decode, _cost)]
    settings: dict[str, Any] = {
        "draft_tokens": drafts.draft_tokens, "accepted": drafts.accepted, "max_model_len": tokens,
        "drafter_has_kv": drafts.reads_next_token,
    }  # fmt: skip
    prefill = slow.DraftsPrefill(DraftsConfig(**vars(config), **settings), _cost, places)
    kind = slow.SglangDraftsDecode if sglang else slow.DraftsDecode
    return [prefill, kind(DraftsConfig(**vars(of_decode), **settings), _cost, places)]


@examples(600)
@given(
    seed=st.integers(0, 10_000), pages=st.integers(30, 90), overlap=st.booleans(), running=st.integers(2, 10),
    chunk=st.sampled_from([16, 64, 256]), count=st.integers(0, 3), headed=st.booleans(), forward=st.booleans(),
    release=st.sampled_from(MODELLED["vllm"]), pace=st.sampled_from(PACES), caching=st.booleans(),
    watermark=st.sampled_from([0.0, 0.05]),
)  # fmt: skip
def test_vllms_pairs_equal_the_slow_restatement(
    seed: int, pages: int, overlap: bool, running: int, chunk: int, count: int, headed: bool, forward: bool,
    release: str, pace: float, caching: bool, watermark: float,
) -> None:  # fmt: skip
    engine = EngineSpec(
        name="vllm", version=release, max_running_requests=running, chunk_tokens=chunk, page_tokens=8,
        overlap=overlap, watermark=watermark if release != "0.19.1" else 0.0, prefix_caching=caching,
    )  # fmt: skip
    transfer = TransferPlan(
        base_s=BASE_S, bytes_per_token=1.0, bytes_per_s=1.0 / pace if pace else np.inf, forward_s=5 * BASE_S * forward
    )
    _compare(engine, 8 * pages, _drafts(count, headed), transfer, seed, pace)


def _drafts(count: int, headed: bool) -> SpeculationPlan | None:
    if count == 0:
        return None
    accepted = tuple(0.7 ** (place + 1) for place in range(count))
    return SpeculationPlan(count, count if headed else 0, headed, accepted)


def _compare(
    engine: EngineSpec, tokens: int, drafts: SpeculationPlan | None, transfer: TransferPlan, seed: int, pace: float
) -> None:
    arrays = random_trace(seed, SHAPE)
    requests = requests_of(arrays)
    workers = _workers(engine, tokens, drafts, {request.id: request.id for request in requests})
    if isinstance(workers[1], slow.SglangDecodeMixin):
        workers[1].reserved_tokens = transfer.reserved_tokens
    link = slow.Link(transfer.base_s, pace)
    pair = slow.Pair(
        *workers, [request for request in requests if workers[1].rejection(request) is None], link,
        reserve_first=transfer.reserve_first, forward_s=transfer.forward_s,
    )  # fmt: skip
    costs = compiled_costs(LAW)
    of_prefill, of_decode = (
        replace(plan(spec, tokens, costs=costs), speculation=drafts, max_request_tokens=tokens)
        for spec in (_of_prefill(engine), engine)
    )
    pools = (PoolPlan(of_prefill, 1, "prefill", "prefill"), PoolPlan(of_decode, 1, "decode", "decode"))
    fleet = FleetPlan(pools, transfer=transfer)
    try:
        pair.run()
    except StuckError:
        with pytest.raises(EngineStuck):
            simulate_fleet(fleet, compiled(arrays))
        return
    prefill, decode = workers
    first_s = {**prefill.first_token_s, **decode.first_token_s}
    finish_s = {**prefill.finish_s, **decode.finish_s}
    result = simulate_fleet(fleet, compiled(arrays))
    table = result.requests
    served = [r for r in pair.requests if arrays.output_tokens[r] == 1 or r in decode.finish_s]
    assert set(np.flatnonzero(table.finished)) == set(served)
    for r in served:
        what = (r, int(arrays.input_tokens[r]), int(arrays.output_tokens[r]))
        assert table.first_token_s[r] == pytest.approx(first_s[r], abs=1e-9), what
        assert table.finish_s[r] == pytest.approx(finish_s[r], abs=1e-9), what
    assert_first_visible(result, {**prefill.token_s, **decode.token_s}, atol=1e-9)


@examples(400)
@given(
    seed=st.integers(0, 10_000), pages=st.integers(30, 90), overlap=st.booleans(), running=st.integers(2, 10),
    chunk=st.sampled_from([64, 256]), count=st.integers(0, 3), pace=st.sampled_from(PACES),
    reserved=st.sampled_from([0, 8, 40]),
)  # fmt: skip
def test_decode_workers_that_take_memory_first_equal_the_slow_restatement(
    seed: int, pages: int, overlap: bool, running: int, chunk: int, count: int, pace: float, reserved: int
) -> None:
    """SGLang's order between them."""
    engine = EngineSpec(
        name="sglang", max_running_requests=running, chunk_tokens=chunk, page_tokens=1, overlap=overlap,
        prefix_caching=False,
    )  # fmt: skip
    transfer = TransferPlan(
        reserve_first=True, base_s=BASE_S, bytes_per_token=1.0, bytes_per_s=1.0 / pace if pace else np.inf,
        reserved_tokens=reserved,
    )  # fmt: skip
    _compare(engine, 8 * pages, _drafts(count, headed=True), transfer, seed, pace)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("groups", [1, 3])
def test_drafts_that_are_never_accepted_change_no_time_where_tokens_cost_nothing(name: Any, groups: int) -> None:
    """Attention groups of decode workers too: every step makes one token of a request, as without drafts."""
    page = {"vllm": 8, "sglang": 1, "trtllm": 8}[name]
    engine = EngineSpec(name=name, max_running_requests=64, page_tokens=page, prefix_caching=False)
    law = law_costs(0.005, 0.0, 0.0)
    costs = replace(compiled_costs(law), lockstep=LockstepCosts(law.token_s, np.zeros(2), ()))
    arrays = random_trace(7, replace(SHAPE, requests=60))
    transfer = TransferPlan(reserve_first=name == "sglang", base_s=BASE_S, bytes_per_token=1.0, bytes_per_s=1e5)
    tables = []
    for drafts in (None, SpeculationPlan(2, 2, True, (0.0, 0.0))):
        worker = replace(
            plan(engine, 1 << 16, costs=costs), split=Parallelism(1, attention_data=groups), speculation=drafts,
            max_request_tokens=1 << 16,
        )  # fmt: skip
        pools = (PoolPlan(worker, 1, "prefill", "prefill"), PoolPlan(worker, 2, "decode", "decode"))
        tables.append(simulate_fleet(FleetPlan(pools, transfer=transfer), compiled(arrays)).requests)
    plain, drafted = tables
    assert plain.finished.all()
    np.testing.assert_allclose(drafted.first_token_s, plain.first_token_s, atol=1e-9)
    np.testing.assert_allclose(drafted.finish_s, plain.finish_s, atol=1e-9)


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_prefill_workers_with_tiers_draft_for_the_price_alone(name: Any) -> None:
    """Their steps cost a head's share more; hits in host memory are those without drafts."""
    engine = EngineSpec(name=name, max_running_requests=8, page_tokens={"vllm": 8, "sglang": 1, "trtllm": 8}[name])
    arrays = random_trace(11, replace(SHAPE, requests=120, rate_rps=10.0, repeat=0.5, prompt_tokens=120))
    results = []
    for drafts in (None, SpeculationPlan(1, 1, True, (0.6,))):
        costs = compiled_costs(LAW._replace(draft=draft_costs(LAW, 1, 0.1) if drafts is not None else None))
        prefill = replace(plan(engine, 320, 1 << 14, costs=costs), speculation=drafts, max_request_tokens=320)
        decode = replace(plan(engine, 1 << 14, costs=costs), speculation=drafts, max_request_tokens=1 << 14)
        pools = (PoolPlan(prefill, 1, "prefill", "prefill"), PoolPlan(decode, 1, "decode", "decode"))
        transfer = TransferPlan(reserve_first=name == "sglang", base_s=BASE_S, bytes_per_token=1.0, bytes_per_s=1e5)
        results.append(simulate_fleet(FleetPlan(pools, transfer=transfer), compiled(arrays)))
    plain, drafted = results
    assert drafted.requests.finished.all()
    assert plain.tier_hit_tokens[1] > 0
    assert drafted.tier_hit_tokens[1] == pytest.approx(plain.tier_hit_tokens[1], rel=0.3)
    busy = [result.workers.busy_s[0] / result.workers.prefill_tokens[0] for result in results]
    assert busy[1] > busy[0]
