"""The roofline estimator: closed forms, monotonicity and scaling (law L7), tables against direct evaluation, sanity."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import (
    A100,
    DEEPSEEK_V3,
    GPT_OSS_120B,
    H100,
    H200,
    LLAMA_8B,
    LLAMA_70B,
    MODELS,
    PROFILE,
    QWEN3_30B_A3B,
    SGLANG,
    VLLM,
)

from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import build_estimator
from hisearch.latency.estimators.roofline import RooflineEstimator
from hisearch.latency.operators import attention_pairs, windowed_pairs
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import decode_step_seconds, step_seconds
from hisearch.latency.workers.roofline import compute_dtype, peer_collectives
from hisearch.specs.documents.catalogue import Catalogue, shipped_root

ROOFLINE = RooflineEstimator("test", PROFILE)
MILLION = 10**6
CATALOGUE = Catalogue(shipped_root())
IDS = {"ids": lambda m: m.huggingface_id}


def compiled(model=LLAMA_8B, accelerator=H100, *, tp=1, engine=VLLM, weight_dtype=None, **limits) -> CompiledCosts:
    sizes = {"max_tokens": 16384, "max_sequences": 256, "max_context_tokens": MILLION, **limits}
    return ROOFLINE.compile(PricedWorker(model, accelerator, Parallelism(tp), weight_dtype, "bf16", engine, **sizes))


def worker(model, tp=1):
    return ROOFLINE.worker(PricedWorker(model, H100, Parallelism(tp), None, "bf16", VLLM, 16384, 256, MILLION))


COMPILED = {m.huggingface_id: compiled(m, tp=8) for m in MODELS}


def test_table_shapes_and_zero_rows():
    costs = compiled().seconds
    assert costs.token_s.shape == (16385,)
    assert costs.sequence_s.shape == (257,)
    assert costs.token_s[0] == costs.sequence_s[0] == 0.0
    assert not costs.decode_s[0].any()
    for table in costs[2:6]:
        assert table.dtype == np.float64
        assert table.flags.c_contiguous
        assert np.isfinite(table).all()
        assert (table >= 0).all()


def test_batch_of_one_is_bound_by_reading_the_weights():
    """L7: one token costs the matrices' bytes over attained bandwidth, and its launches."""
    matrices = 2 * 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336)
    launches = 32 * (4 * 2e-6 + 4 * 1e-6 + 4e-6) + 1e-6
    expected = matrices / (3.35e12 * 0.82) + launches
    assert compiled().seconds.token_s[1] == pytest.approx(expected, rel=2e-3)


def test_large_batches_are_bound_by_arithmetic():
    slope = np.diff(compiled().seconds.token_s)[-1]
    gemms = 2 * 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) / (989e12 * 0.7)
    assert gemms < slope < 1.15 * gemms


def test_prefill_attention_closed_form():
    seconds = worker(LLAMA_8B).chunk_s(np.array([8192.0]), np.array([0.0]))[0]
    pairs = 8192 * 8193 / 2
    assert seconds == pytest.approx(32 * 4 * 32 * 128 * pairs / (989e12 * 0.5))


def test_decode_attention_closed_form():
    seconds = worker(LLAMA_8B).decode_s(np.array([64.0]), np.array([65536.0]))[0]
    moved = 65536 * 4096 + 64 * 2 * 4096 * 2
    assert seconds == pytest.approx(32 * moved / (3.35e12 * 0.7))


def test_mla_decodes_in_latent_space():
    """One latent of 576 elements serves all 16 heads of a rank: its bytes once, its FLOPs per head."""
    seconds = worker(DEEPSEEK_V3, tp=8).decode_s(np.array([1.0]), np.array([1e6]))[0]
    by_bytes, by_flops = 1e6 * 1152 / (3.35e12 * 0.7), 1e6 * 2 * 16 * 1088 / (989e12 * 0.5)
    assert seconds == pytest.approx(61 * max(by_bytes, by_flops), rel=1e-3)


