"""Layers with a window whose heads are others: sizes by hand, what vLLM and SGLang keep, times of steps."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import H100, VLLM

from hisearch.latency.device_memory.kv_groups import KvGroups, kv_groups_of
from hisearch.latency.device_memory.plan import plan_memory
from hisearch.latency.device_memory.window_pools import divide, simulated
from hisearch.latency.devices.build import DevicesRefused, WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.matrices.heads import full_heads, window_heads
from hisearch.latency.operators import attention_shape, sequence_operators, token_operators
from hisearch.latency.parameters import (
    kv_bytes_per_token_per_rank,
    matrices,
    parameter_count,
    weight_bytes_per_rank,
    window_kv_bytes_per_token_per_rank,
)
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import InvalidParallelism, Parallelism, shard
from hisearch.latency.workers.roofline import peak_worker
from hisearch.latency.workers.scaled import ScaledWorker
from hisearch.specs.deployments.engine import EngineSpec
from hisearch.specs.deployments.pool import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.models.model import ModelSpec, WindowHeadsSpec
from hisearch.specs.models.windows import blocks_of_page, keeps_window_pool, layer_kv_elements, seen_tokens
from tests.engines.environments import ENGINES

NAMES = ("gemma-4-26b-a4b", "gemma-4-31b", "mimo-v2-flash", "step-3.7-flash")
MODELS = {name: Catalogue().get("Model", name).spec for name in (*NAMES, "gemma-3-27b", "llama-4-scout")}
GEMMA_26B, GEMMA_31B, MIMO, STEP = (MODELS[name] for name in NAMES)


def pool_of(tensor_parallel: int = 1, **engine: object) -> PoolSpec:
    return PoolSpec.model_validate(
        {"accelerator": "h100-sxm", "tensor_parallel": tensor_parallel, "engine": {"name": "vllm"} | engine}
    )


# ---- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ranks", "full", "windowed"),
    [
        # layers x KV heads of a rank x (key + value) x 2 bytes
        ("gemma-4-26b-a4b", 1, 5 * 2 * 1024 * 2, 25 * 8 * 512 * 2),
        ("gemma-4-26b-a4b", 4, 5 * 1 * 1024 * 2, 25 * 2 * 512 * 2),
        ("gemma-4-31b", 1, 10 * 4 * 1024 * 2, 50 * 16 * 512 * 2),
        ("gemma-4-31b", 16, 10 * 1 * 1024 * 2, 50 * 1 * 512 * 2),
        ("mimo-v2-flash", 1, 9 * 4 * 320 * 2, 39 * 8 * 320 * 2),
        ("mimo-v2-flash", 8, 9 * 1 * 320 * 2, 39 * 1 * 320 * 2),
        ("step-3.7-flash", 1, 12 * 8 * 256 * 2, 33 * 8 * 256 * 2),
        ("step-3.7-flash", 8, 12 * 1 * 256 * 2, 33 * 1 * 256 * 2),
        ("gemma-3-27b", 2, 10 * 8 * 256 * 2, 52 * 8 * 256 * 2),
        ("llama-4-scout", 2, 12 * 4 * 256 * 2, 36 * 4 * 256 * 2),
    ],
)
def test_kv_bytes_of_a_token(name: str, ranks: int, full: int, windowed: int) -> None:
    model = MODELS[name]
    assert kv_bytes_per_token_per_rank(model, ranks, "bf16") == full
    assert window_kv_bytes_per_token_per_rank(model, ranks, "bf16") == windowed
    assert kv_bytes_per_token_per_rank(model, ranks, "fp8") == full / 2


def test_sglang_logged_widths_of_keys_and_values() -> None:
    """300,288 tokens of MiMo-V2-Flash's windows took 8.38 GiB of keys and 5.59 of values on each of four ranks.

    Source: SGLang's pull request 18039, a log before its change.
    """
    bytes_per_token = window_kv_bytes_per_token_per_rank(MIMO, 4, "bf16")
    keys, values = 192 / 320 * bytes_per_token, 128 / 320 * bytes_per_token
    assert 300_288 * keys / 2**30 == pytest.approx(8.38, abs=0.01)
    assert 300_288 * values / 2**30 == pytest.approx(5.59, abs=0.01)


def test_matrices_of_both_kinds_of_layers() -> None:
    by_name = {matrix.name: matrix for matrix in matrices(GEMMA_31B, shard(GEMMA_31B, 4))}
    full, windowed = by_name["qkv_proj"], by_name["window_qkv_proj"]
    # Engines have keys twice in layers whose values are their keys.
    assert (full.inputs, full.outputs, full.layers) == (5376, 8 * 512 + 2 * 512, 10)
    assert (windowed.inputs, windowed.outputs, windowed.layers) == (5376, 8 * 256 + 2 * 4 * 256, 50)
    assert (by_name["o_proj"].inputs, by_name["window_o_proj"].inputs) == (8 * 512, 8 * 256)
    mimo = {matrix.name: matrix for matrix in matrices(MIMO, shard(MIMO, 8))}
    assert (mimo["qkv_proj"].outputs, mimo["o_proj"].inputs) == (8 * 192 + 320, 8 * 128)
    step = {matrix.name: matrix for matrix in matrices(STEP, shard(STEP, 8))}
    assert (step["head_gate_proj"].outputs, step["window_head_gate_proj"].outputs) == (8, 12)
    assert (step["window_qkv_proj"].outputs, step["window_o_proj"].inputs) == (12 * 128 + 256, 12 * 128)


@pytest.mark.parametrize(
    ("name", "dtype", "gigabytes"),
    [
        ("gemma-4-26b-a4b", "bf16", 51.6),  # google/gemma-4-26B-A4B-it, two files
        ("gemma-4-31b", "bf16", 62.5),  # google/gemma-4-31B-it
        ("gemma-3-27b", "bf16", 54.86),  # google/gemma-3-27b-it: 27,432 million parameters
        # stepfun-ai/Step-3.7-Flash-FP8 by the model card of olka-fi/Step-3.7-Flash-MXFP4, less three layers that draft,
        # with a dense FFN and an LM head of their own: 3 x 0.81e9 in 16 bits
        ("step-3.7-flash", "fp8", 212.5 - 4.9),
    ],
)
def test_weights_are_as_large_as_published(name: str, dtype: str, gigabytes: float) -> None:
    plan = plan_memory(
        MODELS[name], H100.model_copy(update={"memory_bytes": 1 << 40}), tensor_parallel=1, weight_dtype=dtype,
        kv_dtype="bf16", engine=VLLM,
    )  # fmt: skip
    rotary = 2 * MODELS[name].max_context_tokens * sum_of_widths(MODELS[name])
    assert (plan.weights_bytes - rotary) / 1e9 == pytest.approx(gigabytes, rel=0.01)


def sum_of_widths(model: ModelSpec) -> int:
    """Widths of the tables of cosines and sines that layers share."""
    return model.head_dim + (model.window_heads.head_dim if model.window_heads is not None else 0)


@given(name=st.sampled_from(NAMES), ranks=st.sampled_from([1, 2, 4, 8]))
def test_ranks_together_hold_what_one_does(name: str, ranks: int) -> None:
    """But for KV heads, norms, routers and gates that each has."""
    model = MODELS[name]
    part, whole = shard(model, ranks), shard(model, 1)
    for kind in (full_heads, window_heads):
        assert ranks * kind(model, part).query_elements == kind(model, whole).query_elements
        assert ranks * kind(model, part).kv_elements >= kind(model, whole).kv_elements
    assert layer_kv_elements(model, ranks) == (
        full_heads(model, part).kv_elements,
        window_heads(model, part).kv_elements,
    )
    each = {matrix.name: matrix.elements for matrix in matrices(model, part)}
    for matrix in matrices(model, whole):
        if matrix.name.endswith(("o_proj", "down_proj", "gate_up_proj")):
            assert ranks * each[matrix.name] == matrix.elements
    assert weight_bytes_per_rank(model, ranks, "bf16") * ranks >= 2 * parameter_count(model)


def test_heads_that_a_split_does_not_divide() -> None:
    odd = STEP.model_copy(update={"window_heads": WindowHeadsSpec(attention_heads=36, kv_heads=6, head_dim=128)})
    with pytest.raises(InvalidParallelism, match=r"does not divide window_heads.attention_heads 36"):
        shard(odd, 8)
    with pytest.raises(InvalidParallelism, match=r"neither divides window_heads.kv_heads 6 nor is a multiple of it"):
        shard(odd, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window_tokens": 0}, "window_heads needs attention gqa and sliding_window_tokens"),
        ({"window_heads": {"attention_heads": 64, "kv_heads": 7, "head_dim": 64}}, "not a multiple of kv_heads 7"),
        ({"values_are_keys": True}, "values_are_keys needs values as wide as keys"),
    ],
)
def test_sections_that_make_no_model(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.model_validate(MIMO.model_dump() | changes)


# ---- vLLM's groups ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ranks", "blocks", "page"),
    [
        ("gemma-4-26b-a4b", 1, (1, 2), 32),
        ("gemma-4-26b-a4b", 8, (2, 1), 32),  # a KV head each, of 512 and of 256
        ("gemma-4-31b", 4, (1, 2), 32),
        ("gemma-4-31b", 8, (1, 1), None),
        ("mimo-v2-flash", 4, (1, 2), 32),
        ("mimo-v2-flash", 8, (1, 1), None),
        ("step-3.7-flash", 4, (1, 1), None),
    ],
)
def test_blocks_of_a_page(name: str, ranks: int, blocks: tuple[int, int], page: int | None) -> None:
    model = MODELS[name]
    assert blocks_of_page(model, ranks) == blocks
    groups = kv_groups_of(pool_of(ranks), model, H100)
    assert groups is not None
    assert groups.page_tokens == page
    windowed = 3 if name.startswith("step") else 5
    assert (groups.full, groups.windowed) == (blocks[0], windowed * blocks[1])


def test_padded_blocks_where_bytes_are_no_multiple() -> None:
    odd = MIMO.model_copy(update={"window_heads": WindowHeadsSpec(attention_heads=64, kv_heads=4, head_dim=256)})
    # 4 x 320 and 4 x 512 elements: neither is a multiple of the other.
    assert blocks_of_page(odd, 1) == (1, 1)
    groups = kv_groups_of(pool_of(), odd, H100)
    assert groups == KvGroups(9, 1, 5, 128, block_bytes=4 * 512 * 2)


def _python_of_vllm() -> str | None:
    engine = ENGINES["vllm-0.33.0"]
    return str(engine.python()) if engine.is_there() else os.environ.get(engine.variable)


@pytest.mark.skipif(_python_of_vllm() is None, reason="no environment with vLLM 0.33.0")
def test_groups_are_vllm_s() -> None:
    shapes = [(name, ranks) for name in NAMES for ranks in (1, 2, 4, 8, 16)]
    cases = []
    for name, ranks in shapes:
        model, part = MODELS[name], shard(MODELS[name], ranks)
        windowed = round(model.layers * model.sliding_window_layer_fraction)
        kinds = [
            [layers, heads.kv_heads, heads.key_dim, heads.value_dim]
            for layers, heads in (
                (model.layers - windowed, full_heads(model, part)), (windowed, window_heads(model, part))
            )
        ]  # fmt: skip
        cases.append([*kinds, 16, model.sliding_window_tokens])
    script = Path(__file__).with_name("vllm_groups.py")
    done = subprocess.run(
        [str(_python_of_vllm()), str(script), json.dumps(cases)], capture_output=True, text=True, check=True
    )
    for (name, ranks), made in zip(shapes, json.loads(done.stdout.strip().splitlines()[-1]), strict=True):
        planned = kv_groups_of(pool_of(ranks), MODELS[name], H100)
        assert planned is not None
        page = planned.page_tokens or 16
        for windowed, blocks in ((False, planned.full), (True, planned.windowed)):
            kind = [group for group in made if group["windowed"] == windowed]
            assert blocks == sum(page // group["block_tokens"] for group in kind)
            assert max(group["layers"] for group in kind) <= planned.layers
        assert {group["block_bytes"] for group in made} == {page * (planned.block_bytes or 0.0)}


def test_a_pool_of_the_size_that_vllm_logged() -> None:
    """50 GiB of KV of Gemma 4 31B were logged as about 55,000 tokens: 16 for each block of one of six groups.

    Source: vLLM's issue 43308, its version 0.20; later versions log what requests of the longest size take.
    """
    groups = kv_groups_of(pool_of(), GEMMA_31B, H100)
    assert groups is not None
    assert groups.block_bytes is not None
    blocks = 50 * 2**30 / (groups.layers * groups.block_bytes * (groups.page_tokens or 0))
    assert blocks // 6 * 16 == pytest.approx(55_000, rel=0.01)


@given(
    name=st.sampled_from(NAMES), ranks=st.sampled_from([1, 2, 4, 8]), context=st.floats(1, 300_000),
    page=st.sampled_from([16, 32, 64]),
)  # fmt: skip
def test_a_block_of_any_group_takes_as_many_bytes(name: str, ranks: int, context: float, page: int) -> None:
    """A request's blocks take its KV's bytes, but for padding and pages that are not full."""
    model, part = MODELS[name], shard(MODELS[name], ranks)
    groups = kv_groups_of(pool_of(ranks, page_tokens=page), model, H100)
    assert groups is not None
    of_layer = groups.block_bytes if groups.block_bytes is not None else 2.0 * full_heads(model, part).kv_elements
    held = groups.held_tokens(context) * groups.layers * of_layer
    full, windowed = (
        f(model, ranks, "bf16") for f in (kv_bytes_per_token_per_rank, window_kv_bytes_per_token_per_rank)
    )
    needed = context * full + min(context, model.sliding_window_tokens) * windowed
    unfilled = (groups.page_tokens or 0) / 2 * full
    assert needed <= held * (1 + 1e-9)
    assert held <= (needed + unfilled) * 1.16  # 39 layers of MiMo in five groups of nine


# ---- SGLang's pools --------------------------------------------------------------------------------------------------


def test_which_windows_sglang_keeps_apart() -> None:
    pools = {name: keeps_window_pool("sglang", model) for name, model in MODELS.items()}
    assert pools == dict.fromkeys((*NAMES, "llama-4-scout"), True) | {"gemma-3-27b": False}
    # Gemma's model subtracts one from the window, those of MiMo and Step do not.
    assert [seen_tokens(MODELS[name]) for name in NAMES] == [1023, 1023, 128, 512]


def test_pools_have_bytes_of_their_own() -> None:
    """``HybridSWAPoolConfigurator``: bytes // (full layers x their bytes + ratio x window layers x theirs)."""
    engine = EngineSpec(name="sglang", swa_full_tokens_ratio=0.5, page_tokens=64)
    plan = plan_memory(MIMO, H100, tensor_parallel=8, weight_dtype=None, kv_dtype="bf16", engine=engine)
    assert plan.window_pools is not None
    spare = plan.kv_bytes + plan.window_kv_bytes
    cell = 9 * 1 * 320 * 2 + 0.5 * 39 * 1 * 320 * 2
    assert plan.window_pools.full == pytest.approx(spare // cell, abs=128)
    assert plan.window_pools == divide(spare + 1e-3, 9 * 640, 39 * 640, engine, 128)
    assert simulated(PoolSpec.model_validate({"accelerator": "h100-sxm", "engine": {"name": "sglang"}}), MIMO)


# ---- times -----------------------------------------------------------------------------------------------------------


def fitted(worker: PricedWorker) -> ScaledWorker:
    """By fitted laws."""
    return ScaledEstimator("vllm-h100-sxm", Catalogue().get("LatencyProfile", "vllm-h100-sxm").spec).worker(worker)


def priced(model: ModelSpec, ranks: int = 4) -> PricedWorker:
    return PricedWorker(
        model, H100, Parallelism(ranks), None, "bf16", VLLM, max_tokens=4096, max_sequences=64,
        max_context_tokens=100_000,
    )  # fmt: skip


def test_attention_by_hand() -> None:
    shape = attention_shape(MIMO, shard(MIMO, 4), "bf16")
    within = shape.windowed
    assert (shape.full_layers, shape.window_layers) == (9, 39)
    assert shape.decode_flops_per_pair == within.decode_flops_per_pair == 2 * 16 * (192 + 128)
    assert (shape.kv_bytes_per_token, within.kv_bytes_per_token) == (1 * 320 * 2, 2 * 320 * 2)
    step = attention_shape(STEP, shard(STEP, 8), "bf16", rereads_windows=True)
    assert step.windowed.decode_flops_per_pair == 1.5 * step.decode_flops_per_pair
    assert step.window_reads == 12.0


@pytest.mark.parametrize(
    "model", [MODELS["gemma-3-27b"], MODELS["llama-4-scout"]], ids=lambda model: model.huggingface_id
)
def test_a_section_that_says_the_same_changes_nothing(model: ModelSpec) -> None:
    same = WindowHeadsSpec(attention_heads=model.attention_heads, kv_heads=model.kv_heads, head_dim=model.head_dim)
    stated = ModelSpec.model_validate(model.model_dump() | {"window_heads": same.model_dump()})
    assert parameter_count(stated) == parameter_count(model)
    new, cached = np.array([1.0, 100.0, 4096.0]), np.array([5000.0, 0.0, 60_000.0])
    for worker in (peak_worker, fitted):
        first, two = worker(priced(model)), worker(priced(stated))
        for name, load in (("chunk_s", (new, cached)), ("decode_s", (new, 3000 * new)), ("token_s", (new,))):
            np.testing.assert_allclose(getattr(first, name)(*load), getattr(two, name)(*load), rtol=1e-9)


def test_windows_cost_what_their_heads_do() -> None:
    """Behind long contexts only full layers grow; twice the heads of a window's layers double their part."""
    worker = peak_worker(priced(STEP))
    wider = peak_worker(
        priced(
            STEP.model_copy(update={"window_heads": WindowHeadsSpec(attention_heads=192, kv_heads=16, head_dim=128)})
        )
    )
    sequences, short, long = np.array([64.0]), np.array([64 * 512.0]), np.array([64 * 4096.0])
    grown = [float((w.decode_s(sequences, long) - w.decode_s(sequences, short))[0]) for w in (worker, wider)]
    assert grown[0] == pytest.approx(grown[1], rel=1e-9)
    full_only = (
        12
        / 45
        * float(
            peak_worker(
                priced(
                    STEP.model_copy(
                        update={
                            "sliding_window_tokens": 0,
                            "window_heads": None,
                        }
                    )
                )
            ).decode_s(sequences, short)[0]
        )
    )
    parts = [float(w.decode_s(sequences, short)[0]) - full_only for w in (worker, wider)]
    assert parts[1] == pytest.approx(2 * parts[0], rel=1e-6)


def test_a_dense_ffn_in_parallel_reduces_by_itself_and_runs_first() -> None:
    joined = GEMMA_26B.model_copy(update={"moe": GEMMA_26B.moe.model_copy(update={"separate_shared": False})})
    collectives, split, tokens = Collectives(None, 1e11, 1e-5), Parallelism(2), np.array([16.0])
    more = collectives.step_s(split, GEMMA_26B, tokens) - collectives.step_s(split, joined, tokens)
    assert more == pytest.approx(30 * collectives.all_reduce_s(2.0 * 2816 * tokens, 2))
    separate, together = (fitted(priced(model, 1)) for model in (GEMMA_26B, joined))
    assert float(separate.token_s(tokens)[0]) > float(together.token_s(tokens)[0])


def test_norms_and_the_soft_cap_are_operators() -> None:
    part = shard(GEMMA_26B, 2)
    norms = next(op for op in token_operators(GEMMA_26B, part, "bf16", "bf16") if op.name == "norms")
    assert norms.layers == 7 * 30
    cap = next(op for op in sequence_operators(GEMMA_26B, part, "bf16") if op.name == "logit_softcap")
    assert cap.bytes_per_unit == 12 * 262_144
    assert not any(op.name == "logit_softcap" for op in sequence_operators(STEP, shard(STEP, 2), "bf16"))


def test_layers_take_the_law_of_their_heads() -> None:
    """Decodes and prompts of a kind of layer alone change with its law; other models take that of usual heads."""
    document = Catalogue().get("LatencyProfile", "vllm-h100-sxm").spec
    laws = document.laws
    assert laws is not None
    assert {(law.head_dim, law.window_tokens) for law in laws.other_heads} == {
        (512, 0),
        (256, 1024),
        (192, 0),
        (192, 128),
    }
    slow = [
        law.model_copy(update={"decode": law.decode.model_copy(update={"launch_s": law.decode.launch_s + 1e-3})})
        if law.head_dim == 512
        else law
        for law in laws.other_heads
    ]
    changed = document.model_copy(update={"laws": laws.model_copy(update={"other_heads": slow})})
    single, four = np.array([1.0]), np.array([4.0])
    for model, layers in ((GEMMA_26B, 5), (MIMO, 0), (STEP, 0), (MODELS["gemma-3-27b"], 0)):
        usual, other = (ScaledEstimator("x", spec).worker(priced(model, 4)) for spec in (document, changed))
        more = other.decode_s(four, 4000 * four) - usual.decode_s(four, 4000 * four)
        assert float(more[0]) == pytest.approx(layers * 1e-3, abs=1e-12)
        assert float((other.chunk_s(single, single) - usual.chunk_s(single, single))[0]) == pytest.approx(
            0.0, abs=1e-12
        )


def test_widths_without_a_law_are_said() -> None:
    document = Catalogue().get("LatencyProfile", "vllm-h100-sxm").spec
    assert document.laws is not None
    bare = document.model_copy(update={"laws": document.laws.model_copy(update={"other_heads": []})})
    said = "no law of attention with heads of 512: that of 256 prices them"
    assert said in ScaledEstimator("x", bare).compile(priced(GEMMA_26B)).warnings
    assert said not in ScaledEstimator("x", document).compile(priced(GEMMA_26B)).warnings
    worker = priced(GEMMA_26B)
    narrow = PricedWorker(**{**vars(worker), "kv_dtype": "fp8"})
    another = "no law of attention with heads of 512 and a KV cache of fp8: that of bf16 prices it"
    assert another in ScaledEstimator("x", document).compile(narrow).warnings


def test_devices_refuse_layers_of_several_widths() -> None:
    worker = WorkerDevices(DevicesSpec.model_construct(), {}, {})
    profile = Catalogue().get("LatencyProfile", "roofline").spec
    with pytest.raises(DevicesRefused, match="layers of several head widths"):
        compose(worker, GEMMA_31B, H100, profile, Parallelism(2), None, "bf16")
