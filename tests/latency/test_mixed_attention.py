"""Mixed steps under FlashAttention 2: tiles counted by hand, and the profiles that have the law."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import DEEPSEEK_V3, LLAMA_8B
from laws import SHEET

from hisearch.latency.costs import StepCosts
from hisearch.latency.estimator import build_estimator
from hisearch.latency.knots import octaves
from hisearch.latency.laws.attention import Heads, mixed_decode_s
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.machines.laws import MixedTerms
from hisearch.specs.models.model import ModelSpec

CATALOGUE = Catalogue(shipped_root())
TERMS = MixedTerms(source="round figures", rows=64, keys=64, flops=0.5, tile_s=5e-6)
HEADS = Heads(heads=32, kv_heads=8, width=128.0, kv_bytes=8 * 2 * 128 * 2.0)
#: Of a multiprocessor, for a key of a whole tile: 64 queries, 4 x 128 operations, at half of 10 TFLOP/s.
KEY_S = 64 * 4 * 128 / (1e15 / 100 * 0.5)
PROMPTS, BEFORE = st.integers(1, 16384), st.integers(0, 100_000)
SEQUENCES, MEAN = st.integers(1, 512), st.integers(0, 100_000)


def added(prompt: float, before: float, sequences: float, mean: float, heads: Heads = HEADS) -> float:
    values = (np.array([float(value)]) for value in (prompt, before, sequences, mean))
    return float(mixed_decode_s(TERMS, SHEET, heads, *values)[0])


def tile_s(keys: float) -> float:
    return TERMS.tile_s + keys * KEY_S


def makespan(tiles: list[float]) -> float:
    """Each tile to the multiprocessor that is free first, the longest ones first."""
    free = [0.0] * SHEET.multiprocessors
    for seconds in sorted(tiles, reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


def prompt_tiles(prompt: int, before: int) -> list[float]:
    """Of every head, tiles of 64 queries, each with the keys up to its middle."""
    return [tile_s(before + start + 32) for start in range(0, prompt, 64)] * HEADS.heads


@pytest.mark.parametrize(
    ("prompt", "before", "sequences", "mean"),
    [(8192, 0, 64, 1000), (8192, 0, 256, 4000), (4096, 4096, 128, 500), (2048, 30_000, 512, 8000)],
)
def test_many_tiles_take_what_they_take_on_multiprocessors(prompt: int, before: int, sequences: int, mean: int) -> None:
    chunk = prompt_tiles(prompt, before)
    decodes = [tile_s(mean + 1)] * (sequences * HEADS.heads)
    expected = makespan(chunk + decodes) - makespan(chunk)
    longest = max(*chunk, *decodes)
    assert len(chunk) > 10 * SHEET.multiprocessors
    assert added(prompt, before, sequences, mean) == pytest.approx(expected, abs=longest)
    assert added(prompt, before, sequences, mean) == pytest.approx(
        sequences * HEADS.heads * tile_s(mean + 1) / SHEET.multiprocessors, rel=1e-9
    )


def test_one_decode_that_is_longer_than_all_else_ends_last() -> None:
    """16 tokens are 32 tiles for 100 multiprocessors: some are idle, so only the decode's own tile shows."""
    assert added(16, 0, 1, 50_000) == pytest.approx(tile_s(50_001) - tile_s(16))


def test_one_that_is_shorter_hides_where_there_is_room() -> None:
    assert added(16, 50_000, 1, 100) == 0.0


@given(prompt=PROMPTS, before=BEFORE)
def test_no_decodes_add_nothing(prompt: int, before: int) -> None:
    assert added(prompt, before, 0, 0) == 0.0


@given(prompt=PROMPTS, before=BEFORE, sequences=SEQUENCES, mean=MEAN, more=st.integers(0, 5000))
def test_decodes_add_the_more_the_more_and_the_longer_they_are(
    prompt: int, before: int, sequences: int, mean: int, more: int
) -> None:
    base = added(prompt, before, sequences, mean)
    assert base >= 0.0
    assert added(prompt, before, sequences + more, mean) >= base - 1e-15
    assert added(prompt, before, sequences, mean + more) >= base - 1e-15


@given(prompt=PROMPTS, before=BEFORE, sequences=SEQUENCES, mean=MEAN)
def test_they_add_no_more_than_by_themselves(prompt: int, before: int, sequences: int, mean: int) -> None:
    """A tile at least, on as many multiprocessors as there are."""
    alone = max(sequences * HEADS.heads / SHEET.multiprocessors, 1.0) * tile_s(mean + 1)
    assert added(prompt, before, sequences, mean) <= alone * (1 + 1e-9)


def compiled(name: str, model: ModelSpec = LLAMA_8B, split: Parallelism = Parallelism()) -> StepCosts:  # noqa: B008
    profile = CATALOGUE.get("LatencyProfile", f"vllm-{name}").spec
    accelerator = CATALOGUE.get("Accelerator", name).spec
    priced = PricedWorker(model, accelerator, split, None, "bf16", EngineSpec(name="vllm"), 4096, 64, 200_000)
    return build_estimator("mine", profile).compile(priced).seconds


def test_gpus_whose_kernel_it_is_have_it_and_others_not() -> None:
    laws = {name: CATALOGUE.get("LatencyProfile", f"vllm-{name}").spec.laws for name in ("a100-80gb", "h100-sxm")}
    assert laws["a100-80gb"].mixed_attention is not None
    assert laws["h100-sxm"].mixed_attention is None
    assert compiled("a100-80gb").mixed_decode_s is not None
    assert compiled("h100-sxm").mixed_decode_s is None


def test_the_table_has_the_law_of_all_layers_at_its_knots() -> None:
    table = compiled("a100-80gb").mixed_decode_s
    assert table is not None
    profile, accelerator = (CATALOGUE.get(kind, name).spec for kind, name in (
        ("LatencyProfile", "vllm-a100-80gb"), ("Accelerator", "a100-80gb")
    ))  # fmt: skip
    sheet = SHEET._replace(
        multiprocessors=profile.laws.multiprocessors,
        flops=profile.laws.clock_share * accelerator.peak_flops["bf16"],
        bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
    )  # fmt: skip
    axes = [octaves(axis, count) for axis, count in enumerate(table.shape)]
    for index in ((0, 0, 0, 0), (3, 2, 1, 4), tuple(count - 1 for count in table.shape)):
        at = (np.array([float(axes[axis][k])]) for axis, k in enumerate(index))
        expected = LLAMA_8B.layers * mixed_decode_s(profile.laws.mixed_attention, sheet, HEADS, *at)[0]
        assert table[index] == pytest.approx(expected, rel=1e-9)


def test_it_is_of_steps_with_prompts_and_decodes_alone() -> None:
    costs = compiled("a100-80gb")
    plain = costs._replace(mixed_decode_s=None)
    for chunks, decodes in (([(512, 0)], []), ([], [800] * 8)):
        assert step_seconds(costs, chunks, decodes) == step_seconds(plain, chunks, decodes)
    assert step_seconds(costs, [(512, 0)], [800] * 8) != step_seconds(plain, [(512, 0)], [800] * 8)


def test_mla_has_kernels_of_its_own() -> None:
    assert compiled("a100-80gb", DEEPSEEK_V3, Parallelism(8)).mixed_decode_s is None
