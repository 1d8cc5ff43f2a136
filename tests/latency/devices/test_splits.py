"""Devices under splits beyond tensor parallelism: against other splits put together, event by event, and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from devices_catalogue import A6000, CXL, NPU_DEVICE, ROOFLINE, worker
from event_simulation import makespan_s
from hypothesis import given, settings
from hypothesis import strategies as st
from latency_catalogue import H100, LLAMA_8B, QWEN3_30B_A3B

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.memory import devices_memory
from hisearch.latency.devices.work import Load
from hisearch.latency.devices.worker import DeviceWorker
from hisearch.latency.estimators.devices import DevicesEstimator
from hisearch.latency.parameters import weight_bytes_per_rank
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import simulate
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import compiled, plan, vllm_config
from tests.reference.cluster import tree_path
from tests.reference.pipeline import PipelineRequest
from tests.reference.pipeline import serve as serve_stages
from tests.reference.random_traces import TraceShape, random_trace
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Request
from tests.reference.restatement.vllm_lockstep import Batch, serve

ON_PIM = {"attached": ["pim"], "operators": {"decode_attention": "pim"}}
FFN_ON_NPU = {"attached": ["pim", "npu"], "operators": {"decode_attention": "pim", "ffn": "npu"}}
ENGINE = EngineSpec(
    name="vllm", max_running_requests=8, chunk_tokens=512, page_tokens=16, prefix_caching=False, watermark=0.0
)
SHAPE = TraceShape(
    requests=24, rate_rps=1e9, prompt_tokens=300, output_tokens=40, follow_up=0.0, repeat=0.0, shared_prefixes=0,
    slack=1.0,
)  # fmt: skip


def law(block, split: Parallelism, model=LLAMA_8B, accelerator=A6000) -> DeviceWorker:
    return compose(worker(**block), model, accelerator, ROOFLINE, split, None, "bf16")


def costs_of(block, split: Parallelism, model=LLAMA_8B) -> CompiledCosts:
    priced = PricedWorker(model, A6000, split, None, "bf16", ENGINE, 2048, 64, 100_000)
    return DevicesEstimator("test", ROOFLINE, worker(**block)).compile(priced)


def load_of(tokens: float, prompt: float = 0, before: float = 0, sequences: float = 0, context: float = 0) -> Load:
    return Load(*(np.array([float(value)]) for value in (tokens, prompt, before, sequences, context)))


def parts(worker_law: DeviceWorker, load: Load) -> tuple[float, float]:
    """Seconds of a step without collectives: up to the last projection, and from there on (FFN and its transfers)."""
    stages = [stage for stage in worker_law.stages(load) if stage.operator != "collectives"]
    last = max(index for index, stage in enumerate(stages) if stage.operator == "projections")
    seconds = [worker_law.model.layers * float(stage.seconds[0]) for stage in stages]
    return sum(seconds[: last + 1]), sum(seconds[last + 1 :])


@pytest.mark.parametrize("block", [ON_PIM, FFN_ON_NPU], ids=["attention in PIM", "and FFN on an NPU"])
@given(ours=st.integers(1, 300), theirs=st.integers(0, 300), context=st.integers(50, 4000))
@settings(deadline=None, max_examples=30)
def test_two_attention_groups_are_two_workers_and_an_ffn_over_both(block, ours, theirs, context):
    """Attention of each is that of an accelerator alone; the FFN is that of two in tensor parallelism on all tokens."""
    two = law(block, Parallelism(attention_data=2))
    single, wide = law(block, Parallelism()), law(block, Parallelism(tensor=2))
    loads = [load_of(n, sequences=n, context=n * context) for n in (ours, theirs) if n]
    attention_s = max(parts(single, load)[0] for load in loads)
    both = parts(wide, load_of(ours + theirs))[1]
    mean = np.array([(ours + theirs) / 2.0])
    exchanged = two.model.layers * float(two.collectives.shared_layer(mean)[0])
    step_s = max(
        float(two.step(load)[0] - two.shared_s(load.tokens)[0] - two.collectives.embedding(load.tokens)[0])
        for load in loads
    ) + float(two.shared_s(mean)[0])
    assert step_s == pytest.approx(attention_s + both + exchanged, rel=1e-9)


def trace_requests(arrays) -> list[Request]:
    return [
        Request(
            k, float(arrays.arrival_s[k]), int(arrays.input_tokens[k]), int(arrays.output_tokens[k]),
            int(arrays.output_tokens[k]), PathContent(k, tree_path(arrays, int(arrays.output_node[k]))),
        )
        for k in range(len(arrays.arrival_s))
    ]  # fmt: skip


@pytest.mark.parametrize("block", [ON_PIM, FFN_ON_NPU], ids=["attention in PIM", "and FFN on an NPU"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_simulated_groups_are_near_the_slow_restatement(block, seed):
    """Unlike groups through the kernels, by tables, against the engines step by step, by the law put together."""
    split = Parallelism(attention_data=2)
    two, single, wide = law(block, split), law(block, Parallelism()), law(block, Parallelism(tensor=2))
    costs = costs_of(block, split)
    host_s, each_s = costs.seconds.host_s, costs.seconds.host_per_sequence_s
    cached: dict[int, float] = {}

    def together(tokens: int) -> float:
        if tokens not in cached:
            mean = np.array([tokens / 2.0])
            exchanged = two.model.layers * float(two.collectives.shared_layer(mean)[0])
            cached[tokens] = parts(wide, load_of(tokens))[1] + exchanged
        return cached[tokens]

    def attended(new: int, before: int) -> float:
        return parts(single, load_of(new, new, before))[0] - parts(single, load_of(new))[0]

    def alone(batch: Batch) -> float:
        chunks, decodes, sampling = batch
        n, prompt = len(decodes), sum(new for new, _ in chunks)
        # All chunks are one kernel, and move together: what a chunk of one token takes is paid once.
        attention = sum(attended(new, before) - attended(1, 0) for new, before in chunks)
        attention += attended(1, 0) if chunks else 0.0
        attention_s = (
            parts(single, load_of(prompt + n, sequences=n, context=sum(c + 1 for c in decodes)))[0] + attention
        )
        head = float(single.sequence(np.array([float(max(sampling, 1))]))[0]) if sampling else 0.0
        embedding = float(two.collectives.embedding(np.array([float(prompt + n)]))[0])
        return attention_s + head + embedding + host_s + each_s * (len(chunks) + n)

    def cost(batches: Sequence[Batch]) -> float:
        tokens = sum(sum(new for new, _ in chunks) + len(decodes) for chunks, decodes, _ in batches)
        return max(alone(batch) for batch in batches if batch[0] or batch[1]) + together(tokens)

    arrays = random_trace(seed, SHAPE)
    served = serve(vllm_config(ENGINE, 65_536), 2, trace_requests(arrays), cost)
    ours = simulate(replace(plan(ENGINE, 65_536, costs=costs), split=split), compiled(arrays)).requests
    for k in range(SHAPE.requests):
        assert ours.finish_s[k] == pytest.approx(served.finish_s[k], rel=0.03)


@pytest.mark.parametrize("schedule", ["serial", "interleaved"])
def test_a_pipeline_with_devices_is_near_an_engine_with_one_queue(schedule):
    """The mean time of requests, with device stages attached to each accelerator; the reference forms other batches."""
    block, split = {**ON_PIM, "schedule": schedule}, Parallelism(pipeline=3)
    costs, arrays = costs_of(block, split), random_trace(3, replace(SHAPE, rate_rps=8.0))
    requests = [
        PipelineRequest(float(at), int(prompt), int(output))
        for at, prompt, output in zip(arrays.arrival_s, arrays.input_tokens, arrays.output_tokens, strict=True)
    ]
    served = serve_stages(
        requests, 3, ENGINE.chunk_tokens, ENGINE.max_running_requests,
        lambda chunks, decodes, sampling: step_seconds(costs.seconds, chunks, decodes, sampling),
    )  # fmt: skip
    ours = simulate(replace(plan(ENGINE, 65_536, costs=costs), split=split), compiled(arrays)).requests
    theirs = np.array([request.finish_s for request in served]) - arrays.arrival_s
    assert ours.e2e_s.mean() == pytest.approx(theirs.mean(), rel=0.1)


@given(st.integers(2, 400), st.integers(50, 3000), st.sampled_from([2, 4, 8]))
@settings(deadline=None, max_examples=30)
def test_halves_pass_the_stages_of_a_pipeline_one_after_the_other(n, context, stages):
    """Event by event: two halves through the layers of a stage, both of them before the next stage begins."""
    split = Parallelism(pipeline=stages)
    on_pim = {"attached": ["self_pim"], "operators": {"decode_attention": "self_pim"}}
    halves = law({**on_pim, "schedule": "interleaved"}, split)
    load = load_of(n, sequences=n, context=n * context)
    layers = [(stage.station, float(stage.seconds[0])) for stage in halves.stages(load.part(2.0))]
    visits: list[tuple[str, float]] = []
    for station, seconds in layers * (LLAMA_8B.layers // stages):
        if visits and visits[-1][0] == station:
            visits[-1] = (station, visits[-1][1] + seconds)
        else:
            visits.append((station, seconds))
    exact = stages * makespan_s(visits, [1.0, 1.0])
    step_s = float(halves.step(load)[0] - halves.collectives.embedding(load.tokens)[0])
    # A visit that goes on over the end of a layer is worth a round of each stage at most (``flow``).
    accelerator_s = sum(seconds for station, seconds in layers if station == "accelerator")
    assert step_s == pytest.approx(exact, abs=2 * stages * accelerator_s)


@pytest.mark.parametrize("model", [LLAMA_8B, QWEN3_30B_A3B], ids=["dense", "experts"])
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize(
    "block",
    [
        {"attached": ["cxl"], "streamed": [{"device": "cxl", "layers": 8}]},
        {"attached": ["cpu"], "operators": {"ffn": "cpu", "experts": "cpu", "lm_head": "cpu"}},
    ],
    ids=["streamed", "FFN on the CPU"],
)
def test_a_rank_of_a_pipeline_holds_its_stage_elsewhere(model, stages, block):
    """L3: what lies elsewhere is a part of the rank's weights, and stages divide it evenly."""
    split = Parallelism(pipeline=stages)
    there = devices_memory(worker(**block), model, H100, ROOFLINE, split, None, "bf16").weights_bytes
    alone = devices_memory(worker(**block), model, H100, ROOFLINE, Parallelism(), None, "bf16").weights_bytes
    assert 0 <= there < weight_bytes_per_rank(model, split, "bf16")
    if "streamed" in block:
        layer = alone / 6  # eight lie elsewhere, two of them pass
        assert there == pytest.approx(layer * (8 / stages - min(2, 8 / stages)), abs=1.0)
        return
    assert there == pytest.approx(alone / stages)


