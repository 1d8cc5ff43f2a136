"""Models with Kimi Delta Attention or Mamba-2, layers that are a mixer or an FFN alone, and experts in a latent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.hardware.power import plan_power
from hisearch.latency.device_memory.draft_head import head_weight_bytes_per_rank
from hisearch.latency.device_memory.profiling_run import forward_bytes, rotary_bytes
from hisearch.latency.estimators.roofline import RooflineEstimator
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.estimators.tables import TablesEstimator
from hisearch.latency.host import launches_of
from hisearch.latency.laws.collectives import Collectives, latent_reduced_s
from hisearch.latency.matrices.recurrent import chunk_flops
from hisearch.latency.operators import residual_blocks, residual_blocks_read, token_operators
from hisearch.latency.parameters import (
    active_parameter_count,
    kv_bytes_per_token_per_rank,
    matrices,
    parameter_count,
    state_bytes_per_sequence_per_rank,
    weight_bytes_per_rank,
)
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import InvalidParallelism, Parallelism, dense_layers, moe_layers, shard
from hisearch.latency.workers.scaled import ScaledWorker
from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.deployments.speculation import SpeculationSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec

CATALOGUE = Catalogue()
K3, KIMI_LINEAR, NANO, LIGHTNING, SUPER, ULTRA = MODELS = tuple(
    CATALOGUE.get("Model", name).spec
    for name in (
        "kimi-k3", "kimi-linear-48b-a3b", "nemotron-3-nano-30b-a3b", "nemotron-3.5-lightning-30b-a3b",
        "nemotron-3-super-120b-a12b", "nemotron-3-ultra-550b-a55b",
    )
)  # fmt: skip
#: A module of multi-token prediction: attention and experts, as in Nemotron 3.
MTP = SpeculationSpec.model_validate({"method": "mtp", "draft_tokens": 1, "acceptance": [0.5]})


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        (K3, 2.8e12, 104e9),  # NVIDIA NeMo AutoModel, Kimi K3
        (KIMI_LINEAR, 49.1e9, None),  # "48B-A3B": the name rounds down, and the embedding counts
        (NANO, 31.6e9, 3.2e9),  # research.nvidia.com, Nemotron 3: 3.2B active, without the embedding
        (ULTRA, 550e9, 55e9),
    ],
)
def test_parameters_are_those_that_publishers_state(model: ModelSpec, total: float, active: float | None) -> None:
    assert parameter_count(model) == pytest.approx(total, rel=0.01)
    if active is not None:
        assert active_parameter_count(model) == pytest.approx(active, rel=0.01)


def test_super_counts_its_embedding_among_active_parameters() -> None:
    """120.6 and 12.7 billion (research.nvidia.com)."""
    assert parameter_count(SUPER) == pytest.approx(120.6e9, rel=0.01)
    assert active_parameter_count(SUPER) + SUPER.vocab_size * SUPER.hidden_size == pytest.approx(12.7e9, rel=0.01)


@pytest.mark.parametrize(
    ("model", "dtype", "published", "with_head"),
    [
        (K3, "fp4", 1.56e12, False),  # InferenceX, pull request 2351
        (LIGHTNING, "nvfp4", 21.58e9, True),  # unslothai/unsloth, issue 8555
        (ULTRA, "bf16", 1121e9, True),  # NVIDIA, "Creating the Nemotron 3 Ultra NVFP4 Checkpoint"
        (ULTRA, "nvfp4", 352.3e9, True),
    ],
)
def test_weights_are_as_large_as_published_checkpoints(
    model: ModelSpec, dtype: DType, published: float, with_head: bool
) -> None:
    """Nemotron's have a module for multi-token prediction in 16 bits, which is none of the model's own layers."""
    head = head_weight_bytes_per_rank(model, Parallelism(1), "bf16", MTP) if with_head else 0.0
    assert weight_bytes_per_rank(model, 1, dtype) + head == pytest.approx(published, rel=0.002)


@pytest.mark.parametrize(
    ("model", "kv_bytes", "layers", "state"),
    [
        (K3, 24 * 576 * 2, 69, 96 * 128 * 128 * 4 + 3 * 3 * 96 * 128 * 2),
        (KIMI_LINEAR, 7 * 576 * 2, 20, 32 * 128 * 128 * 4 + 3 * 3 * 32 * 128 * 2),
        (NANO, 6 * 2 * 2 * 128 * 2, 23, 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2),
        (SUPER, 8 * 2 * 2 * 128 * 2, 40, 128 * 64 * 128 * 4 + 3 * (128 * 64 + 2 * 8 * 128) * 2),
        (ULTRA, 12 * 2 * 2 * 128 * 2, 48, 256 * 64 * 128 * 4 + 3 * (256 * 64 + 2 * 8 * 128) * 2),
    ],
)
def test_what_a_token_and_a_sequence_keep(model: ModelSpec, kv_bytes: int, layers: int, state: int) -> None:
    """Shapes of vLLM's ``MambaStateShapeCalculator`` and of SGLang's ``configs/mamba_utils.py``."""
    assert kv_bytes_per_token_per_rank(model, 1, "bf16") == kv_bytes
    assert state_bytes_per_sequence_per_rank(model, 1) == layers * state
    assert state_bytes_per_sequence_per_rank(model, 8) == layers * state / 8


@given(model=st.sampled_from(MODELS), tensor=st.sampled_from([2, 4, 8]), expert=st.booleans())
def test_ranks_hold_the_model_together_and_what_is_replicated(model: ModelSpec, tensor: int, expert: bool) -> None:
    """Matrices that are whole on every rank: latents, routers, and KDA's narrow inputs of gates."""
    split = Parallelism(tensor, expert=tensor if expert else 1)
    whole = {m.name: m for m in matrices(model, shard(model, 1))}
    replicated = {"router", "latent_down_proj", "latent_up_proj", "qkv_down_proj", "kv_down_proj"}
    linear = model.linear_attention
    assert linear is not None
    for matrix in matrices(model, shard(model, split)):
        together = matrix.elements * tensor
        if matrix.name == "linear_scalar_proj":
            copies = model.hidden_size * (linear.key_head_dim + linear.gate_rank) * matrix.layers
            together -= (tensor - 1) * copies
        elif matrix.name == "qkv_proj":
            kv = 2 * model.hidden_size * model.head_dim * matrix.layers
            together -= kv * (max(tensor, model.kv_heads) - model.kv_heads)
        assert together == whole[matrix.name].elements * (tensor if matrix.name in replicated else 1)


