"""Host work of an engine: what is launched for a model, floors under steps, ranges, versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import DEEPSEEK_V3, GPT_OSS_120B, LLAMA_8B, QWEN3_30B_A3B, QWEN3_235B_FP8

from hisearch.latency.costs import CompiledCosts, FrontEnd, HostFloor, StepCosts
from hisearch.latency.drafting.mean_steps import with_speculation
from hisearch.latency.estimator import build_estimator
from hisearch.latency.host import (
    ANY_TOKENS,
    COMPILED_SEQUENCE_S,
    ENQUEUE_S,
    FLASHINFER_PRODUCT_S,
    KERNEL_COMPILE_S,
    Launches,
    front_end_of,
    kernel_compile_s,
    launches_of,
    with_host_times,
)
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import law_costs, step_seconds
from hisearch.simulate.plans.speculation_plan import SpeculationPlan
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.machines.host import RANGES, HostTimes
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from tests.kernels.systems import LAW, rugged_costs

CATALOGUE = Catalogue(shipped_root())
QWEN35 = CATALOGUE.get("Model", "qwen3.5-397b-a17b").spec
SINGLE = Parallelism()
assert QWEN3_30B_A3B.moe is not None
SPARSE_MIXER = QWEN3_30B_A3B.model_copy(update={"moe": QWEN3_30B_A3B.moe.model_copy(update={"choice_operators": 21})})
TABLES = st.integers(0, 20).map(rugged_costs) | st.just(LAW)
CHUNKS = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 5000)), max_size=4)
DECODES = st.lists(st.integers(1, 5000), max_size=20)


def launches(model: ModelSpec, split: Parallelism = SINGLE, engine: str = "sglang", **changes: Any) -> Launches:
    settings = EngineSpec.model_validate({"name": engine, "cudagraph_mode": changes.get("cudagraph_mode")})
    return launches_of(
        model, split, changes.get("weight_dtype"), settings, changes.get("graph_batches", [1, 8, 512])
    )  # fmt: skip


def compiled(profile: LatencyProfileSpec, version: str = "", *, overlap: bool = True) -> CompiledCosts:
    engine = EngineSpec(name="vllm", version=version, overlap=overlap)
    accelerator = CATALOGUE.get("Accelerator", "h100-sxm").spec
    priced = PricedWorker(LLAMA_8B, accelerator, SINGLE, None, "bf16", engine, 1024, 64, 50_000)
    return build_estimator("mine", profile).compile(priced)


class TestLaunches:
    @pytest.mark.parametrize(
        ("model", "split", "kernels", "operators"),
        [
            # 32 layers of dense attention and a dense FFN.
            (LLAMA_8B, SINGLE, 32 * (6 + 4), 32 * (8 + 4)),
            # An all-reduce behind attention and behind the FFN.
            (LLAMA_8B, Parallelism(2), 32 * (6 + 4 + 2), 32 * (8 + 4 + 2)),
            # 48 layers of routed experts, none shared.
            (QWEN3_30B_A3B, SINGLE, 48 * (6 + 5), 48 * (8 + 18)),
            # Attention groups of one rank gather and scatter, and have nothing to reduce.
            (QWEN3_30B_A3B, Parallelism(1, 4, 4), 48 * (6 + 5 + 2), 48 * (8 + 18 + 2)),
            (QWEN3_30B_A3B, Parallelism(2, 2, 4), 48 * (6 + 5 + 4), 48 * (8 + 18 + 4)),
            # fp8: the two products of attention are quantised for, the experts' passes are in their tables.
            (QWEN3_235B_FP8, SINGLE, 94 * (6 + 2 + 5), 94 * (8 + 2 + 18)),
            # The sparse mixer's 21 operators in place of one.
            (SPARSE_MIXER, SINGLE, 48 * (6 + 5 + 20), 48 * (8 + 18 + 20)),
            # fp4 (MXFP4) is weights alone.
            (GPT_OSS_120B, SINGLE, 36 * (6 + 5), 36 * (8 + 18)),
            # MLA in fp8, 4 products; 3 dense layers, 58 of routed and shared experts; 8 ranks.
            (
                DEEPSEEK_V3,
                Parallelism(8),
                61 * (13 + 4 + 2) + 3 * (4 + 2) + 58 * (5 + 4 + 2),
                61 * (20 + 4 + 2) + 3 * (4 + 2) + 58 * (18 + 4 + 2),
            ),
            # 60 layers of routed and shared experts, 45 of them of linear attention.
            (QWEN35, SINGLE, 45 * 10 + 15 * 6 + 60 * (5 + 4), 45 * 45 + 15 * 8 + 60 * (18 + 4)),
        ],
    )
    def test_counts_are_sums_over_the_parts_of_layers(
        self, model: ModelSpec, split: Parallelism, kernels: int, operators: int
    ) -> None:
        assert launches(model, split) == Launches(kernels, operators, operators, 512)

    def test_the_format_asked_for_counts_and_not_the_checkpoints(self) -> None:
        plain, quantised = launches(LLAMA_8B), launches(LLAMA_8B, weight_dtype="fp8")
        assert quantised.kernels - plain.kernels == quantised.eager - plain.eager == 32 * (2 + 2)
        assert launches(QWEN3_235B_FP8, weight_dtype="bf16").kernels == 94 * (6 + 5)

    def test_vllm_launches_pieces_where_its_graphs_hold_the_rest(self) -> None:
        of = {engine: launches(LLAMA_8B, engine=engine) for engine in ("vllm", "sglang", "trtllm")}
        assert of["vllm"].pieces == 32 * 4
        assert of["sglang"].pieces == of["trtllm"].pieces == of["vllm"].eager == 32 * 12

    def test_a_pass_launches_all_layers_and_is_scheduled_by_every_stage(self) -> None:
        unstaged, staged = launches(LLAMA_8B, engine="vllm"), launches(LLAMA_8B, Parallelism(pipeline=4), engine="vllm")
        assert staged == unstaged._replace(stages=4)

    def test_without_a_largest_graph_decodes_of_any_number_are_in_one(self) -> None:
        assert launches(LLAMA_8B, graph_batches=[]).graph_tokens == ANY_TOKENS
        assert launches(LLAMA_8B, graph_batches=[4]).graph_tokens == 4


class TestSteps:
    """Of a device that takes 100 us a token and 10 ns a token of context."""

    DEVICE = law_costs(0.0, 1e-4, 1e-8)
    TIMES = HostTimes(
        step_s=5e-4, kernel_s=1e-6, per_sequence_s=4e-6, schedule_s=2e-3, schedule_sequence_s=1e-5, launch_s=2e-5
    )
    LAUNCHES = Launches(kernels=300, pieces=100, eager=400, graph_tokens=64)

    def step(self, chunks: list[tuple[int, int]], decodes: list[int], *, overlap: bool) -> tuple[float, float]:
        """Seconds of a step, and of its device's work."""
        costs = with_host_times(self.DEVICE, self.TIMES, self.LAUNCHES, overlap=overlap)
        host_s = 5e-4 + 300 * 1e-6 + 4e-6 * (len(chunks) + len(decodes))
        return step_seconds(costs, chunks, decodes), host_s + step_seconds(self.DEVICE, chunks, decodes)

    @pytest.mark.parametrize("sequences", [1, 10, 20, 60])
    def test_a_decode_step_is_the_longer_of_device_and_schedule(self, sequences: int) -> None:
        seconds, device = self.step([], [100] * sequences, overlap=True)
        assert seconds == pytest.approx(max(device, 2e-3 + 1e-5 * sequences))
        assert (seconds > device) == (sequences < 20)

    @pytest.mark.parametrize(
        ("chunks", "decodes", "launched"),
        [([(4, 0)], [], 100), ([(4, 0)], [50] * 8, 100), ([(65, 0)], [], 400), ([], [50] * 65, 400), ([], [50], 0)],
    )
    def test_prompts_and_what_no_graph_holds_is_dispatched(
        self, chunks: list[tuple[int, int]], decodes: list[int], launched: int
    ) -> None:
        seconds, device = self.step(chunks, decodes, overlap=True)
        sequences = len(chunks) + len(decodes)
        assert seconds == pytest.approx(max(device, 2e-3 + 1e-5 * sequences + 2e-5 * launched))

    @pytest.mark.parametrize(
        ("chunks", "decodes", "launched"),
        [([], [100], 0), ([], [100] * 60, 0), ([(4, 0)], [], 100), ([(65, 0)], [], 400)],
    )
    def test_without_overlap_the_device_waits_for_the_schedule_and_then_for_launches(
        self, chunks: list[tuple[int, int]], decodes: list[int], launched: int
    ) -> None:
        seconds, device = self.step(chunks, decodes, overlap=False)
        sequences = len(chunks) + len(decodes)
        assert seconds == pytest.approx(2e-3 + 1e-5 * sequences + max(device, 2e-5 * launched))

    def test_no_host_work_is_no_floor(self) -> None:
        costs = with_host_times(self.DEVICE, HostTimes(step_s=1e-3, kernel_s=1e-6), self.LAUNCHES, overlap=True)
        assert costs.floor is None
        assert costs.host_s == pytest.approx(1e-3 + 300e-6)

    @given(tables=TABLES, chunks=CHUNKS, decodes=DECODES, parts=st.tuples(*[st.floats(0.0, 0.05)] * 4))
    def test_a_step_is_the_longer_of_device_and_floor(
        self, tables: StepCosts, chunks: list[tuple[int, int]], decodes: list[int], parts: tuple[float, ...]
    ) -> None:
        step_s, sequence_s, pieces_s, eager_s = parts
        floor = HostFloor(step_s, sequence_s / 10, pieces_s, eager_s, graph_tokens=100)
        device, seconds = (step_seconds(of, chunks, decodes) for of in (tables, tables._replace(floor=floor)))
        tokens, sequences = sum(new for new, _ in chunks) + len(decodes), len(chunks) + len(decodes)
        launched = eager_s if tokens > 100 else pieces_s if chunks else 0.0
        assert seconds == max(device, step_s + sequence_s / 10 * sequences + launched)
        assert floor.seconds(sequences, tokens, prompts=bool(chunks)) <= seconds >= device

    def test_a_step_that_drafts_is_scheduled_once_for_all_its_tokens(self) -> None:
        """A step of tokens_per_step tokens counts as as many of one; its launches are not hidden by that."""
        costs = with_host_times(self.DEVICE, self.TIMES, self.LAUNCHES, overlap=True)
        drafting = SpeculationPlan(2, 2, True, (0.5, 0.25))
        expected = (2e-3 / 1.75, 1e-5 / 1.75, 100 * 2e-5, 400 * 2e-5, 64 // 3)
        assert with_speculation(costs, drafting).floor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("model", "engine", "version", "waits"),
    [
        ("qwen3.5-397b-a17b", "sglang", "0.5.9", True),
        ("qwen3.5-397b-a17b", "sglang", "0.5.15", True),
        ("qwen3.5-397b-a17b", "sglang", "0.5.16", False),
        ("qwen3.5-397b-a17b", "sglang", "", False),
        ("qwen3.5-397b-a17b", "vllm", "0.19.1", False),
        ("nemotron-3-super-120b-a12b", "sglang", "0.5.9", False),
        ("llama-3.1-8b", "sglang", "0.5.9", False),
    ],
)
def test_sglang_compiled_for_each_length_of_linear_attention(model, engine, version, waits) -> None:
    spec = CATALOGUE.get("Model", model).spec
    seconds = kernel_compile_s(spec, EngineSpec(name=engine, version=version))
    assert seconds == (KERNEL_COMPILE_S if waits else 0.0)
    assert 0.05 <= KERNEL_COMPILE_S <= 0.12


