"""Measured operator tables: read, refused with file and column, and put together as the engine runs them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hisearch.latency.costs import StepCosts
from hisearch.latency.estimators.tables import TablesEstimator
from hisearch.latency.measured.operator_tables import LAYER_CALLS, MODEL_CALLS, TableError, read_tables
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.host import HostTimes
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.models.model import ModelSpec
from tests.latency.operator_folder import LATE_US, attention_us, dense_us, write_tables

CATALOGUE = Catalogue()
LLAMA: ModelSpec = CATALOGUE.get("Model", "llama-3.1-8b").spec
QWEN_MOE: ModelSpec = CATALOGUE.get("Model", "qwen3-30b-a3b").spec
CARD = CATALOGUE.get("Accelerator", "rtx-pro-6000").spec
ENGINE = EngineSpec(name="vllm", chunk_tokens=2048, max_running_requests=64)
PROFILE: LatencyProfileSpec = CATALOGUE.get("LatencyProfile", "vllm-tables").spec
MICRO = 1e-6


def profile(folder: Path, **overhead: object) -> LatencyProfileSpec:
    bare = {"graph_batches": [], "eager_layer_s": 0.0, "versions": {}} | overhead
    engines = {"vllm": PROFILE.engines["vllm"].with_times(HostTimes(step_s=0.0)).model_copy(update=bare)}
    return PROFILE.model_copy(update={"operators": str(folder), "engines": engines})


def priced(
    model: ModelSpec = LLAMA, *, split: Parallelism | None = None, max_tokens: int = 2048, max_sequences: int = 64
) -> PricedWorker:
    split = split or Parallelism()
    return PricedWorker(model, CARD, split, None, "bf16", ENGINE, max_tokens, max_sequences, 100_000)


def compiled(constants: LatencyProfileSpec, model: ModelSpec = LLAMA, split: Parallelism | None = None) -> StepCosts:
    return TablesEstimator("test", constants).compile(priced(model, split=split)).seconds


def token_us(tokens: int) -> float:
    layer = sum(calls * dense_us(name, tokens) for name, calls in LAYER_CALLS.items() if name != "qk_norm")
    return LLAMA.layers * layer + sum(dense_us(name, tokens) for name in MODEL_CALLS)


def sequence_us(sequences: int) -> float:
    return 110.0 + 0.2 * sequences


def test_a_step_is_the_sum_of_what_was_measured(tmp_path: Path) -> None:
    costs = compiled(profile(write_tables(tmp_path)))
    prompt = token_us(256) + sequence_us(1) + LLAMA.layers * attention_us(256, 64, 0, 0)
    assert step_seconds(costs, [(256, 64)], []) == pytest.approx(prompt * MICRO, rel=1e-9)
    decodes = token_us(16) + sequence_us(16) + LLAMA.layers * attention_us(0, 0, 16, 1024)
    assert step_seconds(costs, [], [1025] * 16) == pytest.approx(decodes * MICRO, rel=1e-9)
    both = token_us(272) + sequence_us(17) + LLAMA.layers * attention_us(256, 64, 16, 1024)
    assert step_seconds(costs, [(256, 64)], [1025] * 16) == pytest.approx(both * MICRO, rel=1e-9)


def test_a_long_decode_ends_late(tmp_path: Path) -> None:
    costs = compiled(profile(write_tables(tmp_path)))
    even, skewed = [1000] * 16, [900] * 15 + [2500]
    assert sum(even) == sum(skewed)
    more = step_seconds(costs, [], skewed) - step_seconds(costs, [], even)
    assert more == pytest.approx(LLAMA.layers * LATE_US * 1500 * MICRO, rel=1e-6)
    mixed = step_seconds(costs, [(256, 64)], skewed) - step_seconds(costs, [(256, 64)], even)
    # In the mixed step half as late as alone, where it would take that much longer than the mean one.
    alone = attention_us(256, 64, 1, 2499) - attention_us(256, 64, 1, 999)
    assert mixed == pytest.approx(LLAMA.layers * 0.5 * alone * MICRO, rel=1e-6)


def test_prompts_of_one_step_fill_the_card_together(tmp_path: Path) -> None:
    """Two prompts take their pairs at the rate of their total length: less than one long one, less than each alone."""
    costs = compiled(profile(write_tables(tmp_path)))
    two = step_seconds(costs, [(512, 0)] * 2, [], sampling=1)
    assert two < step_seconds(costs, [(1024, 0)], [])
    rate = attention_us(1024, 0, 0, 0) / (1024 * 1025 / 2)
    expected = token_us(1024) + sequence_us(1) + LLAMA.layers * rate * 2 * 512 * 513 / 2
    assert two == pytest.approx(expected * MICRO, rel=1e-9)


def test_graphs_pad_and_what_is_beyond_them_is_launched_one_by_one(tmp_path: Path) -> None:
    folder = write_tables(tmp_path)
    bare = compiled(profile(folder)).token_s
    costs = compiled(profile(folder, graph_batches=[8, 64], eager_layer_s=1e-5)).token_s
    assert costs[1] == costs[8] == bare[8]
    assert costs[9] == costs[64] == bare[64]
    assert costs[65] == pytest.approx(bare[65] + LLAMA.layers * 1e-5)


def test_experts_see_the_tokens_of_all_groups(tmp_path: Path) -> None:
    constants = profile(write_tables(tmp_path, moe=True))
    alone = compiled(constants, QWEN_MOE)
    pair = compiled(constants, QWEN_MOE, Parallelism(tensor=1, attention_data=2, expert=2))
    # Half of the experts on each card, for twice the tokens: at 2,048 tokens all of them are in use in both cases.
    experts = QWEN_MOE.moe
    assert experts is not None
    split = Parallelism(tensor=1, attention_data=2, expert=2)
    worker = TablesEstimator("test", constants).worker(priced(QWEN_MOE, split=split))
    gathered = (
        2 * QWEN_MOE.layers * (12e-6 + 2 * QWEN_MOE.hidden_size * 2048 / (0.7 * CARD.peer_link.bandwidth_bytes_per_s))
    )
    tables = read_tables(tmp_path, 1)
    assert tables.moe is not None
    full, half = tables.moe(2048, 128.0), tables.moe(2048, 64.0)
    assert pair.token_s[2048] - alone.token_s[2048] == pytest.approx(gathered + QWEN_MOE.layers * (half - full))
    assert worker.shared_s(np.array([4096.0]))[0] == pytest.approx(gathered + QWEN_MOE.layers * half)


def test_without_skews_the_longest_does_not_matter(tmp_path: Path) -> None:
    costs = compiled(profile(write_tables(tmp_path, skew=False)))
    assert costs.skew_s is None
    assert costs.late is None
    assert step_seconds(costs, [], [10, 1990]) == step_seconds(costs, [], [1000, 1000])


def test_ranges_are_warned_of(tmp_path: Path) -> None:
    constants = profile(write_tables(tmp_path))
    costs = TablesEstimator("test", constants).compile(priced(max_tokens=8192, max_sequences=256))
    assert any("2,048 tokens" in warning for warning in costs.warnings)
    assert any("64 decodes" in warning for warning in costs.warnings)
    assert (np.diff(costs.seconds.token_s[2048:]) >= 0).all()


@pytest.mark.parametrize(
    ("file", "change", "expected"),
    [
        ("dense.csv", lambda frame: frame.rename(columns={"tokens": "token"}), "tokens: no such column"),
        ("dense.csv", lambda frame: frame[frame.layer != "qkv_proj"], "'qkv_proj' is missing"),
        ("dense.csv", lambda frame: frame.replace("act_fn", "activation"), "'activation' is not known"),
        ("attention.csv", lambda frame: frame.assign(time_us=-1.0), "expected a number >= 0"),
        ("attention.csv", lambda frame: frame[frame.prefill_chunk > 0], "no row of decodes alone"),
        ("per_sequence.csv", lambda frame: frame[frame.layer != "sampler"], "'sampler' is missing"),
        ("skew.csv", lambda frame: frame.drop(columns="kp"), "kp: no such column"),
    ],
)
def test_bad_tables_are_refused_by_file_and_column(tmp_path: Path, file: str, change: object, expected: str) -> None:
    folder = write_tables(tmp_path)
    path = folder / "tp1" / file
    change(pd.read_csv(path)).to_csv(path, index=False)  # type: ignore[operator]
    with pytest.raises(TableError) as caught:
        read_tables(folder, 1)
    assert expected in str(caught.value)
    assert file in str(caught.value)


def test_another_split_names_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="expected a folder tp4; there are tp1"):
        read_tables(write_tables(tmp_path), 4)


def test_a_profile_needs_its_folder() -> None:
    with pytest.raises(ValueError, match="needs operators"):
        TablesEstimator("test", PROFILE)


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        ("RTXPRO6000", []),
        ("H100 SXM", ["operator tables of h100-sxm, used for another accelerator"]),
        (
            "Abacus",
            ["operator tables of 'Abacus', which is no accelerator of the catalogue: not held against this one"],
        ),
    ],
)
def test_tables_are_held_against_the_accelerator(tmp_path: Path, hardware: str, expected: list[str]) -> None:
    constants = profile(write_tables(tmp_path))
    (tmp_path / "meta.yaml").write_text(f"hardware: {hardware}\n")
    warnings = TablesEstimator("test", constants).compile(priced()).warnings
    assert [warning for warning in warnings if "operator tables of" in warning] == expected