def test_mla_prefill_decompresses_what_is_cached():
    direct = worker(DEEPSEEK_V3, tp=8)
    new, cached = np.array([512.0]), np.array([8192.0])
    pairs = attention_pairs(new, cached)[0]
    flops = pairs * 2 * 16 * (192 + 128) + 8192 * 2 * 512 * 16 * (128 + 128)
    assert direct.chunk_s(new, cached)[0] == pytest.approx(61 * flops / (989e12 * 0.5))


@given(st.integers(1, 600), st.integers(0, 600), st.integers(1, 300))
def test_windowed_pairs_are_counted_one_by_one(new, cached, window):
    counted = sum(min(cached + i, window) for i in range(1, new + 1))
    assert windowed_pairs(np.float64(new), np.float64(cached), float(window)) == counted


def test_all_reduces_close_the_form():
    costs, alone = compiled(LLAMA_70B, tp=2), worker(LLAMA_70B, tp=2)
    tokens = 4096
    operators = alone._operators(alone.token_ops, np.array([float(tokens)]))[0]
    collectives = 161 * (8e-6 + 2 * 1e-6 + 1.0 * tokens * 8192 * 2 / (450e9 * 0.7))
    assert costs.seconds.token_s[tokens] == pytest.approx(operators + collectives + 80 * 4e-6)


def with_latency(accelerator, latency_s):
    link = accelerator.peer_link.model_copy(update={"latency_s": latency_s})
    return accelerator.model_copy(update={"peer_link": link})


@pytest.mark.parametrize(
    ("split", "steps"),
    [
        (Parallelism(tensor=2), 2 * 161 + 1),  # there and back for each all-reduce, once for the logits
        (Parallelism(tensor=8), 2 * 3 * 161 + 3),
        (Parallelism(tensor=2, pipeline=2), 2 * 161 + 1 + 1),
        (Parallelism(tensor=1, pipeline=4), 3),
        (Parallelism(tensor=2, attention_data=2), 2 * 81 + 80 * 2 * 2 + 1),  # gathered and scattered over four ranks
    ],
    ids=str,
)
def test_steps_of_collectives_and_sends_take_the_links_latency(split, steps):
    """1 ms more a step, where nothing was measured."""
    slow, fast = (
        ROOFLINE.compile(PricedWorker(LLAMA_70B, with_latency(H100, s), split, None, "bf16", VLLM, 64, 8, 4096))
        for s in (1e-3, 0.0)
    )
    more_s = slow.seconds.token_s[1] - fast.seconds.token_s[1] + slow.seconds.sequence_s[1] - fast.seconds.sequence_s[1]
    assert more_s == pytest.approx(1e-3 * steps)


@pytest.mark.parametrize(("split", "sends"), [(Parallelism(tensor=2), 0), (Parallelism(tensor=2, pipeline=2), 1)])
def test_measured_collectives_have_the_latency_in_their_tables(split, sends):
    """What no table has, a send between stages, takes it; 12 us of it in all on the link that was measured."""
    profile = CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec
    card = CATALOGUE.get("Accelerator", "h100-sxm").spec
    usual, slow = (
        build_estimator("test", profile).compile(
            PricedWorker(LLAMA_70B, accelerator, split, None, "bf16", VLLM, 64, 8, 4096)
        )
        for accelerator in (card, with_latency(card, card.peer_link.latency_s + 1e-3))
    )
    assert slow.seconds.token_s[1] - usual.seconds.token_s[1] == pytest.approx(1e-3 * sends)
    peers = peer_collectives(profile, card)
    assert peers.send_s(np.zeros(1))[0] == 12e-6


@pytest.mark.parametrize("name", CATALOGUE.names("LatencyProfile"))
def test_shipped_sends_take_as_long_with_the_link_s_latency(name):
    """Of profiles with measured collectives: 12 us and the bytes, whatever the link."""
    profile = CATALOGUE.get("LatencyProfile", name).spec
    if profile.laws is None or profile.laws.collectives is None:
        return
    card = CATALOGUE.get("Accelerator", profile.laws.accelerator).spec
    assert profile.all_reduce.alpha_s + card.peer_link.latency_s == 12e-6


