"""What adapters add to steps: against a measurement, by hand, and what they take from the KV pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hisearch.latency.step_cost import decode_step_seconds
from hisearch.simulate import plan_worker, simulate
from hisearch.simulate.arrays.lora import AdaptersDoNotFit
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.plans.fleet import FleetPlan, PoolPlan
from hisearch.simulate.plans.lora import KERNEL_S, slot_bytes
from hisearch.simulate.plans.plan import WorkerPlan
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import HostSpec
from hisearch.traces.adapters import RequestAdapters
from hisearch.traces.compiled import CompiledTrace
from tests.kernels.systems import compiled
from tests.reference.random_traces import TraceShape, random_trace
from tests.simulate.logged import assert_first_visible, slow_token_times

CATALOGUE = Catalogue()
LLAMA = CATALOGUE.get("Model", "llama-3.1-8b").spec
#: Llama-2-7B.
LLAMA_2 = LLAMA.model_copy(update={"kv_heads": 32, "intermediate_size": 11008, "vocab_size": 32000})


def plan(
    engine: str = "vllm", model: Any = LLAMA, accelerator: str = "h100-sxm", host: HostSpec | None = None, **lora: Any
) -> WorkerPlan:
    """Of a worker; with adapters if anything is said of them."""
    spec = CATALOGUE.get("Accelerator", accelerator).spec
    section = {"lora": lora} if lora else {}
    pool = PoolSpec.model_validate({"accelerator": accelerator, "engine": {"name": engine}} | section)
    return plan_worker(
        pool,
        model=model,
        accelerator=spec,
        host=host or CATALOGUE.get("Host", spec.host).spec,
        media={name: CATALOGUE.get("Medium", name).spec for name in CATALOGUE.names("Medium")},
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
    )


def test_a_slot_by_hand_and_the_memory_that_it_takes() -> None:
    # Inputs and outputs of q, o, k, v, gate, up and down of a layer, for each unit of rank, in bf16.
    per_rank = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    pool = PoolSpec.model_validate({"accelerator": "h100-sxm", "engine": {"name": "vllm"}, "lora": {"max_loras": 8}})
    assert slot_bytes(pool, LLAMA) == 32 * 16 * per_rank * 2
    plain, serving = plan(), plan(max_loras=8, rank=16)
    taken = plain.kv_capacity_tokens - serving.kv_capacity_tokens
    assert taken == pytest.approx(8 * slot_bytes(pool, LLAMA) / plain.memory.kv_bytes_per_token_per_rank, abs=17)


def test_vllm_makes_slots_for_the_next_rank_that_it_accepts() -> None:
    odd, even = plan(max_loras=2, rank=24).lora, plan(max_loras=2, rank=32).lora
    assert odd is not None
    assert even is not None
    assert (odd.slot_bytes, odd.adapter_s) == (even.slot_bytes, even.adapter_s)
    assert odd.load_s < even.load_s


def test_sglang_has_the_kernels_in_every_step_and_vllm_in_those_with_adapters() -> None:
    for engine, base_s in (("vllm", 0.0), ("sglang", 2 * 4 * 32 * KERNEL_S)):
        lora = plan(engine, max_loras=4).lora
        assert lora is not None
        assert (lora.base_s, lora.step_s) == (base_s, 2 * 4 * 32 * KERNEL_S)


def test_the_law_against_a_measured_run() -> None:
    """vllm-project/vllm#10062: 96 prompts of ShareGPT, Llama-2-7B, A100-40GB: 28 s; 35 s with an adapter of rank 64.

    25 % more. A decode step of 48 requests takes 9 % more by the law: of a release of 2024 it sees two fifths. It is
    stated, not fitted; this keeps the statement of ``docs/limits.md`` true.
    """
    serving = plan(model=LLAMA_2, accelerator="a100-40gb", max_loras=1, rank=64)
    lora = serving.lora
    assert lora is not None
    requests, context = 48, 400
    plain_s = decode_step_seconds(serving.costs.seconds, requests, requests * context)
    added_s = lora.step_s + lora.adapter_s + requests * lora.token_s
    assert added_s / plain_s == pytest.approx(0.09, abs=0.01)


def asking(ranks: list[int]) -> CompiledTrace:
    """A trace with a request for an adapter of each rank."""
    numbers = np.arange(len(ranks), dtype=np.int32)
    names = tuple(f"a{number}" for number in numbers)
    adapters = RequestAdapters(names, np.array(ranks, np.int32), numbers)
    trace = compiled(random_trace(1, TraceShape(requests=len(ranks), follow_up=0.0)))
    return replace(trace, adapters=adapters)


def test_adapters_that_a_server_would_not_load_are_refused() -> None:
    with pytest.raises(AdaptersDoNotFit, match=r"adapter a1 of the workload has rank 64; lora.rank is 16"):
        simulate(plan(max_loras=2, rank=16), asking([8, 64]))
    loading = plan("sglang", max_loras=2, overlap_loading=True)
    with pytest.raises(AdaptersDoNotFit, match=r"has 5 adapters; with .* SGLang holds at most 4"):
        simulate(loading, asking([16] * 5))
    for served in (loading, plan("sglang", max_loras=1)):
        assert simulate(served, asking([16] * 4)).requests.finished.all()


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_visible_tokens_of_requests_that_think_come_as_late_as_adapters_make_them(engine: str) -> None:
    """Within fast-forwards too, whose steps adapters lengthen."""
    trace = compiled(random_trace(3, TraceShape(requests=12, output_tokens=300, follow_up=0.0, slack=1.0)))
    thinking = trace.arrays.output_tokens // 2
    arrays = trace.arrays._replace(thinking_tokens=thinking.astype(trace.arrays.thinking_tokens.dtype))
    adapters = RequestAdapters(("a",), np.array([64], np.int32), np.zeros(12, np.int32))
    trace = replace(trace, arrays=arrays, adapters=adapters)
    result = simulate(plan(engine, max_loras=2, rank=64), trace, log=True)
    assert result.requests.first_visible_s is not None
    assert_first_visible(result, dict(enumerate(slow_token_times(result))), atol=1e-9)


def test_pools_without_adapters_beside_others_are_refused_and_hits_do_not_depend_on_their_order() -> None:
    serving, plain = PoolPlan(plan(max_loras=2, rank=16), name="a"), PoolPlan(plan(), name="b")
    trace = asking([16, 16])
    for pools in ((serving, plain), (plain, serving)):
        with pytest.raises(AdaptersDoNotFit, match="pool b serves no adapters, and requests for its model ask for 2"):
            simulate_fleet(FleetPlan(pools), trace)
    assert simulate_fleet(FleetPlan((plain, plain)), trace).requests.finished.all()


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="no KV is left"):
        plan(max_loras=400, rank=256)
    host = CATALOGUE.get("Host", CATALOGUE.get("Accelerator", "h100-sxm").spec.host).spec
    diskless = host.model_copy(update={"nvme": None})
    with pytest.raises(ValueError, match="name a host with nvme"):
        plan(host=diskless, max_loras=2)
    experts = CATALOGUE.get("Model", "qwen3-30b-a3b").spec
    with pytest.raises(ValueError, match="adapters of experts are not simulated"):
        plan(model=experts, max_loras=2)
