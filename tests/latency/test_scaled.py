"""The scaled roofline: its tables, its warnings, its profiles."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from laws import GEMM, LAWS
from pydantic import ValidationError

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import build_estimator
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.laws.model import weights_law
from hisearch.latency.laws.steps import rising, token_grid
from hisearch.latency.parameters import matrices, weight_bytes_per_rank
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism, shard
from hisearch.latency.workers.scaled import QUANTISED_SEPARATELY
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.laws import CollectiveCurve, CollectiveCurves, QuantiseTerms
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from refit.boards import BOARDS
from refit.shipped import ENGINES

CATALOGUE = Catalogue()
ROOFLINE: LatencyProfileSpec = CATALOGUE.get("LatencyProfile", "roofline").spec
H100 = CATALOGUE.get("Accelerator", "h100-sxm").spec
VLLM = EngineSpec(name="vllm")
HOST = EngineOverhead(step_s=1e-4, graph_batches=[1, 8, 16])
PROFILE = ROOFLINE.model_copy(update={"estimator": "scaled", "laws": LAWS, "engines": {"vllm": HOST, "sglang": HOST}})


def compiled(model: str, profile: LatencyProfileSpec = PROFILE, **settings: Any) -> CompiledCosts:
    question: dict[str, Any] = {
        "accelerator": H100, "split": Parallelism(), "weight_dtype": None, "kv_dtype": "bf16", "engine": VLLM,
        "max_tokens": 4096, "max_sequences": 256, "max_context_tokens": 500_000,
    }  # fmt: skip
    priced = PricedWorker(CATALOGUE.get("Model", model).spec, **question | settings)
    return build_estimator("mine", profile).compile(priced)


CASES = [
    ("llama-3.1-8b", Parallelism(1)),
    ("qwen3-32b", Parallelism(2, pipeline=2)),
    ("qwen3-30b-a3b", Parallelism(4, expert=4)),
    ("deepseek-v3", Parallelism(8)),
    ("deepseek-v3", Parallelism(1, attention_data=8, expert=8)),
    ("gpt-oss-120b", Parallelism(4)),
]


@pytest.mark.parametrize(("model", "split"), CASES)
def test_tables_are_finite_and_rise(model: str, split: Parallelism) -> None:
    costs = compiled(model, split=split).seconds
    for table in (costs.token_s, costs.sequence_s, costs.chunk_rate, costs.decode_s):
        assert np.isfinite(table).all()
        assert (table >= 0).all()
    assert costs.token_s[0] == costs.sequence_s[0] == 0
    assert (np.diff(costs.token_s) >= 0).all()
    assert (np.diff(costs.sequence_s) >= 0).all()
    assert (np.diff(costs.decode_s[1:], axis=1) >= -1e-15).all()


def test_a_step_is_the_sum_of_its_operators() -> None:
    """One token on one rank: every matrix once, from the law, the rest from the roofline's terms."""
    model = CATALOGUE.get("Model", "llama-3.1-8b").spec
    priced = PricedWorker(model, H100, Parallelism(), None, "bf16", VLLM, 4096, 256, 500_000)
    worker = ScaledEstimator("mine", PROFILE).worker(priced)
    elementwise = sum(
        op.layers * worker.elementwise_s(op, np.ones(1)) for op in worker.roofline.token_ops if op.family != "gemm"
    )
    weights = model.layers * model.hidden_size * (2 * model.hidden_size + 2 * 1024 + 3 * model.intermediate_size)
    reading = 2.0 * weights / (H100.memory_bandwidth_bytes_per_s * GEMM.bandwidth)
    rest = worker.token_s(np.ones(1)) - elementwise - model.layers * worker.launch_s
    assert rest[0] == pytest.approx(reading + 4 * model.layers * (GEMM.launch_s + 0.8 * GEMM.fill_s), rel=0.1)


def test_steps_are_padded_to_the_graph_that_runs_them() -> None:
    token_s = compiled("llama-3.1-8b").seconds.token_s
    assert token_s[2] == token_s[8]
    assert token_s[9] == token_s[16]
    assert token_s[1] < token_s[2]
    assert token_s[17] > token_s[16]


