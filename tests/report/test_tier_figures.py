"""Figures of tiers, from rows and series as a simulation gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest

from hisearch.report import tier_figures as figures

ROWS: list[dict[str, Any]] = [
    {"tier": "hbm", "hit_rate": 0.4},
    {"tier": "ddr5", "hit_rate": 0.25, "write_utilisation": 0.1, "read_utilisation": 0.3},
    {"tier": "ddr5", "hit_rate": 0.15, "write_utilisation": 0.5, "read_utilisation": 0.0},
]


@dataclass(frozen=True)
class Worth:
    tier: str
    usd_per_hour_saved_per_gib: float
    usd_per_gib_hour: float


def series(stores: int) -> pd.DataFrame:
    """A tier of so many stores of 100 tokens, store k with k, then 10 k tokens, and one of the cluster."""
    rows = [
        {"tier": 1, "medium": "<b>ddr5", "store": k, "time_s": at, "held_tokens": held, "capacity_tokens": 100}
        for k in range(stores)
        for at, held in ((0.0, k), (5.0, 10 * k))
    ]
    far = {"tier": 2, "medium": "pool", "store": 0, "capacity_tokens": 1000}
    return pd.DataFrame([*rows, *(far | {"time_s": at, "held_tokens": 500} for at in (0.0, 5.0))])


def test_prompt_tokens_come_from_a_tier_or_are_computed() -> None:
    bars = figures.hit_bars(ROWS)
    assert [bar.name for bar in bars] == ["hbm", "ddr5 (tier 1)", "ddr5 (tier 2)", "computed"]
    assert [bar.share for bar in bars] == pytest.approx([0.4, 0.25, 0.15, 0.2])
    drawn = figures.figure_tier_hits(ROWS)
    assert [trace.x[0] for trace in drawn.data] == pytest.approx([40, 25, 15, 20])
    assert drawn.layout.barmode == "stack"


def test_each_store_has_a_line_of_its_own() -> None:
    lines = figures.occupancy_lines(series(3))
    assert [line.name for line in lines] == ["&lt;b&gt;ddr5 0", "&lt;b&gt;ddr5 1", "&lt;b&gt;ddr5 2", "pool 0"]
    assert lines[2].held.tolist() == [0.02, 0.2]
    assert lines[3].held.tolist() == [0.5, 0.5]
    drawn = figures.figure_tier_occupancy(series(3))
    assert [list(trace.y) for trace in drawn.data][2:] == [[2.0, 20.0], [50.0, 50.0]]
    assert len({trace.line.dash for trace in drawn.data[:3]}) == 3
    assert len({trace.line.color for trace in drawn.data}) == 2


def test_many_stores_are_drawn_together() -> None:
    lines = figures.occupancy_lines(series(10))
    assert [line.name for line in lines] == ["&lt;b&gt;ddr5, all stores", "pool, all stores"]
    assert lines[0].held.tolist() == [45 / 1000, 450 / 1000]


def test_links_of_tiers_below_hbm() -> None:
    drawn = figures.figure_link_utilisation(ROWS)
    assert [trace.name for trace in drawn.data] == ["written", "read"]
    assert [list(trace.x) for trace in drawn.data] == [["ddr5 (tier 1)", "ddr5 (tier 2)"]] * 2
    assert [list(trace.y) for trace in drawn.data] == [[10, 50], [30, 0]]


def test_what_more_is_worth_beside_what_it_costs() -> None:
    drawn = figures.figure_tier_values([Worth("ddr5", 0.01, 0.002), Worth("pool", -0.001, 0.0025)])
    assert [trace.name for trace in drawn.data] == ["frees", "costs"]
    assert [list(trace.y) for trace in drawn.data] == [[0.01, -0.001], [0.002, 0.0025]]
    assert list(drawn.data[0].x) == ["ddr5 (tier 1)", "pool (tier 2)"]
