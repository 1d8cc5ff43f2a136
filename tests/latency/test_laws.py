"""Laws of operator families: closed forms, monotone and finite everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import CURVE, DECODE, GEMM, LAWS, MOE, PREFILL, SHEET

from hisearch.calibrate.routing import power_law
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.laws.attention import Heads, decode_s, prefill_s, relative_rate
from hisearch.latency.laws.collectives import Collectives, curve_for, curve_s
from hisearch.latency.laws.gemm import gemm_s, quantise_s
from hisearch.latency.laws.moe import POPULARITY, TILE_TOKENS, Experts, Routing, dealt, drawn, moe_s
from hisearch.latency.laws.ranges import beyond
from hisearch.latency.laws.sheet import Sheet, corrected, p_norm, waves
from hisearch.latency.priced import AcrossHosts, PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue

HEADS = Heads(heads=32, kv_heads=8, width=128.0, kv_bytes=8 * 2 * 128 * 2.0)
WIDE = {"weight_bytes": 2.0, "operand_bytes": 2.0}
COUNTS = st.integers(1, 100_000)


def scalar(value: float) -> np.ndarray:
    return np.array([float(value)])


def test_a_large_product_runs_at_its_share_of_the_peak() -> None:
    flops = 2.0 * 16384.0**3
    seconds = gemm_s(GEMM, SHEET, scalar(16384), scalar(16384), scalar(16384), **WIDE)[0]
    assert seconds == pytest.approx(flops / (SHEET.flops * GEMM.flops), rel=0.05)


def test_a_product_of_one_token_reads_its_weights() -> None:
    seconds = gemm_s(GEMM, SHEET, scalar(1), scalar(16384), scalar(16384), **WIDE)[0]
    reading = 2.0 * 16384**2 / (SHEET.bytes_per_s * GEMM.bandwidth)
    assert seconds - GEMM.launch_s - GEMM.fill_s == pytest.approx(reading, rel=0.05)


def test_quantising_activations_costs_a_pass_over_them() -> None:
    quantised = GEMM.model_copy(update={"quantise_bandwidth": 0.5})
    sizes = (scalar(4096), scalar(1024), scalar(2048))
    more = gemm_s(quantised, SHEET, *sizes, **WIDE) - gemm_s(GEMM, SHEET, *sizes, **WIDE)
    assert more[0] == pytest.approx(4096 * 2048 * 3 / (SHEET.bytes_per_s * 0.5))


def test_quantising_may_cost_each_token_however_wide() -> None:
    pass_by_bytes = GEMM.model_copy(update={"quantise_bandwidth": 0.5})
    by_token = pass_by_bytes.model_copy(update={"quantise_token_s": 20e-9})
    for width in (256, 8192):
        sizes = (scalar(4096), scalar(1024), scalar(width))
        more = gemm_s(by_token, SHEET, *sizes, **WIDE) - gemm_s(pass_by_bytes, SHEET, *sizes, **WIDE)
        assert more[0] == pytest.approx(4096 * 20e-9)


@given(m=st.integers(1, 40_000), n=st.integers(1, 30_000), k=st.integers(1, 20_000))
def test_a_kernel_of_one_tile_takes_the_waves_of_that_tile(m: int, n: int, k: int) -> None:
    only = {"tile": (32, 128), "quantisation": 1.0, "wave_s": 2e-6, "bandwidth": 1.0, "sharpness": 64.0}
    terms, fast = GEMM.model_copy(update=only), SHEET._replace(bytes_per_s=1e30)
    tiles = -(-m // 32) * -(-n // 128)
    rounds = -(-tiles // SHEET.multiprocessors)
    tile_s = 2.0 * 32 * 128 * k * SHEET.multiprocessors / (SHEET.flops * terms.flops)
    expected = terms.launch_s + terms.fill_s * k / (k + terms.fill_depth) + rounds * (tile_s + 2e-6)
    assert gemm_s(terms, fast, scalar(m), scalar(n), scalar(k), **WIDE)[0] == pytest.approx(expected, rel=1e-6)


@given(COUNTS, COUNTS, st.integers(128, 65536), st.integers(128, 65536))
def test_products_rise_with_tokens(m: int, more: int, n: int, k: int) -> None:
    pair = gemm_s(GEMM, SHEET, np.array([m, m + more], dtype=float), scalar(n), scalar(k), **WIDE)
    assert np.isfinite(pair).all()
    assert 0 < pair[0] <= pair[1]


def test_partial_tile_rounds_are_rounded_as_far_as_quantisation_says() -> None:
    tiles = np.array([1.0, 100.0, 101.0])
    assert waves(tiles, 100, 0.0).tolist() == [0.01, 1.0, 1.01]
    assert waves(tiles, 100, 1.0).tolist() == [1.0, 1.0, 2.0]


def test_a_sharp_norm_is_the_maximum_and_a_blunt_one_the_sum() -> None:
    assert p_norm(64.0, scalar(3), scalar(2))[0] == pytest.approx(3.0, rel=1e-6)
    assert p_norm(1.0, scalar(3), scalar(2))[0] == pytest.approx(5.0)
    assert p_norm(2.0, scalar(0), scalar(0))[0] == 0.0


def test_corrections_are_straight_in_the_logarithm_and_flat_beyond() -> None:
    units = np.array([1.0, 4.0, 16.0, 1000.0])
    assert corrected(np.ones(4), units, [4, 16], [1.0, 1.2]).tolist() == [1.0, 1.0, 1.2, 1.2]
    assert corrected(np.ones(1), scalar(8), [4, 16], [1.0, 1.2])[0] == pytest.approx(1.1)


def test_long_prompts_run_at_the_share_of_the_peak() -> None:
    new = 65536.0
    seconds = prefill_s(PREFILL, SHEET, HEADS, 1.0, scalar(new), scalar(0))[0]
    flops = 4 * 128 * 32 * new * (new + 1) / 2
    assert seconds == pytest.approx(flops / (SHEET.flops * PREFILL.flops), rel=0.02)


@given(COUNTS, st.integers(0, 1_000_000), COUNTS)
def test_prompt_attention_rises_with_both_lengths(new: int, cached: int, more: int) -> None:
    lengths, behind = np.array([new, new + more, new], float), np.array([cached, cached, cached + more], float)
    seconds = prefill_s(PREFILL, SHEET, HEADS, 1.0, lengths, behind)
    assert np.isfinite(seconds).all()
    assert 0 < seconds[0] <= min(seconds[1:])


def test_a_window_bounds_a_chunk() -> None:
    full = prefill_s(PREFILL, SHEET, HEADS, 1.0, scalar(1000), scalar(100_000))[0]
    near = prefill_s(PREFILL, SHEET, HEADS, 1.0, scalar(1000), scalar(0), window=1e9)[0]
    windowed = prefill_s(PREFILL, SHEET, HEADS, 1.0, scalar(1000), scalar(100_000), window=128.0)[0]
    assert windowed < full
    assert near == pytest.approx(prefill_s(PREFILL, SHEET, HEADS, 1.0, scalar(1000), scalar(0))[0])


def test_long_contexts_are_read_at_the_share_of_the_bandwidth() -> None:
    context = 10_000_000.0
    seconds = decode_s(DECODE, SHEET, HEADS, scalar(64), scalar(context))[0]
    assert seconds == pytest.approx(context * HEADS.kv_bytes / (SHEET.bytes_per_s * DECODE.bandwidth), rel=0.1)


def test_the_cache_of_a_measurement_is_not_a_step_s() -> None:
    small, large = scalar(16 * 256), scalar(64 * 65536)
    batch = scalar(16)
    assert decode_s(DECODE, SHEET, HEADS, batch, small, warm=True) < decode_s(DECODE, SHEET, HEADS, batch, small)
    warm = decode_s(DECODE, SHEET, HEADS, batch, large, warm=True)[0]
    assert warm == pytest.approx(decode_s(DECODE, SHEET, HEADS, batch, large)[0], rel=0.01)


@given(st.integers(1, 4096), st.integers(1, 10_000_000), COUNTS)
def test_decodes_rise_with_context(sequences: int, context: int, more: int) -> None:
    pair = decode_s(DECODE, SHEET, HEADS, scalar(sequences), np.array([context, context + more], float))
    assert np.isfinite(pair).all()
    assert 0 < pair[0] <= pair[1]


def test_a_cache_that_answers_sooner_hides_some_of_the_latency_from_measurements_alone() -> None:
    """A step reads its context from memory, whose latency it sees in full."""
    sooner, batch, context = DECODE.model_copy(update={"cached_fill": 0.25}), scalar(4), scalar(4 * 1000)
    seconds = {
        (name, warm): decode_s(terms, SHEET, HEADS, batch, context, warm=warm)[0]
        for name, terms in (("full", DECODE), ("sooner", sooner))
        for warm in (False, True)
    }
    assert seconds["sooner", False] == seconds["full", False]
    fill_s = DECODE.fill_s * 1000 / (1000 + DECODE.fill_tokens)
    assert seconds["full", True] - seconds["sooner", True] == pytest.approx(0.75 * fill_s, rel=0.05)


def test_each_query_head_takes_its_time_where_many_sequences_read_little() -> None:
    terms, batch, context = DECODE.model_copy(update={"head_s": 1e-7}), scalar(4096), scalar(4096)
    heads = np.array([8, 16, 32, 64])
    seconds = [decode_s(terms, SHEET, HEADS._replace(heads=int(h)), batch, context)[0] for h in heads]
    each_s = 4096 * (HEADS.kv_heads * terms.unit_s + heads * terms.head_s) / SHEET.multiprocessors
    np.testing.assert_allclose(np.array(seconds) - DECODE.launch_s, each_s, rtol=0.05)


def test_rates_between_measured_widths_are_between_theirs() -> None:
    assert [relative_rate(width, 0.7, 1.1) for width in (32, 64, 128, 256, 576)] == [0.7, 0.7, 1.0, 1.1, 1.1]
    assert 0.7 < relative_rate(96, 0.7, 1.1) < 1.0


def draws(experts: Experts, tokens: int, rounds: int, seed: int) -> np.ndarray:
    """Slow reference: used experts, load and groups of the busiest rank, means over ``rounds`` of drawing them.

    Experts have a popularity each, dealt to ranks at random, and take or leave each token by it.
    """
    rng, samples = np.random.default_rng(seed), []
    count, sets = int(experts.experts), int(experts.sets)
    popularity = np.resize(POPULARITY, count)
    for _ in range(rounds):
        share = rng.permutation(popularity) * experts.per_token / count
        entries = rng.binomial(tokens, share).reshape(sets, -1)
        groups = [np.ceil(entries / rows).sum(axis=1).max() for rows in TILE_TOKENS]
        samples.append([(entries > 0).sum(axis=1).max(), entries.sum(axis=1).max(), *groups])
    return np.mean(samples, axis=0)


@pytest.mark.parametrize(("count", "per_token", "sets"), [(256, 8, 1), (256, 8, 8), (512, 10, 4), (128, 4, 2)])
@pytest.mark.parametrize("tokens", [8, 64, 512])
def test_what_the_busiest_rank_does_is_what_draws_make_of_it(
    count: int, per_token: int, sets: int, tokens: int
) -> None:
    experts = Experts(1.0, 1.0, count, per_token, sets)
    routing, (used, load, *groups) = drawn(experts, scalar(tokens)), draws(experts, tokens, 200, seed=count)
    assert routing.used[0] == pytest.approx(used, rel=0.05)
    assert routing.load[0] == pytest.approx(load, rel=0.05)
    assert [group[0] for group in routing.groups] == pytest.approx(groups, rel=0.12)


@given(COUNTS, st.sampled_from([(8, 2), (128, 4), (256, 8), (512, 10), (896, 16)]), st.sampled_from([1, 2, 8, 32]))
def test_no_rank_does_more_than_there_is(tokens: int, of: tuple[int, int], sets: int) -> None:
    count, per_token = of
    sets = min(sets, count)
    for routing in (route(Experts(1.0, 1.0, count, per_token, sets), scalar(tokens)) for route in (dealt, drawn)):
        assert 1 <= routing.used[0] <= count / sets
        assert routing.used[0] <= routing.load[0] <= max(tokens * per_token, 1) * (1 + 1e-12)
        assert routing.load[0] >= tokens * per_token / sets * (1 - 1e-12)
        for rows, group in zip(TILE_TOKENS, routing.groups, strict=True):
            assert max(routing.used[0], routing.load[0] / rows) <= group[0] * (1 + 1e-12)


def test_few_tokens_repeat_few_experts_and_many_use_all() -> None:
    experts = Experts(2048, 768, 128, 8, 1)
    assert drawn(experts, scalar(1)).used[0] == pytest.approx(8.0)
    even = 128 * (1 - (1 - 8 / 128) ** 16)
    assert 0.75 * even < drawn(experts, scalar(16)).used[0] < even
    assert drawn(experts, scalar(1e6)).used[0] == pytest.approx(128.0)
    assert drawn(Experts(2048, 768, 8, 8, 1), scalar(1)).used[0] == pytest.approx(8.0)


@pytest.mark.parametrize(("count", "per_token"), [(128, 4), (128, 8), (256, 8), (512, 10)])
def test_as_many_experts_are_at_work_as_in_skewed_measurements(count: int, per_token: int) -> None:
    tokens = [4, 8, 16, 32, 64, 128, 256, 512, 1024]
    ours = drawn(Experts(1.0, 1.0, count, per_token, 1), np.array(tokens, float)).used
    theirs = np.array([power_law(each, count, per_token, 1)[0] for each in tokens])
    assert np.abs(ours / theirs - 1).max() < 0.18
    assert np.abs(ours / theirs - 1).mean() < 0.1


def experts_s(experts: Experts, tokens: np.ndarray) -> np.ndarray:
    return moe_s(MOE, SHEET, experts, tokens, drawn(experts, tokens), **WIDE)


def test_more_experts_at_work_take_longer() -> None:
    """16 tokens on 8 experts, as a router limited to groups may deal them, take less than on 64."""
    experts, tokens = Experts(4096, 2048, 64, 4, 1), scalar(16)
    few = Routing(scalar(8), scalar(64), tuple(scalar(8) for _ in TILE_TOKENS))
    limited = moe_s(MOE, SHEET, experts, tokens, few, **WIDE)[0]
    assert limited < experts_s(experts, tokens)[0] / 3


def test_all_experts_are_read_once() -> None:
    experts = Experts(4096, 2048, 64, 4, 1)
    seconds = experts_s(experts, scalar(512))[0]
    assert seconds > 64 * 3 * 4096 * 2048 * 2 / (SHEET.bytes_per_s * MOE.bandwidth)
    assert seconds == pytest.approx(64 * 3 * 4096 * 2048 * 2 / (SHEET.bytes_per_s * MOE.bandwidth), rel=0.1)


@given(COUNTS, COUNTS, st.sampled_from([1, 2, 8]))
def test_experts_rise_with_tokens_by_and_large(tokens: int, more: int, sets: int) -> None:
    """Tiles of an expert's tokens may fit a little better at one more token; the table is made to rise."""
    pair = experts_s(Experts(2048, 768, 128, 8, sets), np.array([tokens, tokens + more], float))
    assert np.isfinite(pair).all()
    assert 0 < pair[0] <= 1.15 * pair[1]