def test_launches_may_hide_behind_the_kernel_before() -> None:
    hidden = PROFILE.model_copy(update={"engines": {"vllm": HOST.model_copy(update={"launch_share": 0.25})}})
    model = CATALOGUE.get("Model", "llama-3.1-8b").spec
    kernels = model.layers * (4 * GEMM.launch_s + LAWS.decode_attention["bf16"].launch_s)
    elementwise = (4 * model.layers + 1) * ROOFLINE.elementwise.launch_s
    saved = compiled("llama-3.1-8b").seconds.token_s[1:] - compiled("llama-3.1-8b", hidden).seconds.token_s[1:]
    np.testing.assert_allclose(saved, 0.75 * (kernels + elementwise), rtol=1e-9)


def test_a_fused_all_reduce_takes_the_norms_along_up_to_its_limit() -> None:
    engine = EngineSpec(name="sglang", fused_all_reduce=True)
    settings: dict[str, Any] = {"split": Parallelism(4), "max_tokens": 4096}
    unfused = compiled("llama-3.1-8b", engine=EngineSpec(name="sglang"), **settings).seconds.token_s
    fused = compiled("llama-3.1-8b", engine=engine, **settings).seconds.token_s
    norms = 2 * CATALOGUE.get("Model", "llama-3.1-8b").spec.layers
    assert (unfused - fused)[1] == pytest.approx(norms * ROOFLINE.elementwise.launch_s, rel=0.2)
    assert (fused[:2049] <= unfused[:2049]).all()
    assert (fused[1:2049] < unfused[1:2049]).all()
    np.testing.assert_array_equal(fused[2560:], unfused[2560:])
    alone = {"split": Parallelism(1), "max_tokens": 4096}
    single_rank = compiled("llama-3.1-8b", engine=engine, **alone).seconds.token_s
    np.testing.assert_array_equal(
        single_rank, compiled("llama-3.1-8b", engine=EngineSpec(name="sglang"), **alone).seconds.token_s
    )


def test_vllm_fuses_up_to_the_bytes_of_its_profile_unless_disabled() -> None:
    """1 MiB are 128 tokens of 4,096 x 2 bytes. Without a kernel for the accelerator nothing is fused by itself."""
    curve = CollectiveCurve(ranks=4, payload_bytes=[1e3, 1e9], seconds=[4e-6, 4e-3], up_to_bytes=2.0**20)
    plain = curve.model_copy(update={"seconds": [6e-6, 6e-3], "up_to_bytes": None})
    laws = LAWS.model_copy(
        update={"collectives": CollectiveCurves(source="made up", all_reduce=[plain]), "fused_all_reduce": [curve]}
    )
    profile = PROFILE.model_copy(update={"laws": laws})
    settings: dict[str, Any] = {"split": Parallelism(4), "max_tokens": 512}

    def token_s(engine: EngineSpec, of: LatencyProfileSpec = profile) -> Any:
        return compiled("llama-3.1-8b", of, engine=engine, **settings).seconds.token_s

    unfused, fused = token_s(EngineSpec(name="vllm", fused_all_reduce=False)), token_s(VLLM)
    np.testing.assert_array_equal(fused, token_s(EngineSpec(name="vllm", fused_all_reduce=True)))
    assert (fused[1:129] < unfused[1:129]).all()
    np.testing.assert_array_equal(fused[160:], unfused[160:])
    np.testing.assert_array_equal(token_s(EngineSpec(name="sglang")), unfused)
    bare = PROFILE.model_copy(update={"laws": laws.model_copy(update={"fused_all_reduce": []})})
    np.testing.assert_array_equal(token_s(VLLM, bare), unfused)


ROOFLINE_S = ROOFLINE.all_reduce.alpha_s + 4 * H100.peer_link.latency_s


@pytest.mark.parametrize(("profile", "each_s"), [(PROFILE, 5e-6), (ROOFLINE, ROOFLINE_S)])
def test_norms_over_all_heads_are_one_more_all_reduce_a_layer(profile: LatencyProfileSpec, each_s: float) -> None:
    """Of 8 bytes a token, which is the collective's fixed cost."""
    model = CATALOGUE.get("Model", "minimax-m2.5").spec
    settings: dict[str, Any] = {"split": Parallelism(4), "max_tokens": 64, "accelerator": H100, "weight_dtype": None}

    def token_s(spec: ModelSpec, **changed: Any) -> Any:
        defaults = {"kv_dtype": "bf16", "engine": VLLM, "max_sequences": 64, "max_context_tokens": 9000}
        priced = PricedWorker(spec, **settings | defaults | changed)
        return build_estimator("mine", profile).compile(priced).seconds.token_s

    without = model.model_copy(update={"qk_norm_per_layer": False})
    more = token_s(model)[1:] - token_s(without)[1:]
    np.testing.assert_allclose(more, model.layers * each_s, rtol=1e-2)
    alone = {"split": Parallelism(1)}
    np.testing.assert_array_equal(token_s(model, **alone), token_s(without, **alone))


