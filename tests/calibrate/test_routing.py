"""Routing of measured experts: as the collector deals tokens, and rows whose routing is not known left out."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.calibrate.routing import measured, power_law
from hisearch.latency.laws.moe import TILE_TOKENS, Experts, dealt
from refit import aic_tables
from refit.aic_files import NAMES


@given(st.integers(1, 4096), st.sampled_from([(8, 2), (128, 4), (256, 8), (512, 10)]), st.sampled_from([1, 2, 8]))
def test_no_entry_is_lost_and_the_busiest_rank_has_its_share(tokens: int, of: tuple[int, int], sets: int) -> None:
    count, per_token = of
    used, load, *groups = power_law(tokens, count, per_token, sets)
    entries = tokens * per_token
    assert max(entries / sets, 1.0) <= load <= entries
    assert load == entries or sets > 1
    assert 1 <= used <= min(count / sets, load)
    for rows, group in zip(TILE_TOKENS, groups, strict=True):
        assert max(used, load / rows) <= group <= load


def test_a_few_tokens_repeat_hardly_any_expert_and_many_leave_some_out() -> None:
    """Below one entry an expert it is wider than random routing, above it narrower."""
    even = [512 * (1 - (1 - 10 / 512) ** tokens) for tokens in (8, 256)]
    assert power_law(8, 512, 10, 1)[0] > even[0]
    assert power_law(256, 512, 10, 1)[0] < 0.9 * even[1]


def test_the_skew_puts_a_half_more_on_the_busiest_of_eight_ranks() -> None:
    assert power_law(8192, 256, 8, 8)[1] == pytest.approx(1.5 * 8192 * 8 / 8, rel=0.25)


def test_each_row_has_the_routing_that_it_was_measured_with() -> None:
    experts = Experts(np.full(2, 7168.0), np.full(2, 256.0), np.full(2, 384.0), np.full(2, 8.0), np.full(2, 4.0))
    routing = measured(experts, np.array([32.0, 32.0]), np.array([True, False]))
    even = dealt(Experts(7168.0, 256.0, 384.0, 8.0, 4.0), np.array([32.0]))
    assert routing.used[0] == even.used[0]
    assert (routing.used[1], routing.load[1]) == power_law(32, 384, 8, 4)[:2]


def rows(**columns: object) -> pd.DataFrame:
    row = {
        "moe_dtype": "nvfp4", "num_tokens": 16, "hidden_size": 7168, "inter_size": 2048, "topk": 8, "num_experts": 256,
        "moe_tp_size": 8, "moe_ep_size": 1, "distribution": "balanced", "latency_s": 1e-4,
        "source": "flashinfer_trtllm",
    }  # fmt: skip
    return pd.DataFrame([row | columns])


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ({}, False),
        ({"num_experts": 384}, True),
        ({"moe_dtype": "bfloat16"}, True),
        ({"source": "moe_torch_flow_cutlass"}, True),
        ({"source": "moe_torch_flow_min_latency", "hidden_size": 4096}, False),
    ],
)
def test_rows_routed_by_groups_of_made_up_scores_are_left_out(columns: dict[str, object], kept: bool) -> None:
    assert len(aic_tables._moe(rows(**columns).rename(columns=NAMES))) == int(kept)