def test_dealing_experts_out_costs_less_than_holding_all() -> None:
    single, eight = (experts_s(Experts(2048, 768, 128, 8, n), scalar(256))[0] for n in (1, 8))
    assert eight < single / 2


@pytest.mark.parametrize(
    ("version", "former"),
    [
        ("1.1.0rc2.post2", True), ("1.2.0rc5", True), ("1.2.0rc6", False), ("1.2.0rc6.post2", False),
        ("1.2.0", False), ("nightly-dev", False), ("", False),
    ],
)  # fmt: skip
def test_versions_before_a_change_of_kernels_have_their_own_experts(version: str, former: bool) -> None:
    slow = MOE.model_copy(update={"launch_s": 1.0})
    laws = LAWS.model_copy(update={"former_moe": {"1.2.0rc6": {"bf16": slow}, "1.3.0": {"bf16": MOE}}})
    assert (laws.of_version(version).moe["bf16"] is slow) == former
    assert laws.of_version("2.0") == laws


def test_versions_before_a_change_of_kernels_have_their_own_all_reduce() -> None:
    """256 KiB on 8 ranks of a B200: 25.6 us in SGLang's table of 0.5.9 and 0.5.10, 8.5 us in that of 0.5.14."""
    laws = Catalogue().get("LatencyProfile", "sglang-b200").spec.laws

    def seconds(version: str) -> float:
        curves = laws.of_version(version).collectives
        return float(Collectives(curves, 9e11, 1e-5).all_reduce_s(scalar(2**18), 8)[0])

    assert seconds("0.5.14") == pytest.approx(8.5e-6, rel=0.05)
    assert seconds("0.5.9") == seconds("0.5.10") == pytest.approx(25.6e-6, rel=0.05)


