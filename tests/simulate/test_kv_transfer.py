"""Prefill/decode disaggregation, against closed forms and laws."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from hisearch.api.deployments.deployment import plan_deployment
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import decode_step_seconds, step_seconds
from hisearch.simulate.engine import EngineOutOfMemory, simulate, simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan, TransferPlan
from hisearch.simulate.plans.tier_plan import TransferLaw
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.documents.resolve import load_deployment
from tests.kernels.systems import compiled, examples, plan
from tests.kernels.test_lockstep_steps import lockstep_plan
from tests.reference.random_traces import TraceShape, random_trace

ENGINES = ("vllm", "sglang", "trtllm")
AMPLE = 1 << 20
#: A link on which transfers take a while at this size: 1,000 bytes a token, 1 MB/s.
LINK = TransferPlan(base_s=0.001, bytes_per_token=1000.0, bytes_per_s=1e6)
INSTANT = TransferPlan(bytes_per_token=1000.0)


def engine(name: str, **settings: object) -> EngineSpec:
    page = {"vllm": 16, "sglang": 1, "trtllm": 32}[name]
    return EngineSpec.model_validate({"name": name, "page_tokens": page, "max_running_requests": 64} | settings)


def fleet(name: str, transfer: TransferPlan, *, prefill: int = 1, decode: int = 1, tokens: int = AMPLE) -> FleetPlan:
    worker = plan(engine(name), tokens)
    pools = (PoolPlan(worker, prefill, "prefill", "prefill"), PoolPlan(worker, decode, "decode", "decode"))
    return FleetPlan(pools, transfer=transfer)


def lone(requests: int = 12) -> TraceShape:
    """Requests so sparse that each is alone, with nothing in common."""
    return TraceShape(requests=requests, rate_rps=0.001, follow_up=0.0, shared_prefixes=0, repeat=0.0, same_time=0.0)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("reserve_first", [False, True])
def test_a_lone_request_takes_prefill_transfer_and_decode(name: str, reserve_first: bool) -> None:
    """Its prompt, its KV on the link, its decodes; under vLLM the last prompt token is computed again."""
    arrays = random_trace(3, lone())
    transfer = replace(LINK, reserve_first=reserve_first, forward_s=0.25)
    result = simulate_fleet(fleet(name, transfer), compiled(arrays))
    costs = plan(engine(name), AMPLE).costs.seconds
    for r, (prompt, output) in enumerate(zip(arrays.input_tokens, arrays.output_tokens, strict=True)):
        arrived = result.requests.arrival_s[r]
        prefill_s = step_seconds(costs, [(int(prompt), 0)], [])
        if output == 1:
            assert result.requests.finish_s[r] == pytest.approx(arrived + prefill_s)
            continue
        handed = arrived + prefill_s + (0.0 if reserve_first else 0.25) + 0.001 + 1e-3 * prompt
        first = handed + (step_seconds(costs, [(1, int(prompt) - 1)], []) if name == "vllm" else 0.0)
        assert result.requests.first_token_s[r] == pytest.approx(first)
        decodes = sum(decode_step_seconds(costs, 1, int(prompt) + k) for k in range(1, int(output)))
        assert result.requests.finish_s[r] == pytest.approx(first + decodes)


@pytest.mark.parametrize(("senders", "receivers"), [(1, 1), (1, 4), (4, 1), (2, 8), (4, 4)])
def test_every_receiving_rank_takes_all_that_it_keeps(senders: int, receivers: int) -> None:
    """A port sends to several ranks one after the other; ports that send to one of theirs do so at once."""
    arrays = random_trace(3, lone())
    worker = plan(engine("trtllm"), AMPLE)
    pools = tuple(
        PoolPlan(replace(worker, split=Parallelism(ranks)), 1, role, role)
        for role, ranks in (("prefill", senders), ("decode", receivers))
    )
    table = simulate_fleet(FleetPlan(pools, transfer=LINK), compiled(arrays)).requests
    moved = arrays.output_tokens > 1
    for r in np.flatnonzero(moved):
        prompt = int(arrays.input_tokens[r])
        handed = table.arrival_s[r] + step_seconds(worker.costs.seconds, [(prompt, 0)], [])
        handed += 0.001 + 1e-3 * prompt * max(receivers / senders, 1)
        assert table.kv_arrived_s is not None
        assert table.kv_arrived_s[r] == pytest.approx(handed)


@pytest.mark.parametrize("name", ["sglang", "trtllm"])
def test_an_instant_link_between_lone_workers_changes_nothing_for_a_lone_request(name: str) -> None:
    trace = compiled(random_trace(5, lone()))
    disaggregated = simulate_fleet(fleet(name, INSTANT), trace).requests
    together = simulate(plan(engine(name), AMPLE), trace).requests
    np.testing.assert_allclose(disaggregated.first_token_s, together.first_token_s)
    np.testing.assert_allclose(disaggregated.finish_s, together.finish_s)


@examples(30)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(ENGINES),
    reserve_first=st.booleans(),
    pipelined=st.booleans(),
    workers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    tokens=st.sampled_from([2000, AMPLE]),
)
def test_every_request_ends_once_and_nothing_moves_faster_than_its_link(
    seed: int, name: str, reserve_first: bool, pipelined: bool, workers: tuple[int, int], tokens: int
) -> None:
    """L1, L2 and L4, whoever waits for whom."""
    arrays = random_trace(seed, TraceShape(requests=40, rate_rps=8.0))
    transfer = replace(
        LINK, reserve_first=reserve_first, pipelined=reserve_first and pipelined, layer_share=0.25, reserved_tokens=8
    )
    deployment = fleet(name, transfer, prefill=workers[0], decode=workers[1], tokens=tokens)
    deployment = replace(deployment, router=RouterSpec(policy="cache_aware"), decode_router=RouterSpec(policy="random"))
    result = simulate_fleet(deployment, compiled(arrays), seed=seed)
    table = result.requests
    assert (table.outcome == Outcome.FINISHED).all()
    assert (table.prefill_worker < workers[0]).all()
    handed = arrays.output_tokens > 1
    assert (table.worker[handed] >= workers[0]).all()
    assert (table.worker[~handed] == table.prefill_worker[~handed]).all()
    assert (table.scheduled_s >= table.arrival_s).all()
    assert (table.first_token_s > table.scheduled_s).all()
    assert (table.finish_s >= table.first_token_s).all()
    assert result.workers.requests[: workers[0]].sum() == 40
    assert result.workers.requests[workers[0] :].sum() == handed.sum()
    # Prompts are computed once, but for hits; vLLM recomputes the last token of the KV that it receives.
    computed = result.workers.prefill_tokens[: workers[0]].sum()
    assert computed == arrays.input_tokens.sum() - table.hit_tokens.sum()
    sent = sum(use.tokens for use in result.kv_transfers[: workers[0]])
    received = sum(use.tokens for use in result.kv_transfers[workers[0] :])
    assert sent == received <= arrays.input_tokens[handed].sum()
    if name != "vllm":
        assert sent == arrays.input_tokens[handed].sum()
    for use in result.kv_transfers:
        assert use.busy_s == pytest.approx(0.001 * use.transfers + 1e-3 * use.tokens)
        assert use.busy_s <= result.makespan_s + 1e-9


@examples(15)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(ENGINES),
    reserve_first=st.booleans(),
    groups=st.integers(2, 4),
    tight=st.booleans(),
)
def test_prompts_made_by_attention_groups_are_all_transferred(
    seed: int, name: str, reserve_first: bool, groups: int, tight: bool
) -> None:
    """Each group gives back the KV of its own requests (L1, L2, L3): with little of it, nothing else lets others in."""
    arrays = random_trace(seed, TraceShape(requests=40, rate_rps=8.0, prompt_tokens=150, output_tokens=40))
    longest = int((arrays.input_tokens + arrays.max_output_tokens).max())
    spec = engine(name, prefix_caching=False)
    prompts = lockstep_plan(spec, longest + 64 if tight else AMPLE, groups, ())
    outputs = lockstep_plan(spec, AMPLE, groups, ())
    pools = (PoolPlan(prompts, 2, "prefill", "prefill"), PoolPlan(outputs, 2, "decode", "decode"))
    deployment = FleetPlan(pools, transfer=replace(LINK, reserve_first=reserve_first, pipelined=reserve_first))
    result = simulate_fleet(deployment, compiled(arrays), seed=seed)
    assert (result.requests.outcome == Outcome.FINISHED).all()
    assert result.workers.prefill_tokens[:2].sum() == arrays.input_tokens.sum()
    sent = sum(use.tokens for use in result.kv_transfers[:2])
    assert sent == sum(use.tokens for use in result.kv_transfers[2:])
    assert sent <= arrays.input_tokens[arrays.output_tokens > 1].sum()


@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.parametrize("reserve_first", [False, True])
@pytest.mark.parametrize("stages", [(2, 1), (1, 3), (4, 2)])
def test_a_lone_request_is_as_fast_through_pipelines(name: str, reserve_first: bool, stages: tuple[int, int]) -> None:
    """A step takes what it takes without stages: only the chunks of its prompt follow each other sooner."""
    spec = engine(name, chunk_tokens=4096)
    trace = compiled(random_trace(3, lone()))
    pools = [
        PoolPlan(replace(plan(spec, AMPLE), split=Parallelism(pipeline=depth)), 1, role, role)  # type: ignore[arg-type]
        for role, depth in zip(("prefill", "decode"), stages, strict=True)
    ]
    # The network of as many accelerators: transfers would else be as much faster.
    transfer = replace(INSTANT, reserve_first=reserve_first, base_s=0.003, forward_s=0.1)
    piped = simulate_fleet(FleetPlan(tuple(pools), transfer=transfer), trace).requests
    plain = simulate_fleet(fleet(name, transfer), trace).requests
    np.testing.assert_allclose(piped.first_token_s, plain.first_token_s)
    np.testing.assert_allclose(piped.finish_s, plain.finish_s)


@examples(20)
@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["vllm", "sglang"]),
    reserve_first=st.booleans(),
    stages=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    tight=st.booleans(),
)
def test_pipelines_transfer_the_kv_that_they_compute(
    seed: int, name: str, reserve_first: bool, stages: tuple[int, int], tight: bool
) -> None:
    """L1, L2 and L3: all micro-batches of a worker share a memory, of which nothing is lost."""
    arrays = random_trace(seed, TraceShape(requests=40, rate_rps=12.0, prompt_tokens=150, output_tokens=40))
    longest = int((arrays.input_tokens + arrays.max_output_tokens).max())
    spec = engine(name, chunk_tokens=128)
    pools = [
        PoolPlan(replace(plan(spec, tokens), split=Parallelism(pipeline=depth)), 2, role, role)  # type: ignore[arg-type]
        for role, depth, tokens in zip(
            ("prefill", "decode"), stages, (longest + 64 if tight else AMPLE, 3 * longest + 64), strict=True
        )
    ]
    transfer = replace(LINK, reserve_first=reserve_first, pipelined=reserve_first, reserved_tokens=8)
    try:
        result = simulate_fleet(FleetPlan(tuple(pools), transfer=transfer), compiled(arrays), seed=seed)
    except EngineOutOfMemory:
        # SGLang's slots reserve memory for their own requests alone, in whatever pool.
        assert name == "sglang"
        assert tight
        reject()
    assert (result.requests.outcome == Outcome.FINISHED).all()
    # Prompts in flight in several micro-batches may take each other's pages. Recomputed tokens count again, and a
    # second attempt may hit more than the first, whose hits are counted.
    computed = result.workers.prefill_tokens[:2].sum()
    missed = arrays.input_tokens.sum() - result.requests.hit_tokens.sum()
    again = arrays.input_tokens[result.requests.preemptions > 0].sum()
    assert computed == missed or (computed >= missed - again and result.workers.preemptions[:2].sum() > 0)
    assert (result.workers.peak_kv_tokens <= result.worker_kv_tokens).all()
    sent = sum(use.tokens for use in result.kv_transfers[:2])
    assert sent == sum(use.tokens for use in result.kv_transfers[2:])


def test_attention_groups_send_over_their_own_ports() -> None:
    """A request's KV lies on the accelerators of its group: they alone send it."""
    arrays = random_trace(3, lone())
    spec = engine("sglang")
    grouped = lockstep_plan(spec, AMPLE, 4, ())
    pools = (PoolPlan(grouped, 1, "prefill", "prefill"), PoolPlan(grouped, 1, "decode", "decode"))
    result = simulate_fleet(FleetPlan(pools, transfer=replace(LINK, reserve_first=True)), compiled(arrays))
    handed = arrays.output_tokens > 1
    for use in result.kv_transfers:
        assert use.tokens == arrays.input_tokens[handed].sum()
        assert 4 * use.busy_s == pytest.approx(0.001 * use.transfers + 1e-3 * use.tokens)