def test_layers_are_a_mixer_or_an_ffn() -> None:
    """Nemotron 3 Super: 88 published layers, each with a norm; one more behind them."""
    assert (SUPER.layers, SUPER.ffn_count, dense_layers(SUPER), moe_layers(SUPER)) == (48, 40, 0, 40)
    layers = {op.name: op.layers for op in token_operators(SUPER, shard(SUPER, 4), "bf16", "bf16")}
    assert (layers["norms"], layers["qkv_proj"], layers["linear_in_proj"], layers["router"]) == (88, 8, 40, 40)
    assert layers["rotary_kv_write"] == 8
    assert moe_layers(K3) == 92


def test_experts_work_in_the_latent() -> None:
    elements = {matrix.name: (matrix.inputs, matrix.outputs) for matrix in matrices(K3, shard(K3, 8))}
    assert elements["experts_gate_up_proj"] == (3584, 2 * 3072 // 8)
    assert elements["experts_down_proj"] == (3072 // 8, 3584)
    assert (elements["latent_down_proj"], elements["latent_up_proj"]) == ((7168, 3584), (3584, 7168))
    assert elements["shared_gate_up_proj"] == (7168, 2 * 6144 // 8)
    # Two matrices in a squared ReLU's expert.
    assert {m.name: m.outputs for m in matrices(SUPER, shard(SUPER, 1))}["experts_gate_up_proj"] == 2688


def test_an_output_gate_of_latent_attention_is_as_wide_as_its_output() -> None:
    gate = next(matrix for matrix in matrices(K3, shard(K3, 8)) if matrix.name == "attention_gate_proj")
    assert (gate.inputs, gate.outputs, gate.layers) == (7168, 96 * 128 // 8, 24)


def test_output_gates_of_kimi_linear_have_a_latent() -> None:
    elements = {matrix.name: (matrix.inputs, matrix.outputs) for matrix in matrices(KIMI_LINEAR, shard(KIMI_LINEAR, 2))}
    assert elements["linear_in_proj"] == (2304, 3 * 2048)
    assert elements["linear_scalar_proj"] == (2304, 16 + 128 + 128)
    assert elements["linear_decay_proj"] == elements["linear_gate_proj"] == (128, 2048)


def test_flops_of_a_chunk_by_hand() -> None:
    """Of one head of Kimi K3, 128 x 128 in chunks of 64; of Nano's 64 heads of 64 with 8 groups of 128 in 128."""
    assert K3.linear_attention is not None
    assert NANO.linear_attention is not None
    one_head = 6 * 128 * 128 + 3 * 64 * 128 + 64 * 64
    assert chunk_flops(K3.linear_attention, shard(K3, 1)) == 96 * one_head
    assert chunk_flops(NANO.linear_attention, shard(NANO, 1)) == 8 * 2 * 128 * 128 + 64 * (2 * 128 * 64 + 4 * 128 * 64)


def test_attention_residuals_read_the_blocks_before() -> None:
    """Ninety-three layers in blocks of 12: eight blocks in the end, which the output attends to as well."""
    assert residual_blocks(K3) == 8
    before = [-(-layer // 12) for layer in range(93)]
    within = [layer // 12 + 1 for layer in range(93)]
    assert residual_blocks_read(K3) == sum(before) + sum(within) + 8
    plain = K3.model_copy(update={"residual_block_layers": 0})
    assert (residual_blocks(plain), residual_blocks_read(plain)) == (0, 0)
    kept = forward_bytes(K3, 8, 1000) - forward_bytes(plain, 8, 1000)
    assert kept == 2 * 1000 * 8 * 7168


def test_no_cosines_without_rotary_embedding() -> None:
    assert rotary_bytes(K3) == rotary_bytes(NANO) == 0.0
    assert rotary_bytes(NANO.model_copy(update={"rotary_embedding": True})) == 262_144 * 128 * 2


def test_collectives_follow_mixers_and_ffns() -> None:
    """An all-reduce behind each of Super's 48 mixers and 40 FFNs, and one of the embedding."""
    peers, split, tokens = Collectives(None, 1e11, 1e-5), Parallelism(4), np.array([100.0])
    single = peers.all_reduce_s(2.0 * 4096 * tokens, 4)
    np.testing.assert_allclose(peers.step_s(split, SUPER, tokens), 89 * single)
    assert (
        launches_of(SUPER, split, None, EngineSpec(name="sglang"), []).kernels
        - launches_of(SUPER, Parallelism(1), None, EngineSpec(name="sglang"), []).kernels
        == 88
    )
    host = CATALOGUE.get("Accelerator", "h200").spec
    moved = plan_power(split, SUPER, host, None).peer_j_per_token
    assert moved == pytest.approx(plan_power(split, NANO, host, None).peer_j_per_token * 89 * 4096 / (53 * 2688))


def test_a_norm_in_the_latent_adds_an_all_reduce_of_it() -> None:
    tokens = np.array([64.0])
    np.testing.assert_array_equal(latent_reduced_s(K3, tokens, lambda moved: moved), 2.0 * 3584 * tokens)
    for model in (SUPER, KIMI_LINEAR):
        np.testing.assert_array_equal(latent_reduced_s(model, tokens, lambda moved: moved), 0.0 * tokens)


def scaled(model: ModelSpec, profile: str, accelerator: str, tensor: int, dtype: DType = "bf16") -> ScaledWorker:
    spec = CATALOGUE.get("LatencyProfile", profile).spec
    engine = EngineSpec.model_validate({"name": profile.split("-", maxsplit=1)[0], "chunk_tokens": 8192})
    sheet = CATALOGUE.get("Accelerator", accelerator).spec
    priced = PricedWorker(model, sheet, Parallelism(tensor), dtype, "bf16", engine, 8192, 64, 10**6)
    return ScaledEstimator(profile, spec).worker(priced)


def test_prompts_of_kda_follow_their_law() -> None:
    worker, tokens = scaled(KIMI_LINEAR, "vllm-b200", "b200", 2), np.array([128.0, 4096.0])
    terms, none = worker.linear_law, np.zeros(2)
    assert terms is not None
    plain = scaled(KIMI_LINEAR.model_copy(update={"linear_attention": None}), "vllm-b200", "b200", 2)
    attention = plain.chunk_s(tokens, none) * 7 / 27
    np.testing.assert_allclose(
        worker.chunk_s(tokens, none), attention + 20 * (terms.launch_s + tokens * terms.serial_token_s)
    )
    (op,) = (op for op in worker.elementwise_ops() if op.name == "linear_attention")
    np.testing.assert_allclose(worker.elementwise_s(op, tokens), tokens * 16 * terms.head_token_s)


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        (NANO, {}, ["no law of Mamba-2: the roofline prices its kernels"]),
        (NANO, {"version": "0.19.1"}, ["no law of Mamba-2", "keeps states of Mamba-2 at every chunk"]),
        (KIMI_LINEAR, {}, []),
    ],
)
def test_what_is_approximated_is_said(model: ModelSpec, changes: dict[str, Any], says: list[str]) -> None:
    engine = EngineSpec.model_validate({"name": "vllm", "max_running_requests": 32, "chunk_tokens": 2048} | changes)
    sheet = CATALOGUE.get("Accelerator", "h200").spec
    priced = PricedWorker(model, sheet, Parallelism(2), "bf16", "bf16", engine, 2048, 32, 10**5)
    profile = CATALOGUE.get("LatencyProfile", "vllm-h200").spec
    compiled = ScaledEstimator("vllm-h200", profile).compile(priced).warnings
    warnings = [text for text in compiled if "Mamba" in text or "Delta" in text]
    assert len(warnings) == len(says)
    for warning, text in zip(warnings, says, strict=True):
        assert text in warning
    roofline = RooflineEstimator("roofline", CATALOGUE.get("LatencyProfile", "roofline").spec)
    assert any("the roofline prices its kernels" in text for text in roofline.compile(priced).warnings)


def test_matrices_in_a_format_of_their_own_are_priced_in_it() -> None:
    """Lightning's inputs of Mamba-2 are fp8 where experts are NVFP4; a rank without fp8 arithmetic unpacks them."""
    part = shard(LIGHTNING, 1)
    by_name = {matrix.name: matrix for matrix in matrices(LIGHTNING, part)}
    assert by_name["linear_in_proj"].element_bytes("nvfp4") == 1.0
    assert by_name["qkv_proj"].element_bytes("nvfp4") == 2.0
    assert by_name["shared_down_proj"].element_bytes("nvfp4") == 0.5625
    assert by_name["linear_in_proj"].element_bytes("bf16") == 2.0
    worker = scaled(LIGHTNING, "vllm-h200", "h200", 1, "nvfp4")
    assert worker.format_of(by_name["linear_in_proj"]) == "fp8"
    tokens = np.array([4096.0])
    plain = scaled(LIGHTNING.model_copy(update={"other_formats": {}}), "vllm-h200", "h200", 1, "bf16")
    assert worker.product_s(by_name["linear_in_proj"], tokens) < plain.product_s(by_name["linear_in_proj"], tokens)
    ampere = CATALOGUE.get("Accelerator", "a100-80gb").spec
    priced = PricedWorker(LIGHTNING, ampere, Parallelism(1), "nvfp4", "bf16", EngineSpec(name="vllm"), 2048, 32, 10**5)
    roofline = RooflineEstimator("roofline", CATALOGUE.get("LatencyProfile", "roofline").spec)
    assert np.all(np.isfinite(roofline.worker(priced).token_s(tokens)))


def test_groups_of_mamba2_are_not_shared_by_more_ranks() -> None:
    """vLLM does not start either: "If tensor parallel world size does not divide num_groups, …"."""
    with pytest.raises(InvalidParallelism, match=r"linear_attention\.key_heads"):
        shard(NANO, 16)


def test_measured_tables_of_another_kind_of_model_are_refused() -> None:
    profile = CATALOGUE.get("LatencyProfile", "roofline").spec.model_copy(update={"operators": "nowhere"})
    sheet = CATALOGUE.get("Accelerator", "h200").spec
    priced = PricedWorker(NANO, sheet, Parallelism(1), "bf16", "bf16", EngineSpec(name="vllm"), 2048, 32, 10**5)
    with pytest.raises(ValueError, match="price no states"):
        TablesEstimator("tables", profile).worker(priced)


@pytest.mark.parametrize(
    ("profile", "accelerator", "named"),
    [("vllm-h200", "h200", ["hidden 3584", "experts 896", "per token 16"]), ("vllm-b200", "b200", [])],
)
def test_experts_beyond_the_measured_are_named(profile: str, accelerator: str, named: list[str]) -> None:
    """On Hopper MXFP4 was fitted on gpt-oss: 2,880 wide, up to 128 experts, four of them; on Blackwell on K3's too."""
    spec, sheet = CATALOGUE.get("LatencyProfile", profile).spec, CATALOGUE.get("Accelerator", accelerator).spec
    engine = EngineSpec(name="vllm", max_running_requests=32)
    priced = PricedWorker(K3, sheet, Parallelism(8), "fp4", "bf16", engine, 8192, 32, 10**5)
    warnings = [text for text in ScaledEstimator(profile, spec).compile(priced).warnings if "experts:" in text]
    assert [text.split(" is outside")[0] for text in warnings] == [f"experts: {name}" for name in named]