def test_the_shipped_law_of_former_experts_is_slower_than_that_of_the_present() -> None:
    """DeepGEMM, on 8 tokens of DeepSeek V3 on 8 ranks: 178 us are in the table, 57 with the kernels that came after."""
    laws = Catalogue().get("LatencyProfile", "trtllm-b200").spec.laws
    experts, tokens = Experts(7168.0, 256.0, 256.0, 8.0, 1.0), scalar(8)
    sheet, even = Sheet(laws.multiprocessors, 4.5e15, laws.memory_bandwidth_bytes_per_s), dealt(experts, tokens)
    narrow = {"weight_bytes": 1.0, "operand_bytes": 1.0}
    then, now = (
        moe_s(of.moe["fp8_block"], sheet, experts, tokens, even, **narrow)[0]
        for of in (laws.of_version("1.1.0rc2.post2"), laws)
    )
    assert then == pytest.approx(178e-6, rel=0.25)
    assert then > 1.7 * now


def test_versions_that_quantised_separately_pay_passes_over_activations() -> None:
    """TensorRT-LLM's tables on an H100, finding a scale and applying it: 9 us for 64 tokens of 5,120, 58 for 4,096."""
    laws = Catalogue().get("LatencyProfile", "trtllm-h100-sxm").spec.laws
    assert laws.quantise is None is laws.of_version("1.2.0rc6").quantise
    passes = laws.of_version("1.0.0rc3").quantise
    sheet = Sheet(laws.multiprocessors, laws.flops, laws.memory_bandwidth_bytes_per_s)
    few, many = quantise_s(passes, sheet, np.array([64.0, 4096.0]), 5120.0)
    assert few == pytest.approx(9.3e-6, rel=0.1)
    assert many == pytest.approx(58e-6, rel=0.15)


