"""Number tables of the figures of cache tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.report.data.closeup import Closeup, TierCurve, TierTimeline, TierUse
from hisearch.report.figures import tiers as draw
from hisearch.report.figures.drawing import Drawing, NumberTable, drawing
from hisearch.score.quantities import UNDEFINED, percent, significant, usd

if TYPE_CHECKING:
    import plotly.graph_objects as go


def tier_drawings(closeup: Closeup, label: str) -> list[tuple[Drawing, go.Figure]]:
    """The figures that have data; ``label``: the deployment's."""
    built = []
    if closeup.tier_uses:
        built.append((_use(closeup.tier_uses, label), draw.figure_tier_use(closeup.tier_uses)))
    if closeup.tier_timeline is not None:
        built.append((_occupancy(closeup.tier_timeline, label), draw.figure_tier_occupancy(closeup.tier_timeline)))
    if closeup.tiers:
        built.append((_tiers(closeup.tiers, label), draw.figure_tiers(closeup.tiers)))
    return built


def _use(uses: Sequence[TierUse], label: str) -> Drawing:
    rows = [
        (
            use.name,
            percent(use.hit_rate),
            percent(use.peak),
            *(UNDEFINED if gib is None else significant(gib) for gib in (use.stored_gib, use.read_gib)),
            *(UNDEFINED if busy is None else percent(busy) for busy in (use.write_busy, use.read_busy)),
        )
        for use in uses
    ]
    computed = percent(draw.computed_share(uses))
    rows.append((draw.COMPUTED, computed, *[UNDEFINED] * 5))
    columns = ("Tier", "Prompt tokens", "Peak of its capacity", "GiB in", "GiB out", "Link busy, in", "Link busy, out")
    table = NumberTable("What each tier did at the study's load", columns, tuple(rows))
    return drawing("tier-use", "half", label, uses, computed, table=table)


def _occupancy(timeline: TierTimeline, label: str) -> Drawing:
    rows = [
        (store.name, percent(sum(store.held) / len(store.held)), percent(max(store.held)), percent(store.held[-1]))
        for store in timeline.stores
    ]
    table = NumberTable("Capacity in use", ("Store", "Mean", "Most", "At the end"), tuple(rows))
    return drawing("tier-room", "half", label, timeline, table=table)


def _tiers(curves: Sequence[TierCurve], label: str) -> Drawing:
    rows = [
        (
            curve.name,
            f"{significant(point.gib)}{' (chosen)' if point.gib == curve.chosen_gib else ''}",
            percent(point.hit_rate),
            percent(point.own_hit_rate),
            f"{significant(point.ttft_s)} s",
            usd(point.usd_per_hour),
            UNDEFINED if freed is None else f"${freed:,.2f}",
        )
        for curve in curves
        for point, freed in zip(curve.points, (*curve.returns(), None), strict=True)
    ]
    ttft = draw.ttft_of(curves)
    columns = ("Tier", "GiB", "Hit rate", "of it here", ttft, "USD/hour", "Freed by the next dollar")
    table = NumberTable(
        "By size of each tier; the last column is of the step to the next larger size", columns, tuple(rows)
    )
    return drawing("tiers", "tall half", label, curves, ttft, table=table)