def npu_links(worker_law: DeviceWorker) -> set[str]:
    """Both directions to the NPU, through the accelerator's slot where PIM is behind it too."""
    return {worker_law.link_station(*ends) for ends in (("accelerator", "npu"), ("npu", "accelerator"))}


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_what_goes_to_a_device_of_the_ffn_is_of_all_groups(groups):
    """Every rank's part of a dense FFN sees the tokens of all; its experts see those that chose one of them."""
    link = NPU_DEVICE.link
    dense = law(FFN_ON_NPU, Parallelism(attention_data=groups))
    moved = 10 * groups * 4096 * 2
    one_way = link.latency_s + moved / link.bandwidth_bytes_per_s
    there = [stage for stage in dense.stages(load_of(10)) if stage.station in npu_links(dense)]
    assert [float(stage.seconds[0]) for stage in there] == pytest.approx([one_way, one_way])
    block = {"attached": ["npu"], "operators": {"experts": "npu"}}
    routed = law(block, Parallelism(attention_data=groups, expert=groups), QWEN3_30B_A3B, H100)
    chosen = 1.0 - (1.0 - 1.0 / groups) ** 8
    one_way = link.latency_s + 10 * groups * chosen * 2048 * 2 / link.bandwidth_bytes_per_s
    there = [stage for stage in routed.stages(load_of(10)) if stage.station in npu_links(routed)]
    assert [float(stage.seconds[0]) for stage in there] == pytest.approx([one_way, one_way])


def test_experts_that_are_dealt_out_are_fetched_by_rank():
    """With as many resident a rank, half the experts a rank means half the misses to hold and to fetch."""
    offload = {"offload": {"device": "cxl", "resident": 0, "eviction": "static"}, "routing": {"kind": "balanced"}}
    block = {"attached": ["cxl"], "experts": offload}
    load, fetch_s = load_of(4096, 4096), {}
    for ranks in (1, 2):
        split = Parallelism(tensor=ranks, expert=ranks)
        stages = law(block, split, QWEN3_30B_A3B, H100).stages(load)
        fetch_s[ranks] = sum(float(s.seconds[0]) for s in stages if s.station == "link cxl accelerator")
    fixed = 2 * CXL.link.latency_s
    assert fetch_s[1] - fixed == pytest.approx(2 * (fetch_s[2] - fixed), rel=1e-6)