def test_a_prefix_that_the_decode_worker_has_is_not_sent() -> None:
    """Follow-ups repeat what vLLM's decode worker has kept of the turns before."""
    shape = TraceShape(requests=30, follow_up=1.0, fork=0.0, repeat=0.0, shared_prefixes=0, rate_rps=1.0)
    arrays = random_trace(9, shape)
    result = simulate_fleet(fleet("vllm", LINK), compiled(arrays))
    assert sum(use.tokens for use in result.kv_transfers[1:]) < 0.8 * arrays.input_tokens.sum()


def test_short_prompts_stay_on_the_decode_worker() -> None:
    arrays = random_trace(3, TraceShape(requests=30, follow_up=0.0))
    limit = int(np.median(arrays.input_tokens))
    result = simulate_fleet(fleet("vllm", replace(LINK, local_tokens=limit)), compiled(arrays))
    stayed = result.requests.prefill_worker == 1
    assert stayed[arrays.input_tokens < limit].all()
    assert (result.requests.outcome == Outcome.FINISHED).all()
    assert 0 < stayed.sum() < 30


def test_kv_is_held_until_it_has_been_sent() -> None:
    """Prefill workers with little memory wait for a slow link: less is computed at a time."""
    arrays = random_trace(3, TraceShape(requests=30, follow_up=0.0, same_time=1.0, repeat=0.0, shared_prefixes=0))
    tokens = int(arrays.input_tokens.max() + arrays.output_tokens.max()) + 64
    slow = replace(LINK, bytes_per_s=2e5)
    tight = simulate_fleet(fleet("vllm", slow, decode=4, tokens=tokens), compiled(arrays))
    ample = simulate_fleet(fleet("vllm", slow, decode=4), compiled(arrays))
    assert (tight.requests.outcome == Outcome.FINISHED).all()
    assert tight.requests.scheduled_s.max() > 1.5 * ample.requests.scheduled_s.max()