def test_curves_meet_their_knots_and_go_on_at_the_last_slope() -> None:
    sizes = np.array([1.0, 1e3, 1e6, 1e9, 1e10])
    seconds = curve_s(CURVE, sizes)
    assert seconds[:4] == pytest.approx([5e-6, 5e-6, 20e-6, 5e-3])
    assert 5e-3 < seconds[4] <= 5e-2


def test_ranks_that_were_not_measured_take_the_next_larger_curve() -> None:
    curves = [CURVE.model_copy(update={"ranks": 8}), CURVE]
    assert [curve_for(curves, ranks).ranks for ranks in (2, 4, 8, 16)] == [2, 8, 8, 8]


def test_collectives_of_a_pass() -> None:
    model = Catalogue().get("Model", "qwen3-32b").spec
    fabric = Collectives(LAWS.collectives, 300e9, 10e-6)
    payload = 2.0 * model.hidden_size * scalar(64)
    tensor = fabric.step_s(Parallelism(2), model, scalar(64))[0]
    assert tensor == pytest.approx((2 * model.layers + 1) * fabric.all_reduce_s(payload, 2)[0])
    staged = fabric.step_s(Parallelism(2, pipeline=2), model, scalar(64))[0]
    assert staged - tensor == pytest.approx(10e-6 + payload[0] / 300e9)
    assert fabric.step_s(Parallelism(1), model, scalar(64))[0] == 0.0
    assert fabric.step_s(Parallelism(1, attention_data=8), model, scalar(64))[0] > 0.0