def test_grids_hold_every_small_count_and_the_last() -> None:
    grid = token_grid(5000)
    assert grid[:64].tolist() == list(range(1, 65))
    assert grid[-1] == 5000
    assert len(grid) < 600
    assert (np.diff(grid) > 0).all()


def test_a_falling_law_is_made_to_rise() -> None:
    table = rising(lambda units: 10.0 - units, 5, [])
    assert table.tolist() == [0.0, 9.0, 9.0, 9.0, 9.0, 9.0]


def test_published_fp8_has_blocks_and_quantised_fp8_has_none() -> None:
    published, wide = (CATALOGUE.get("Model", name).spec for name in ("deepseek-v3", "llama-3.1-8b"))
    assert weights_law(published, None) == weights_law(published, "fp8") == "fp8_block"
    assert weights_law(wide, "fp8") == "fp8"
    assert weights_law(wide, None) == "bf16"


def test_what_has_no_law_is_priced_and_said() -> None:
    assert compiled("llama-3.1-8b").warnings == ()
    fp8 = compiled("llama-3.1-8b", weight_dtype="fp8")
    assert "no law of dense products in fp8: that of fp8_block prices them" in fp8.warnings
    int4 = compiled("llama-3.1-8b", weight_dtype="int4")
    assert "no law of dense products in int4: the roofline prices them" in int4.warnings
    assert (
        "no law of experts in fp8_block: the roofline prices them"
        in compiled("deepseek-v3", split=Parallelism(8)).warnings
    )
    kv = compiled("llama-3.1-8b", kv_dtype="fp8")
    assert any("KV cache of fp8" in warning for warning in kv.warnings)


def test_other_engines_and_accelerators_are_said() -> None:
    other = compiled("llama-3.1-8b", engine=EngineSpec(name="sglang"))
    assert other.warnings == ("laws of vllm 0 price steps of sglang",)
    h200 = CATALOGUE.get("Accelerator", "h200").spec
    carried = compiled("llama-3.1-8b", accelerator=h200)
    assert carried.warnings == ("laws of h100-sxm are carried over to another accelerator by its sheet",)


def test_widths_beyond_the_measured_are_said() -> None:
    narrow = LAWS.model_copy(update={"gemm": {"bf16": GEMM.model_copy(update={"ranges": {"n": (8192.0, 65536.0)}})}})
    warnings = compiled("llama-3.1-8b", PROFILE.model_copy(update={"laws": narrow})).warnings
    assert "o_proj: n 4096 is outside the measured 8192 to 65536" in warnings


def test_a_model_without_a_law_of_its_attention_is_refused() -> None:
    without = PROFILE.model_copy(update={"laws": LAWS.model_copy(update={"mla_decode": {}})})
    with pytest.raises(ValueError, match="profile mine: no law of MLA"):
        compiled("deepseek-v3", without, split=Parallelism(8))


def test_an_engine_without_host_terms_is_refused() -> None:
    with pytest.raises(ValueError, match="no overhead for engine 'trtllm'"):
        compiled("llama-3.1-8b", engine=EngineSpec(name="trtllm"))


def test_laws_and_estimator_go_together() -> None:
    data = ROOFLINE.model_dump()
    with pytest.raises(ValidationError, match="needs a laws section"):
        LatencyProfileSpec.model_validate(data | {"estimator": "scaled"})
    with pytest.raises(ValidationError, match="needs choices"):
        LatencyProfileSpec.model_validate(data | {"estimator": "auto"})


SHIPPED = [f"{engine}-{accelerator}" for accelerator in BOARDS for engine in ENGINES]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profiles_price_the_catalogue(name: str) -> None:
    engine, accelerator = name.split("-", 1)
    spec = CATALOGUE.get("LatencyProfile", name).spec
    settings: dict[str, Any] = {
        "accelerator": CATALOGUE.get("Accelerator", accelerator).spec, "engine": EngineSpec(name=engine),  # type: ignore[arg-type]
    }  # fmt: skip
    models = [("llama-3.1-8b", 1), ("qwen3-30b-a3b", 2)]
    if settings["accelerator"].peer_link.kind == "nvlink":
        models.append(("deepseek-v3", 8))
    for model, ranks in models:
        costs = compiled(model, spec, split=Parallelism(ranks), **settings).seconds
        roofline = compiled(model, ROOFLINE, split=Parallelism(ranks), **settings).seconds
        assert 0.4 < costs.token_s[1] / roofline.token_s[1] < 5.0, model
        assert 0.4 < costs.token_s[4096] / roofline.token_s[4096] < 5.0, model
        assert 0.3 < costs.decode_s[-1, -1] / roofline.decode_s[-1, -1] < 4.0, model