class TestFrontEnd:
    def test_it_is_the_profiles(self) -> None:
        times = HostTimes(step_s=0.0, request_s=6e-3, read_s=1e-3, prompt_token_s=2e-6, stream_s=5e-5)
        assert front_end_of(times) == FrontEnd(6e-3, 1e-3, 2e-6, 5e-5)

    def test_reading_is_no_more_than_the_whole_of_it(self) -> None:
        times = HostTimes(step_s=0.0, request_s=1.5e-3, read_s=2e-3)
        assert front_end_of(times) == FrontEnd(1.5e-3, 1.5e-3)


class TestRanges:
    @pytest.mark.parametrize("name", RANGES)
    def test_a_constant_outside_its_range_is_named_with_it(self, name: str) -> None:
        known = RANGES[name]
        outside = [1.01 * known.high, *([0.99 * known.low] if known.low > 0 else [])]
        for value in outside:
            (said,) = HostTimes.model_validate({"step_s": 0.0, name: value}).implausible()
            assert said.startswith(f"{name} is {value:g} s for each {known.per}: {known.low:g} to {known.high:g} ")
            assert known.source in said

    @pytest.mark.parametrize("name", RANGES)
    def test_its_ends_are_inside_and_0_is_none_at_all(self, name: str) -> None:
        for value in (0.0, RANGES[name].low, RANGES[name].high):
            assert HostTimes.model_validate({"step_s": 0.0, name: value}).implausible() == []

    def test_results_of_a_profile_with_one_say_so(self) -> None:
        profile = TestVersions.PROFILE
        slow = profile.engines["vllm"].model_copy(update={"schedule_s": 10 * RANGES["schedule_s"].high, "versions": {}})
        plain, warned = (
            compiled(of).warnings for of in (profile, profile.model_copy(update={"engines": {"vllm": slow}}))
        )
        assert (*plain, *slow.implausible()) == warned
        assert len(slow.implausible()) == 1

    def test_every_constant_has_one_that_says_where_it_comes_from(self) -> None:
        assert set(RANGES) == set(HostTimes.model_fields)
        for known in RANGES.values():
            assert 0.0 <= known.low < known.high
            assert known.per
            assert known.source

    def test_what_ships_lies_within(self) -> None:
        """The values in the files, for every version too."""
        fitted = 0
        for path in sorted((shipped_root() / "profiles" / "latency").glob("*.yaml")):
            engines = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["engines"]
            for name, value in (pair for overhead in engines.values() for pair in _constants(overhead)):
                fitted += value > 0
                assert value == 0 or RANGES[name].low <= value <= RANGES[name].high, (path.name, name, value)
        assert fitted > 1000