#: Slots over which a token's KV takes as long as over ``LINK``, and half as long.
SLOT, FAST_SLOT = TransferLaw(0.0, 1e-3), TransferLaw(0.0, 5e-4)


def with_copies(name: str, transfer: TransferPlan, slot: TransferLaw) -> FleetPlan:
    """Two workers that compute prompts, and copy their KV to host memory, and two that decode."""
    spec = engine(name, page_tokens=16)
    copying = replace(
        plan(spec, AMPLE, AMPLE, host_read=slot, host_write=slot), slot_bytes_per_s=1e3 / slot.s_per_token
    )
    pools = (PoolPlan(copying, 2, "prefill", "prefill"), PoolPlan(plan(spec, AMPLE), 2, "decode", "decode"))
    return FleetPlan(pools, transfer=transfer)


@pytest.mark.parametrize("name", ["vllm", "sglang"])
@pytest.mark.parametrize("reserve_first", [False, True])
def test_kv_to_decode_workers_and_copies_to_host_memory_take_turns_on_a_slot(name: str, reserve_first: bool) -> None:
    """Nothing moves on a slot twice as fast as the slot does: each direction is occupied by all that it carries."""
    trace = compiled(random_trace(5, TraceShape(requests=60, rate_rps=20.0, prompt_tokens=200, follow_up=0.0)))
    transfer = replace(LINK, reserve_first=reserve_first)
    alone, shared = (
        simulate_fleet(with_copies(name, replace(transfer, over_slots=over), SLOT), trace) for over in (False, True)
    )
    sent = np.array([use.tokens for use in shared.kv_transfers[:2]])
    assert sent.sum() > 0
    copied, busy_s = (
        np.array([getattr(use, field) for use in shared.links if use.write and use.pool == 0 and use.path == "medium"])
        for field in ("tokens", "busy_s")
    )
    assert copied.sum() > 0
    np.testing.assert_allclose(busy_s, (copied + sent) * SLOT.s_per_token, rtol=1e-9)
    firsts = [result.requests.first_token_s for result in (alone, shared)]
    assert (firsts[1] - firsts[0]).sum() > 0.0


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_kv_that_is_alone_on_a_slot_goes_by_its_network(name: str) -> None:
    """Copies of a lone prompt end before its KV has arrived: a network half as fast sets the pace."""
    trace = compiled(random_trace(5, lone()))
    tables = [
        simulate_fleet(with_copies(name, replace(LINK, over_slots=over), FAST_SLOT), trace).requests
        for over in (False, True)
    ]
    np.testing.assert_allclose(tables[1].first_token_s, tables[0].first_token_s, rtol=1e-12)