def test_compiling_from_a_shipped_profile_takes_milliseconds() -> None:
    name = SHIPPED[0]
    engine, accelerator = name.split("-", 1)
    spec, board = CATALOGUE.get("LatencyProfile", name).spec, CATALOGUE.get("Accelerator", accelerator).spec
    settings = {"accelerator": board, "engine": EngineSpec(name=engine), "split": Parallelism(8), "max_tokens": 16384}  # type: ignore[arg-type]
    taken = []
    for _ in range(5):
        begun = time.perf_counter()
        compiled("deepseek-v3", spec, **settings)
        taken.append(time.perf_counter() - begun)
    assert min(taken) < 0.02


def test_the_automatic_profile_takes_what_fits() -> None:
    auto = CATALOGUE.get("LatencyProfile", "auto").spec
    assert {choice.profile for choice in auto.choices} == set(SHIPPED)
    named = compiled("llama-3.1-8b", CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec)
    chosen = compiled("llama-3.1-8b", auto)
    np.testing.assert_array_equal(chosen.seconds.token_s, named.seconds.token_s)
    assert chosen.profile == "vllm-h100-sxm"
    elsewhere = compiled("llama-3.1-8b", auto, accelerator=CATALOGUE.get("Accelerator", "a6000").spec)
    assert elsewhere.warnings == ("no profile of vllm on this accelerator: the roofline prices its steps",)


def test_passes_that_quantise_are_before_products_in_fp8_whose_inputs_have_sixteen_bits() -> None:
    passes = QuantiseTerms(source="round figures", launch_s=2e-6, bandwidth=0.5)
    model, tokens, extra = CATALOGUE.get("Model", "qwen3-32b").spec, np.array([1.0, 4096.0]), {}
    for dtype in ("fp8", "bf16"):
        priced = PricedWorker(model, H100, Parallelism(2), dtype, "bf16", VLLM, 4096, 256, 500_000)  # type: ignore[arg-type]
        plain = LAWS.model_copy(update={"gemm": LAWS.gemm | {"fp8": GEMM}})
        both = (plain, plain.model_copy(update={"quantise": passes}))
        without, quantised = (
            ScaledEstimator("mine", PROFILE.model_copy(update={"laws": laws})).worker(priced) for laws in both
        )
        extra[dtype] = {
            matrix.name: quantised.product_s(matrix, tokens) - without.product_s(matrix, tokens)
            for matrix in without.products()
        }
    assert not any(seconds.any() for seconds in extra["bf16"].values())
    assert {name for name, seconds in extra["fp8"].items() if seconds.any()} == QUANTISED_SEPARATELY
    down_s = 2e-6 + tokens * 12_800 * 3.0 / (0.5 * H100.memory_bandwidth_bytes_per_s)
    np.testing.assert_allclose(extra["fp8"]["down_proj"], down_s)


def test_what_a_checkpoint_keeps_wide_is_priced_by_the_law_of_sixteen_bits() -> None:
    spec = CATALOGUE.get("Model", "deepseek-v3").spec
    kept = spec.model_copy(update={"kept_wide": {"fp8": ["q_up_proj"]}})
    tokens = np.array([1.0, 64.0, 4096.0])
    seconds = {}
    for name, model, dtype in (("kept", kept, "fp8"), ("all", spec, "fp8"), ("wide", spec, "bf16")):
        priced = PricedWorker(model, H100, Parallelism(8), dtype, "bf16", VLLM, 4096, 256, 500_000)  # type: ignore[arg-type]
        worker = ScaledEstimator("mine", PROFILE).worker(priced)
        by_name = {matrix.name: matrix for matrix in matrices(model, worker.part)}
        seconds[name] = {
            matrix_name: worker.product_s(by_name[matrix_name], tokens) for matrix_name in ("q_up_proj", "o_proj")
        }
    np.testing.assert_array_equal(seconds["kept"]["q_up_proj"], seconds["wide"]["q_up_proj"])
    np.testing.assert_array_equal(seconds["kept"]["o_proj"], seconds["all"]["o_proj"])
    assert (seconds["all"]["q_up_proj"] != seconds["wide"]["q_up_proj"]).all()