def _constants(overhead: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for of in (overhead, *overhead.get("versions", {}).values()):
        yield from ((name, of[name]) for name in RANGES if name in of)


class TestVersions:
    PROFILE: LatencyProfileSpec = CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec

    @pytest.mark.parametrize("overlap", [True, False])
    @pytest.mark.parametrize(
        ("version", "known"), [("0.15.1", "0.15.1"), ("0.15.1.post1", "0.15.1"), ("0.19.0+cu130", "0.19.0")]
    )
    def test_steps_and_front_end_are_those_of_the_version_that_runs(
        self, version: str, known: str, overlap: bool
    ) -> None:
        overhead = self.PROFILE.engines["vllm"]
        times, costs = overhead.versions[known], compiled(self.PROFILE, version, overlap=overlap)
        assert times != HostTimes.model_validate({name: getattr(overhead, name) for name in HostTimes.model_fields})
        counted = launches_of(LLAMA_8B, SINGLE, None, EngineSpec(name="vllm"), overhead.graph_batches)
        expected = with_host_times(LAW, times, counted, overlap=overlap)
        seconds = costs.seconds
        assert (seconds.host_s, seconds.host_per_sequence_s) == (expected.host_s, expected.host_per_sequence_s)
        assert seconds.floor == expected.floor
        assert costs.front_end == front_end_of(times)

    @pytest.mark.parametrize("version", ["", "0.1.0"])
    def test_others_take_the_profiles_own(self, version: str) -> None:
        overhead = self.PROFILE.engines["vllm"]
        counted = launches_of(LLAMA_8B, SINGLE, None, EngineSpec(name="vllm"), overhead.graph_batches)
        costs = compiled(self.PROFILE, version)
        assert costs.seconds.floor == with_host_times(LAW, overhead, counted, overlap=True).floor
        assert costs.front_end == front_end_of(overhead)


def test_a_compiled_engine_schedules_and_enqueues_faster_than_python() -> None:
    """TensorRT-LLM 0: kernels in steps with prompts (those of decodes are held in graphs either way), sequences."""
    floors = {}
    for version in ("0.17.0", "1.0.0"):
        engine = EngineSpec(name="trtllm", version=version)
        priced = PricedWorker(
            LLAMA_8B, CATALOGUE.get("Accelerator", "h100-sxm").spec, SINGLE, "fp8", "fp8", engine, 8192, 256, 50_000
        )
        profile = CATALOGUE.get("LatencyProfile", "trtllm-h100-sxm").spec
        floors[version] = build_estimator("mine", profile).compile(priced).seconds.floor
    compiled_engine, dispatched = floors["0.17.0"], floors["1.0.0"]
    assert compiled_engine is not None
    assert dispatched is not None
    assert compiled_engine.eager_s == pytest.approx(ENQUEUE_S * 32 * (8 + 2 + 4 + 2))
    assert dispatched.eager_s > 4 * compiled_engine.eager_s
    assert compiled_engine.step_s == dispatched.step_s
    assert compiled_engine.per_sequence_s == pytest.approx(COMPILED_SEQUENCE_S)
    assert dispatched.per_sequence_s > 4 * compiled_engine.per_sequence_s


@pytest.mark.parametrize(
    ("model", "engine", "weight_dtype", "capability", "product_s"),
    [
        (LLAMA_8B, "vllm", "nvfp4", 10.0, FLASHINFER_PRODUCT_S["nvfp4"]),
        (LLAMA_8B, "vllm", "fp8", 10.3, FLASHINFER_PRODUCT_S["fp8"]),
        (LLAMA_8B.model_copy(update={"weight_dtype": "fp8"}), "vllm", None, 10.0, 0.0),
        (LLAMA_8B, "vllm", "bf16", 10.0, 0.0),
        (LLAMA_8B, "vllm", "fp8", 9.0, 0.0),
        (LLAMA_8B, "vllm", "fp8", None, 0.0),
        (LLAMA_8B, "sglang", "fp8", 10.0, 0.0),
    ],
)
def test_products_that_python_chooses_take_longer_outside_graphs(
    model: ModelSpec, engine: Any, weight_dtype: Any, capability: float | None, product_s: float
) -> None:
    """Four a layer, of which each takes ``product_s`` in place of a launch; graphs hold them."""
    counted = launches_of(model, SINGLE, weight_dtype, EngineSpec(name=engine), [1, 8, 512], capability)
    products = 4 * model.layers if product_s else 0
    assert (counted.products, counted.product_s) == (products, product_s)
    assert counted.eager_s(22e-6) == pytest.approx(22e-6 * counted.eager + max(product_s - 22e-6, 0) * products)
    assert counted.eager_s(1e-3) == pytest.approx(1e-3 * counted.eager)
    costs = with_host_times(LAW, HostTimes(step_s=0.0, launch_s=22e-6), counted, overlap=True)
    assert costs.floor is not None
    assert costs.floor.eager_s == pytest.approx(counted.eager_s(22e-6))
    assert costs.floor.pieces_s == pytest.approx(22e-6 * counted.pieces)