def test_a_slot_slower_than_its_port_sets_the_pace_without_copies_too() -> None:
    """So that a tier which nothing uses makes no transfer slower."""
    trace, slow = compiled(random_trace(5, lone())), 0.5e6
    worker = replace(plan(engine("vllm"), AMPLE), slot_bytes_per_s=slow)
    pools = (PoolPlan(worker, 1, "prefill", "prefill"), PoolPlan(worker, 1, "decode", "decode"))
    over, halved = (
        simulate_fleet(FleetPlan(pools, transfer=transfer), trace).requests.first_token_s
        for transfer in (replace(LINK, over_slots=True), replace(LINK, bytes_per_s=slow))
    )
    # The fixed part of a transfer is the port's.
    np.testing.assert_allclose(over, halved - LINK.base_s * (trace.arrays.output_tokens > 1), rtol=1e-9)


DISAGGREGATED = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {{name: pair}}
spec:
  model: llama-3.1-8b
  pools:
    - {{name: prefill, role: prefill, accelerator: {}, engine: {{name: vllm}}}}
    - {{name: decode, role: decode, accelerator: {}, engine: {{name: vllm}}}}
  transfer: {{fabric: {}, efficiency: 0.5}}
"""


@pytest.mark.parametrize(
    ("prefill", "decode", "fabric", "bytes_per_s"),
    [
        ("h100-sxm", "h100-sxm", "nvlink4-switch", 450e9),
        ("a100-80gb", "a100-80gb", "nvlink4-switch", 300e9),
        ("h100-sxm", "a100-80gb", "nvlink4-switch", 300e9),
        ("mi300x", "mi300x", "nvlink4-switch", 448e9),
        ("b200", "b200", "nvlink4-switch", 450e9),
        ("b200", "b200", "nvlink5-switch", 900e9),
        ("h100-nvl", "h100-nvl", "nvlink4-switch", 55e9),  # bridges join two alone: else over their slots
        ("a100-80gb", "a100-80gb", "roce-200", 25e9),
    ],
)
def test_kv_goes_no_faster_than_the_accelerators_own_links(
    tmp_path: Path, prefill: str, decode: str, fabric: str, bytes_per_s: float
) -> None:
    path = tmp_path / "pair.yaml"
    path.write_text(DISAGGREGATED.format(prefill, decode, fabric))
    assert plan_deployment(load_deployment(path)).transfer.bytes_per_s == pytest.approx(0.5 * bytes_per_s)
