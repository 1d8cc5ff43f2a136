"""Figures of tiers, from rows and series as a simulation gives them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pytest

from hisearch.report.data.closeup import TierCurve, TierPoint, TierUse
from hisearch.report.figures import tiers as figures

#: As ``api.deployments.tiers.tier_rows`` gives them, as far as they are drawn.
ROWS: list[dict[str, Any]] = [
    {"tier": "hbm", "hit_rate": 0.4, "capacity_tokens": 100, "peak_tokens": 90},
    {
        "tier": "<b>ddr5", "hit_rate": 0.25, "capacity_tokens": 200, "peak_tokens": 200,
        "stored_bytes": 3 * 2**30, "read_bytes": 2**29, "write_utilisation": 0.1, "read_utilisation": 0.3,
    },
    {
        "tier": "<b>ddr5", "hit_rate": 0.15, "capacity_tokens": 1000, "peak_tokens": 10,
        "stored_bytes": 0, "read_bytes": 0, "write_utilisation": 0.5, "read_utilisation": 0.0,
    },
]  # fmt: skip


@dataclass(frozen=True)
class Worth:
    tier: str
    usd_per_hour_saved_per_gib: float
    usd_per_gib_hour: float


def series(stores: int) -> pd.DataFrame:
    """A tier of several stores of 100 tokens, store k holding k, then 10 k tokens, and a tier of the cluster."""
    rows = [
        {"tier": 1, "medium": "<b>ddr5", "store": k, "time_s": at, "held_tokens": held, "capacity_tokens": 100}
        for k in range(stores)
        for at, held in ((0.0, k), (5.0, 10 * k))
    ]
    far = {"tier": 2, "medium": "pool", "store": 0, "capacity_tokens": 1000}
    return pd.DataFrame([*rows, *(far | {"time_s": at, "held_tokens": 500} for at in (0.0, 5.0))])


def test_what_each_tier_did() -> None:
    uses = figures.tier_uses(ROWS)
    assert uses == (
        TierUse("hbm", 0.4, 0.9),
        TierUse("<b>ddr5 (tier 1)", 0.25, 1.0, 3.0, 0.5, 0.1, 0.3),
        TierUse("<b>ddr5 (tier 2)", 0.15, 0.01, 0.0, 0.0, 0.5, 0.0),
    )
    assert figures.computed_share(uses) == pytest.approx(0.2)


def test_prompt_tokens_come_from_a_tier_or_are_computed_and_links_are_below_hbm() -> None:
    tokens, written, read = figures.figure_tier_use(figures.tier_uses(ROWS)).data
    names = ("hbm", "&lt;b&gt;ddr5 (tier 1)", "&lt;b&gt;ddr5 (tier 2)", "computed")
    assert tokens.y == names
    assert list(tokens.x) == pytest.approx([40, 25, 15, 20])
    assert len(set(tokens.marker.color)) == 4
    assert (written.name, read.name) == ("link, written", "link, read")
    assert written.y == read.y == names[1:3]
    assert (written.x, read.x) == ((10, 50), (30, 0))
    # Stacked: side by side their axes overlap on a phone.
    assert tokens.xaxis != written.xaxis == read.xaxis
    assert not {written.marker.color, read.marker.color} & set(tokens.marker.color)


def test_each_store_has_a_line_of_its_own() -> None:
    timeline = figures.tier_timeline(series(3))
    assert timeline.time_s == (0.0, 5.0)
    assert [store.name for store in timeline.stores] == ["<b>ddr5 0", "<b>ddr5 1", "<b>ddr5 2", "pool 0"]
    assert timeline.stores[2].held == (0.02, 0.2)
    assert timeline.stores[3].held == (0.5, 0.5)
    drawn = figures.figure_tier_occupancy(timeline)
    assert [trace.name for trace in drawn.data][::3] == ["&lt;b&gt;ddr5 0", "pool 0"]
    assert [list(trace.y) for trace in drawn.data][2:] == [[2.0, 20.0], [50.0, 50.0]]
    assert len({trace.line.dash for trace in drawn.data[:3]}) == 3
    assert len({trace.line.color for trace in drawn.data}) == 2


def test_many_stores_are_drawn_together() -> None:
    stores = figures.tier_timeline(series(10)).stores
    assert [store.name for store in stores] == ["<b>ddr5, all stores", "pool, all stores"]
    assert stores[0].held == (45 / 1000, 450 / 1000)


def test_what_the_next_dollar_frees_is_a_level_from_size_to_size() -> None:
    """By hand: of 100 s of device time at $20 an hour, 10 s more of it freed are $2, for $0.5 more of the tier."""
    points = (
        TierPoint(64.0, 0.3, 0.1, 2.0, 50.0, 0.5),
        TierPoint(128.0, 0.4, 0.2, math.inf, 40.0, 1.0),
        TierPoint(256.0, 0.4, 0.2, 1.0, 45.0, 2.0),
    )
    curve = TierCurve("ddr5, per worker", 128.0, points, device_s=100.0, machines_usd_per_hour=20.0)
    assert curve.returns() == pytest.approx((4.0, -1.0))
    figure = figures.figure_tiers([replace(curve, ttft_percentile=95.0)])
    assert figure.layout.yaxis2.title.text == "TTFT p95 (s)"
    hits, ttft, freed = figures.figure_tiers([curve]).data
    assert list(hits.y) == [30, 40, 40]
    assert list(ttft.y) == [2.0, None, 1.0]
    assert list(hits.marker.symbol) == ["circle", "diamond", "circle"]
    assert list(freed.y) == [4.0, figures.LEAST_RETURN, figures.LEAST_RETURN]
    assert list(freed.text) == ["$4.00", "$-1.00", "$-1.00"]
    assert freed.line.shape == "hv"


def test_sizes_of_one_price_have_no_return() -> None:
    points = tuple(TierPoint(gib, 0.3, 0.1, 2.0, 50.0, 0.5) for gib in (1.0, 2.0))
    *_, freed = figures.figure_tiers([TierCurve("x", 1.0, points, 100.0, 20.0)]).data
    assert list(freed.y) == [None, None]


def test_what_more_is_worth_compared_with_what_it_costs() -> None:
    drawn = figures.figure_tier_values([Worth("ddr5", 0.01, 0.002), Worth("pool", -0.001, 0.0025)])
    assert [trace.name for trace in drawn.data] == ["frees", "costs"]
    assert [list(trace.y) for trace in drawn.data] == [[0.01, -0.001], [0.002, 0.0025]]
    assert list(drawn.data[0].x) == ["ddr5 (tier 1)", "pool (tier 2)"]
