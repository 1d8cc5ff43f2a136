"""Compressed attention (DeepSeek-V4): sizes by hand and by vLLM's own code, memory of both engines, and prices."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.device_memory.compressed_pools import (
    COMPRESSED_RATIO,
    MOST_ASIDE,
    Blocks,
    compressed_ratio,
    set_aside_bytes,
    sglang_bytes,
    vllm_blocks,
)
from hisearch.latency.device_memory.plan import DoesNotFit, plan_memory
from hisearch.latency.devices.build import DevicesRefused, WorkerDevices
from hisearch.latency.devices.compose import compose
from hisearch.latency.estimator import build_estimator
from hisearch.latency.estimators.scaled import ScaledEstimator
from hisearch.latency.matrices.compressed import entry_bytes, index_entry_bytes, state_bytes_per_token
from hisearch.latency.parameters import (
    active_parameter_count,
    kv_bytes_per_token_per_rank,
    matrices,
    parameter_count,
    weight_bytes_per_rank,
    window_kv_bytes_per_token_per_rank,
)
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import InvalidParallelism, Parallelism, shard
from hisearch.latency.workers.roofline import attained_worker
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import DevicesSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.models.pages import entries_warnings, kept_page_tokens
from tests.engines.environments import ENGINES

CATALOGUE = Catalogue()
FLASH: ModelSpec = CATALOGUE.get("Model", "deepseek-v4-flash").spec
PRO: ModelSpec = CATALOGUE.get("Model", "deepseek-v4-pro").spec
H200, B200 = (CATALOGUE.get("Accelerator", name).spec for name in ("h200", "b200"))
ROOFLINE = CATALOGUE.get("LatencyProfile", "roofline").spec
assert FLASH.compressed_attention is not None
assert PRO.compressed_attention is not None
COMPRESSED = FLASH.compressed_attention
PAGES = {"vllm": EngineSpec(name="vllm", page_tokens=256), "sglang": EngineSpec(name="sglang", page_tokens=256)}
#: compress_ratios of the published config.json, without the drafting head's.
RATIOS = {"flash": [0, 0, *[4, 128] * 20, 4], "pro": [128, 128, *[4, 128] * 29, 4]}


def priced(model: ModelSpec = FLASH, **settings: Any) -> PricedWorker:
    question: dict[str, Any] = {
        "accelerator": H200, "split": Parallelism(8), "weight_dtype": None, "kv_dtype": "fp8",
        "engine": PAGES["vllm"], "max_tokens": 8192, "max_sequences": 256, "max_context_tokens": 500_000,
    }  # fmt: skip
    return PricedWorker(model, **question | settings)


def test_parameters_are_the_published_ones() -> None:
    assert parameter_count(FLASH) == pytest.approx(284.33e9, rel=1e-4)  # llama.cpp, issue 22319
    assert parameter_count(PRO) == pytest.approx(1.6e12, rel=0.02)
    assert active_parameter_count(FLASH) == pytest.approx(13e9, rel=0.03)
    assert active_parameter_count(PRO) == pytest.approx(49e9, rel=0.01)


def test_matrices_by_hand() -> None:
    """Elements of Flash's attention in all layers: hidden 4096, 64 heads of 512, groups of 8, 21 and 20 layers."""
    elements = {matrix.name: matrix.elements for matrix in matrices(FLASH, shard(FLASH, 1))}
    assert elements["qkv_down_proj"] == 43 * 4096 * (1024 + 512)
    assert elements["q_up_proj"] == 43 * 1024 * 64 * 512
    assert elements["o_down_proj"] == 43 * (64 * 512 // 8) * 8 * 1024
    assert elements["o_up_proj"] == 43 * 8 * 1024 * 4096
    assert elements["compress_4_proj"] == 21 * 4096 * 4 * 512
    assert elements["compress_128_proj"] == 20 * 4096 * 2 * 512
    assert elements["index_q_proj"] == 21 * 1024 * 64 * 128
    assert elements["index_weights_proj"] == 21 * 4096 * 64
    assert elements["index_compress_proj"] == 21 * 4096 * 4 * 128
    assert elements["streams_proj"] == 2 * 43 * (6 * 4) * (4 * 4096)


def test_weights_keep_a_format_for_each_group() -> None:
    """Experts in MXFP4 (4.25 bits), dense matrices in fp8, the rest in 16 bits, what mixes streams in 32."""
    experts = 43 * 256 * 3 * 4096 * 2048
    dense = 43 * (4096 * 1536 + 1024 * 32768 + 4096 * 8192 + 8192 * 4096) + 21 * 1024 * 8192 + 43 * 3 * 4096 * 2048
    wide = 43 * 4096 * 256 + 21 * 4096 * (2048 + 64 + 512) + 20 * 4096 * 1024 + 87 * 4096 + 2 * 129280 * 4096
    streams = 86 * 24 * 16384
    by_hand = experts * (0.5 + 1 / 32) + dense + 2 * wide + 4 * streams
    assert weight_bytes_per_rank(FLASH, 1, "fp4") == pytest.approx(by_hand, rel=1e-9)
    # Published with a drafting head of one layer: 160 GB, and Pro's 865 GB.
    head = 256 * 3 * 4096 * 2048 * (0.5 + 1 / 32)
    assert by_hand + head == pytest.approx(160e9, rel=0.02)
    head = 384 * 3 * 7168 * 3072 * (0.5 + 1 / 32)
    assert weight_bytes_per_rank(PRO, 1, "fp4") + head == pytest.approx(865e9, rel=0.02)
    assert weight_bytes_per_rank(FLASH, 1, "fp8") > 1.8 * by_hand


@given(st.sampled_from([1, 2, 4, 8]))
def test_split_matrices_add_up(ranks: int) -> None:
    """What is split adds up to the whole; what every rank holds is held as often."""
    whole = {matrix.name: matrix.elements for matrix in matrices(FLASH, shard(FLASH, 1))}
    for matrix in matrices(FLASH, shard(FLASH, ranks)):
        held = whole[matrix.name] / matrix.elements
        assert held in (1, ranks), matrix.name


def test_ranks_beyond_the_groups_of_the_output_are_refused() -> None:
    with pytest.raises(InvalidParallelism, match="output_groups 8"):
        shard(FLASH, 16)
    assert shard(PRO, 16).heads == 8


def test_bytes_of_a_token_by_hand() -> None:
    """584 bytes an entry, a page of 256 tokens padded to 576 bytes; 132 bytes an index entry."""
    assert entry_bytes(FLASH, COMPRESSED, "fp8") == 448 + 64 * 2 + 8
    assert index_entry_bytes(COMPRESSED) == 132
    entries = (21 * 37440 + 20 * 1728) / 256 + 21 * 132 / 4
    assert kv_bytes_per_token_per_rank(FLASH, 8, "fp8") == pytest.approx(entries)
    assert window_kv_bytes_per_token_per_rank(FLASH, 8, "fp8") == 43 * 149760 / 256
    assert entry_bytes(FLASH, COMPRESSED, "bf16") == 1024
    halves = [kv_bytes_per_token_per_rank(FLASH, Parallelism(2, pipeline=stages), "fp8") for stages in (1, 43)]
    assert halves[0] == pytest.approx(43 * halves[1])


@pytest.mark.parametrize(("model", "block"), [(FLASH, 1_002_240), (PRO, 1_435_968)])
def test_vllm_blocks_by_hand(model: ModelSpec, block: int) -> None:
    assert model.compressed_attention is not None
    blocks = vllm_blocks(model, model.compressed_attention, "fp8")
    indexed, other = (kind.layers for kind in model.compressed_attention.entries)
    assert blocks.block_bytes == block == indexed * (37440 + 8640) + other * 1728
    assert [group.groups for group in blocks.windowed] == [2, 1, 1]
    # 4,096 pages of entries, 2 x 259 of windows, 4,099 and 2,065 of states.
    assert blocks.request_blocks(1_048_576, 16_384) == 4096 + 518 + 4099 + 2065


@pytest.mark.slow
def test_vllm_groups_are_its_own() -> None:
    engine = ENGINES["vllm-0.33.0"]
    if not engine.is_there():
        pytest.skip(f"NOT CHECKED: no {engine.title}; run `make test-engines`, or set {engine.variable} to its Python")
    tokens = [(1_048_576, 16_384), (30_000, 8192), (300, 2)]
    program = Path(__file__).with_name("vllm_compressed_groups.py")
    question = json.dumps({"models": RATIOS, "tokens": tokens})
    said = subprocess.run([engine.python(), program, question], check=True, capture_output=True, text=True).stdout
    for name, model in (("flash", FLASH), ("pro", PRO)):
        assert model.compressed_attention is not None
        blocks = vllm_blocks(model, model.compressed_attention, "fp8")
        assert json.loads(said.splitlines()[-1])[name] == {
            "block_bytes": blocks.block_bytes, "groups": 5,
            "request_blocks": [blocks.request_blocks(*each) for each in tokens],
        }  # fmt: skip


def test_blocks_of_a_public_start() -> None:
    """vLLM 0.22 on two GH200 asks for 6.66 GiB for 30,000 tokens, and says that 5.44 GiB hold 13,528 (issue 44376).

    Blocks are 0.33.0's in number; each was 22 times a page of every kind then, 5 % larger.
    """
    blocks, former = vllm_blocks(FLASH, COMPRESSED, "fp8"), 22 * (37440 + 8640 + 1728)
    assert blocks.request_blocks(30_000, 16_384) * former / 2**30 == pytest.approx(6.66, abs=0.005)
    assert blocks.request_blocks(13_528, 16_384) * former / 2**30 == pytest.approx(5.44, abs=0.005)
    assert former / blocks.block_bytes == pytest.approx(1.049, abs=1e-3)


def test_space_for_kv_is_what_a_public_start_had() -> None:
    """vLLM 0.25.0 on 8 x B200: 20.43 requests of 1,048,576 tokens (issue 51454), with the blocks of before 0.33."""
    engine = PAGES["vllm"].model_copy(update={"memory_fraction": 0.95, "chunk_tokens": 8192})
    plan = plan_memory(
        FLASH, B200, tensor_parallel=8, parallelism=Parallelism(8, expert=8), weight_dtype=None, kv_dtype="fp8",
        engine=engine, engine_version="0.25.0",
    )  # fmt: skip
    request = vllm_blocks(FLASH, COMPRESSED, "fp8").request_blocks(1_048_576, 8192) * 22 * (37440 + 8640 + 1728)
    assert (plan.kv_bytes + plan.window_kv_bytes) / request == pytest.approx(20.43, rel=0.02)


def test_sglang_bytes_of_a_public_start() -> None:
    """A log of SGLang of August 2026: 7,705.45 bytes a token, with drafts (rings of 16), before pages were padded."""
    indexed, other = COMPRESSED.entries
    entries = indexed.layers * (584 + 132) / 4 + other.layers * 584 / 128
    window = 43 * 584 + state_bytes_per_token(FLASH, COMPRESSED, indexed) * 16 / 256
    assert entries + COMPRESSED_RATIO * window == pytest.approx(7705.45, abs=0.005)
    each = sglang_bytes(FLASH, COMPRESSED, "fp8", PAGES["sglang"])
    assert each.full == kv_bytes_per_token_per_rank(FLASH, 1, "fp8")
    assert each.windowed == 43 * 149760 / 256 + 21 * 4 * 640 * 4 * 8 / 256
    assert each.fixed == 20 * 2 * 512 * 4 * 128 * (256 + 3)
    drafting = EngineSpec.model_validate(
        {"name": "sglang", "version": "0.5.23", "page_tokens": 256,
         "speculation": {"method": "mtp", "draft_tokens": 3, "acceptance": [0.7] * 3}}
    )  # fmt: skip
    drafted = sglang_bytes(FLASH, COMPRESSED, "fp8", drafting)
    assert drafted.full == pytest.approx(each.full * 44 / 43)
    assert drafted.windowed == pytest.approx((43 * 149760 / 256 + 21 * 4 * 640 * 4 * 16 / 256) * 44 / 43)
    # Rows in whole entries of 128 tokens.
    assert drafted.fixed == 20 * 2 * 512 * 4 * (258 * 256 + 128)


def test_sglang_has_two_pools() -> None:
    plan = plan_memory(
        FLASH, H200, tensor_parallel=4, weight_dtype=None, kv_dtype="fp8", engine=PAGES["sglang"]
    )  # fmt: skip
    pools = plan.window_pools
    assert pools is not None
    assert pools.full == plan.kv_capacity_tokens
    assert pools.windowed == int(pools.full * 0.1) // 256 * 256
    assert pools.window_tokens == 128
    assert compressed_ratio(0.8) == 0.1
    assert compressed_ratio(0.3) == 0.3
    each = sglang_bytes(FLASH, COMPRESSED, "fp8", PAGES["sglang"])
    taken = each.fixed + pools.full * each.full + pools.windowed * each.windowed
    available = plan.kv_bytes + plan.window_kv_bytes
    assert taken == pytest.approx(available)


@given(st.integers(1, 4096), st.integers(256, 65536), st.floats(1e8, 1e12))
def test_what_is_set_aside_grows_with_requests_to_half_of_the_pool(requests: int, chunk: int, space: float) -> None:
    blocks = Blocks(1e6, vllm_blocks(FLASH, COMPRESSED, "fp8").windowed)

    def aside(running: int) -> float:
        engine = EngineSpec(name="vllm", max_running_requests=running, chunk_tokens=max(chunk, running))
        return set_aside_bytes(blocks, space, engine)

    assert aside(requests) <= aside(requests + 1) <= MOST_ASIDE * space
    assert aside(requests) % 1e6 == 0


def test_more_memory_never_holds_fewer_tokens() -> None:
    def capacity(engine: str, fraction: float) -> int:
        settings = PAGES[engine].model_copy(update={"memory_fraction": fraction})
        return plan_memory(
            FLASH, H200, tensor_parallel=4, weight_dtype=None, kv_dtype="fp8", engine=settings
        ).kv_capacity_tokens

    for engine in PAGES:
        tokens = [capacity(engine, fraction) for fraction in (0.5, 0.6, 0.7, 0.8)]
        assert tokens == sorted(tokens)
        assert all(count % 256 == 0 for count in tokens)
    with pytest.raises(DoesNotFit):
        capacity("vllm", 0.2)


def test_a_decode_reads_its_window_and_its_entries() -> None:
    """By hand: a request of 100,000 tokens reads 128, at most 512 of 25,000, and 781 entries."""
    worker = attained_worker(ROOFLINE, priced())
    single, context = np.array([1.0]), np.array([100_000.0])
    rate, entry = worker.rates.decode_attention, 584.0
    query = 2 * 8 * 512 * 2.0
    window = max(128 * 4 * 64 * 512 / _peak(rate), (128 * entry + query) / rate.bytes_per_s)
    chosen = max(512 * 4 * 64 * 512 / _peak(rate), 512 * entry / rate.bytes_per_s)
    scored = max(25_000 * 2 * 64 * 128 / (rate.peak_flops["fp8"] * rate.flops_share), 25_000 * 132 / rate.bytes_per_s)
    everything = max(781.25 * 4 * 64 * 512 / _peak(rate), 781.25 * entry / rate.bytes_per_s)
    by_hand = 43 * window + 21 * (chosen + scored) + 20 * everything
    assert worker.decode_s(single, context) == pytest.approx(by_hand)


def _peak(rate: Any) -> float:
    return float(rate.peak_flops["bf16"] * rate.flops_share)


@pytest.mark.parametrize("profile", ["roofline", "vllm-h200", "sglang-h200"])
def test_longer_contexts_cost_more_and_far_less_than_full_attention(profile: str) -> None:
    estimator = build_estimator(profile, CATALOGUE.get("LatencyProfile", profile).spec)
    worker = estimator.worker(priced())  # type: ignore[attr-defined]
    sequences = np.full(5, 16.0)
    decodes = worker.decode_s(sequences, 16.0 * np.array([1e3, 1e4, 1e5, 3e5, 1e6]))
    assert np.all(np.diff(decodes) > 0)
    chunks = worker.chunk_s(np.full(5, 2048.0), np.array([0.0, 1e4, 1e5, 3e5, 1e6]))
    assert np.all(np.diff(chunks) > 0)
    pieces = worker.chunk_s(np.array([1024.0, 1024.0]), np.array([0.0, 1024.0]))
    assert pieces.sum() == pytest.approx(worker.chunk_s(np.array([2048.0]), np.array([0.0]))[0], rel=0.1)
    assert chunks[-1] < 50 * chunks[0]  # 1 M tokens behind it, where full attention takes 500 times as long


@pytest.mark.parametrize("profile", ["vllm-h200", "sglang-h200", "vllm-b200", "sglang-b200", "trtllm-b200"])
def test_fitted_laws_state_their_errors(profile: str) -> None:
    laws = CATALOGUE.get("LatencyProfile", profile).spec.laws
    terms = laws.entries_attention["compressed"]["fp8"]
    assert terms.error is not None
    assert terms.error.decode_median < 0.1
    assert terms.error.prefill_median < 0.15


def test_with_a_law_the_block_is_not_priced_twice() -> None:
    profile = CATALOGUE.get("LatencyProfile", "vllm-h200").spec
    worker = ScaledEstimator("vllm-h200", profile).worker(priced())
    assert worker.entries is not None
    names = {op.name for op in worker.elementwise_ops()}
    assert names.isdisjoint({"rotary_kv_write", "compress_4", "compress_128"})
    assert {"streams_in", "streams_out"} <= names
    without = ScaledEstimator(
        "vllm-h200", profile.model_copy(update={"laws": profile.laws.model_copy(update={"entries_attention": {}})})
    )
    assert {"rotary_kv_write", "compress_4"} <= {op.name for op in without.worker(priced()).elementwise_ops()}
    warnings = without.compile(priced()).warnings
    assert "no law of compressed or block-sparse attention: the roofline prices it" in warnings


def test_what_is_approximated_is_said() -> None:
    assert kept_page_tokens(FLASH) == 256
    assert any("fp8 unless told otherwise" in text for text in entries_warnings("sglang", "bf16", FLASH))
    assert any("set aside" in text for text in entries_warnings("vllm", "fp8", FLASH))
    assert entries_warnings("sglang", "fp8", FLASH) == ()
    assert any("not known" in text for text in entries_warnings("trtllm", "fp8", FLASH))


def test_attached_devices_have_no_law() -> None:
    devices = WorkerDevices(DevicesSpec(attached={}), {})
    with pytest.raises(DevicesRefused, match="compressed or block-sparse"):
        compose(devices, FLASH, H200, ROOFLINE, Parallelism(8), None, "fp8")


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"kv_heads": 2}, "one KV head"),
        ({"compressed_attention": None}, "needs a compressed_attention section"),
        ({"attention": "gqa", "compressed_attention": None}, "residual_streams above 1"),
        ({"sliding_window_tokens": 128}, "neither linear_attention nor sliding_window_tokens"),
        ({"layers": 40}, "more than 40 layers"),
    ],
)
def test_contradictions_are_refused(update: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSpec.model_validate(FLASH.model_dump() | update)