def test_more_ranks_take_longer_to_agree():
    """Fixed costs of an all-reduce rise with the logarithm of the ranks, from 2 to 72."""
    peers = peer_collectives(PROFILE, H100)
    fixed = [float(peers.all_reduce_s(np.zeros(1), ranks)[0]) for ranks in (1, 2, 4, 8, 72)]
    assert fixed == pytest.approx([0.0, *(8e-6 + 2 * steps * 1e-6 for steps in (1, 2, 3, 7))])


@pytest.mark.parametrize("model", MODELS, **IDS)
def test_more_tokens_sequences_or_context_never_cost_less(model):
    for costs in (COMPILED[model.huggingface_id].seconds, COMPILED[model.huggingface_id].joules):
        assert (np.diff(costs.token_s) >= 0).all()
        assert (np.diff(costs.sequence_s) >= 0).all()
        assert (np.diff(costs.decode_s, axis=0) >= 0).all()
        assert (np.diff(costs.decode_s, axis=1) >= 0).all()
    direct = worker(model, tp=8)
    new, cached = np.arange(1.0, 3000.0), np.arange(0.0, 3000.0)
    assert (np.diff(direct.chunk_s(new, np.float64(500.0))) >= 0).all()
    assert (np.diff(direct.chunk_s(np.float64(77.0), cached)) >= 0).all()


@pytest.mark.parametrize("model", MODELS, **IDS)
@given(new=st.integers(1, 16384), cached=st.integers(0, 100_000))
def test_chunk_table_is_within_one_percent(model, new, cached):
    costs, direct = COMPILED[model.huggingface_id].seconds, worker(model, tp=8)
    cached = min(cached, model.max_context_tokens)
    exact = costs.host_s + costs.host_per_sequence_s + costs.token_s[new] + costs.sequence_s[1]
    exact += float(direct.chunk_s(np.float64(new), np.float64(cached)))
    assert step_seconds(costs, [(new, cached)], []) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("model", MODELS, **IDS)
@given(sequences=st.integers(1, 256), mean=st.integers(1, 20_000))
def test_decode_table_is_within_one_percent(model, sequences, mean):
    costs, direct = COMPILED[model.huggingface_id].seconds, worker(model, tp=8)
    context = sequences * mean
    exact = costs.host_s + costs.host_per_sequence_s * sequences
    exact += costs.token_s[sequences] + costs.sequence_s[sequences]
    exact += float(direct.decode_s(np.float64(sequences), np.float64(context)))
    assert decode_step_seconds(costs, sequences, context) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("model", MODELS, **IDS)
def test_a_faster_machine_is_never_slower(model):
    slow, fast = COMPILED[model.huggingface_id].seconds, compiled(model, H200, tp=8).seconds
    for before, after in zip(slow[2:6], fast[2:6], strict=True):
        assert (after <= before * (1 + 1e-12)).all()


def test_more_ranks_speed_up_prefill_less_than_in_proportion():
    seconds = [step_seconds(compiled(LLAMA_70B, tp=tp).seconds, [(8192, 0)], []) for tp in (1, 2, 4, 8)]
    for few, many in itertools.pairwise(seconds):
        assert 1.0 < few / many < 2.0


def test_two_chunks_cost_less_attention_than_one_of_their_length():
    """Two prompts of 1,024 tokens are not one of 2,048."""
    costs = compiled().seconds
    assert step_seconds(costs, [(1024, 0)] * 2, [], sampling=1) < step_seconds(costs, [(2048, 0)], [], sampling=1)


def test_llama_8b_batch_one_decode_on_h100():
    tpot = decode_step_seconds(compiled().seconds, 1, 1024)
    assert 4.8e-3 < tpot < 9e-3


def test_llama_70b_eight_ranks_decode_on_h100():
    """17.6 GB of weights a rank take 5.3 ms at peak bandwidth; engines report 9 to 13 ms."""
    tpot = decode_step_seconds(compiled(LLAMA_70B, tp=8).seconds, 1, 1024)
    assert 7e-3 < tpot < 13e-3