def test_ranks_in_two_hosts_go_about_a_collective_in_two_stages() -> None:
    """Within each host as ever; between hosts one step in each direction, every rank's share on its own port."""
    near = Collectives(LAWS.collectives, 300e9, 10e-6)
    far = replace(near, hosts=AcrossHosts(ranks_per_host=8, bytes_per_s=50e9, exchange_s=5e-6))
    payload = scalar(16e6)
    between = 5e-6 + 0.5 * 16e6 / 8 / 50e9
    assert far.all_gather_s(payload, 16) == pytest.approx(near.all_gather_s(payload, 8) + between)
    assert far.reduce_scatter_s(payload, 16) == pytest.approx(near.reduce_scatter_s(payload, 8) + between)
    assert far.all_reduce_s(payload, 16) == pytest.approx(
        far.all_gather_s(payload, 16) + far.reduce_scatter_s(payload, 16)
    )
    for ranks in (2, 8):
        assert far.all_reduce_s(payload, ranks) == near.all_reduce_s(payload, ranks)
    # Four hosts: two steps, and three quarters of the share.
    assert far.all_gather_s(payload, 32) == pytest.approx(
        near.all_gather_s(payload, 8) + 10e-6 + 0.75 * 16e6 / 8 / 50e9
    )


def test_dimensions_beyond_the_measured_are_named() -> None:
    assert beyond("o_proj", GEMM, n=4096, k=1) == []
    assert beyond("o_proj", GEMM, n=64) == ["o_proj: n 64 is outside the measured 128 to 65536"]