def test_a_router_in_single_precision_runs_without_tensor_cores() -> None:
    """In addition to the law's launch: 2 m k n FLOPs at the law's share of 67e12, where bf16 has 989e12."""
    spec = CATALOGUE.get("Model", "minimax-m2.5").spec
    assert spec.moe.router_dtype == "fp32"
    half = spec.model_copy(update={"moe": spec.moe.model_copy(update={"router_dtype": "bf16"})})
    priced = [
        PricedWorker(model, H100, Parallelism(8), None, "bf16", VLLM, 16384, 256, 500_000) for model in (spec, half)
    ]
    full, halved = (build_estimator("mine", PROFILE).compile(worker).seconds.token_s[16384] for worker in priced)
    flops = 2.0 * 16384 * spec.hidden_size * spec.moe.experts
    peak = LAWS.clock_share * LAWS.gemm["bf16"].flops
    assert full - halved == pytest.approx(spec.layers * flops / peak * (1 / 67e12 - 1 / 989e12), rel=0.25)


def test_a_server_s_clock_slows_arithmetic_and_not_memory() -> None:
    held, boosted = (
        compiled("llama-3.1-8b", PROFILE.model_copy(update={"laws": LAWS.model_copy(update={"clock_share": share})}))
        for share in (0.8, 1.0)
    )
    assert held.seconds.token_s[4096] == pytest.approx(boosted.seconds.token_s[4096] / 0.8, rel=0.1)
    assert held.seconds.token_s[1] == pytest.approx(boosted.seconds.token_s[1], rel=0.03)
    assert held.warnings == boosted.warnings


@pytest.mark.parametrize(("engine", "replicated"), [("trtllm", True), ("vllm", True), ("sglang", False)])
def test_attention_groups_of_some_engines_have_dense_ffns_of_their_own(engine: str, replicated: bool) -> None:
    """Weights times tokens are equal: a token of each group by its share of a matrix, or by the full matrix."""
    estimator = ScaledEstimator("mine", PROFILE.model_copy(update={"laws": LAWS.model_copy(update={"engine": engine})}))
    spec, together = CATALOGUE.get("Model", "deepseek-v3").spec, Parallelism(1, attention_data=8, expert=8)
    split = together.under(engine)
    worker = estimator.worker(PricedWorker(spec, H100, split, None, "bf16", VLLM, 4096, 256, 500_000))
    dense = {matrix.name: matrix for matrix in worker.products() if not matrix.routed}
    given = {matrix.name: matrix for matrix in matrices(spec, shard(spec, together)) if not matrix.routed}
    for name, matrix in given.items():
        assert dense[name].token_groups == (1 if replicated else matrix.token_groups)
        done = dense[name].inputs * dense[name].outputs * dense[name].token_groups
        assert done == matrix.inputs * matrix.outputs * matrix.token_groups
    assert dense["shared_gate_up_proj"].inputs == spec.hidden_size
    assert dense["shared_down_proj"].outputs == spec.hidden_size
    shared = worker.shared_s(np.array([512.0]))[0] - worker.routed_s(np.array([512.0]))[0]
    payload = 2.0 * spec.hidden_size * np.array([512.0])
    collectives = worker.collectives.shared_s(split, spec, payload)[0]
    assert (shared == pytest.approx(collectives)) == replicated
    # No tokens are gathered for a dense FFN that every group has.
    gathered = collectives / worker.collectives.gathered_s(split, payload)[0]
    assert gathered == pytest.approx(spec.layers - replicated * spec.moe.leading_dense_layers)


def test_ffns_of_every_group_take_that_much_more_memory() -> None:
    spec, together = CATALOGUE.get("Model", "deepseek-v3").spec, Parallelism(1, attention_data=8, expert=8)
    replicated, shared = (weight_bytes_per_rank(spec, together.under(engine), "fp8") for engine in ("vllm", "sglang"))
    width = spec.moe.leading_dense_layers * spec.intermediate_size
    width += (spec.layers - spec.moe.leading_dense_layers) * spec.moe.shared_intermediate_size
    assert replicated - shared == pytest.approx(7 / 8 * 3 * spec.hidden_size * width, rel=0.01)  # and scales
    assert Parallelism(4).under("vllm") == Parallelism(4)