def test_llama_8b_prefill_of_8k_on_h100():
    """2 * 7.0e9 * 8192 FLOPs of matrices and 17.6e12 of attention: 134 ms at peak."""
    assert 0.15 < step_seconds(compiled().seconds, [(8192, 0)], []) < 0.35


def test_fp8_halves_the_weights_and_doubles_the_rate():
    wide, narrow = compiled(LLAMA_70B, tp=4).seconds, compiled(LLAMA_70B, tp=4, weight_dtype="fp8").seconds
    assert 0.5 < narrow.token_s[1] / wide.token_s[1] < 0.75
    assert 0.5 < narrow.token_s[8192] / wide.token_s[8192] < 0.75


def test_fp8_without_fp8_arithmetic_saves_bytes_only_and_says_so():
    wide, narrow = compiled(accelerator=A100), compiled(accelerator=A100, weight_dtype="fp8")
    assert narrow.seconds.token_s[1] < 0.65 * wide.seconds.token_s[1]
    assert narrow.seconds.token_s[8192] == pytest.approx(wide.seconds.token_s[8192], rel=1e-6)
    assert wide.warnings == ()
    assert "no fp8 arithmetic" in narrow.warnings[0]


def test_nvfp4_is_multiplied_at_the_fp4_rate():
    fp4 = H100.model_copy(update={"peak_flops": {**H100.peak_flops, "fp4": 4e15}})
    assert compute_dtype(fp4, "nvfp4") == compute_dtype(fp4, "fp4") == "fp4"
    assert compute_dtype(H100, "nvfp4") == "bf16"
    assert compiled(LLAMA_70B, weight_dtype="nvfp4", accelerator=fp4).warnings == ()
    assert "no nvfp4 arithmetic" in compiled(LLAMA_70B, weight_dtype="nvfp4").warnings[0]


def test_int4_is_weight_only_without_a_warning():
    costs = compiled(LLAMA_70B, weight_dtype="int4")
    assert costs.warnings == ()
    assert costs.seconds.token_s[8192] == pytest.approx(compiled(LLAMA_70B).seconds.token_s[8192], rel=1e-6)


def test_moe_batch_reads_more_experts_than_a_token():
    costs = compiled(QWEN3_30B_A3B).seconds
    per_expert = 3 * 2048 * 768 * 2
    grown = (costs.token_s[64] - costs.token_s[1]) * 3.35e12 * 0.82
    assert grown == pytest.approx(48 * per_expert * (128 * (1 - (1 - 8 / 128) ** 64) - 8), rel=0.03)


def test_window_bounds_decode_reads():
    direct = worker(GPT_OSS_120B)
    per_context = np.diff(direct.decode_s(np.array([1.0, 1.0, 1.0]), np.array([50.0, 100.0, 150.0])))
    beyond = np.diff(direct.decode_s(np.array([1.0, 1.0]), np.array([1000.0, 1050.0])))
    assert beyond[0] == pytest.approx(per_context[0] / 2)


@pytest.mark.parametrize(
    ("capability", "engine", "changes", "reads"),
    [
        (8.6, VLLM, {}, 4.0),
        (12.0, VLLM, {"kv_heads": 4}, 8.0),
        (8.6, VLLM, {"kv_heads": 32}, 1.0),
        (9.0, VLLM, {}, 1.0),
        (10.0, VLLM, {}, 1.0),
        (None, VLLM, {}, 1.0),
        (8.6, SGLANG, {}, 1.0),
        (8.6, VLLM, {"attention_sinks": True}, 1.0),
        (8.6, VLLM, {"sliding_window_tokens": 0}, 1.0),
    ],
)
def test_query_heads_behind_a_window_read_their_kv_head_each_where_no_kernel_stacks_them(
    capability, engine, changes, reads
):
    windowed = {"sliding_window_tokens": 2048, "sliding_window_layer_fraction": 1.0, **changes}
    model = LLAMA_8B.model_copy(update=windowed)
    accelerator = A100.model_copy(update={"compute_capability": capability})
    priced = PricedWorker(model, accelerator, Parallelism(), None, "bf16", engine, 16384, 256, MILLION)
    context_s = np.diff(ROOFLINE.worker(priced).decode_s(np.array([64.0, 64.0]), np.array([64e3, 65e3])))[0]
    once = 2 * model.kv_heads * 128 * 2.0 * 32 * 1000
    bandwidth = A100.memory_bandwidth_bytes_per_s * PROFILE.decode_attention.bandwidth
    assert context_s == pytest.approx(reads * once / bandwidth)