def test_ranks_beyond_the_measured_are_named_and_fuse_nothing() -> None:
    """GB200: all-reduces were measured on 16 ranks, gathers on 8; vLLM fuses no more than 8."""
    profile = Catalogue().get("LatencyProfile", "vllm-gb200").spec
    accelerator = Catalogue().get("Accelerator", "gb200").spec
    estimator, engine = ScaledEstimator("vllm-gb200", profile), EngineSpec(name="vllm")

    def warnings_of(split: Parallelism, model: str = "deepseek-v3") -> list[str]:
        spec = Catalogue().get("Model", model).spec
        priced = PricedWorker(spec, accelerator, split, "nvfp4", "bf16", engine, 512, 64, 10**5)
        fused = estimator.worker(priced).collectives.fused_bytes
        assert (fused > 0.0) == (split.attention_data == 1 and split.tensor <= 8)
        return [text for text in estimator.compile(priced).warnings if "no measurement of" in text]

    assert warnings_of(Parallelism(8)) == warnings_of(Parallelism(1, attention_data=8, expert=8)) == []
    assert warnings_of(Parallelism(16)) == ["no measurement of all-gathers on 16 ranks: those on 8 price them"]
    assert warnings_of(Parallelism(1, attention_data=32, expert=32)) == [
        "no measurement of all-gathers on 32 ranks: those on 8 price them",
        "no measurement of reduce-scatters on 32 ranks: those on 8 price them",
    ]