@pytest.mark.parametrize("model", MODELS, **IDS)
def test_power_stays_between_idle_and_active(model):
    costs = COMPILED[model.huggingface_id]
    for batch, contexts in [([(4096, 0)], []), ([], [2000] * 64), ([(512, 3000)], [100] * 8)]:
        above_idle_w = step_seconds(costs.joules, batch, contexts) / step_seconds(costs.seconds, batch, contexts)
        assert 0 < above_idle_w < 8 * (700 - 70)
    assert costs.idle_w == 8 * 70


def test_energy_of_a_weight_bound_step():
    """Reading 2 bytes per matrix element at the attained bandwidth, 630 W above idle."""
    read_s = 2 * 32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) / (3.35e12 * PROFILE.gemm.bandwidth)
    assert compiled().joules.token_s[1] == pytest.approx(630 * read_s, rel=2e-3)
    # Memory alone draws less where the sheet says so, and the token's arithmetic a little more.
    hbm = compiled(accelerator=H100.model_copy(update={"memory_w": 300})).joules
    assert hbm.token_s[1] == pytest.approx(230 * read_s, rel=2e-2)
    assert np.all(hbm.token_s <= compiled().joules.token_s)


def test_arithmetic_and_memory_draw_together_up_to_the_limit():
    """From memory_w (300 W) at one decode, by more arithmetic, towards the limit of 700 W at a long prompt."""
    costs = compiled(LLAMA_8B, CATALOGUE.get("Accelerator", "h100-sxm").spec)
    steps = [([], [1000]), ([], [1000] * 16), ([], [1000] * 128), ([(8192, 0)], [])]
    drawn = [
        70 + step_seconds(costs.joules, *step) / step_seconds(costs.seconds._replace(host_s=0.0), *step)
        for step in steps
    ]
    assert 270 < drawn[0] < 300
    assert drawn == sorted(drawn)
    assert 600 < drawn[-1] < 700


def test_provenance_travels_with_the_numbers():
    costs = compiled(engine=SGLANG)
    assert (costs.profile, costs.evidence, costs.relative_error) == ("test", "assumed", 0.3)
    assert costs.seconds.host_s == 0.5e-3


def test_missing_engine_overhead_is_refused():
    engines = {"sglang": PROFILE.engines["sglang"]}
    estimator = RooflineEstimator("thin", PROFILE.model_copy(update={"engines": engines}))
    with pytest.raises(ValueError, match="profile thin: no overhead for engine 'vllm'; known: sglang"):
        estimator.compile(PricedWorker(LLAMA_8B, H100, Parallelism(), None, "bf16", VLLM, 8, 8, 8))


def test_missing_peak_is_refused():
    odd = H100.model_copy(update={"peak_flops": {"int8": 1e15}})
    with pytest.raises(ValueError, match="peak_flops needs bf16, fp16 or fp32; it has int8"):
        compiled(accelerator=odd)


@pytest.mark.parametrize("model", [LLAMA_8B, DEEPSEEK_V3], **IDS)
def test_compiling_is_quick(model):
    """20 ms for 16,384 tokens and 1e7 tokens of context; the best of five, as the machine may be busy."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        compiled(model, tp=8, max_context_tokens=10**7)
        best = min(best, time.perf_counter() - start)
    assert best < 0.02
