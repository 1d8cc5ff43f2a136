"""Captions and number tables of the figures of cache tiers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hisearch.report.data.closeup import Closeup, TierCurve, TierTimeline, TierUse
from hisearch.report.figures import tiers as draw
from hisearch.report.figures.drawing import Drawing, NumberTable
from hisearch.score.quantities import UNDEFINED, percent, significant, usd
from hisearch.specs.wording import counted

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
    shares = ", ".join(f"{use.name} {percent(use.hit_rate)}" for use in uses)
    return Drawing(
        "tier-use",
        "Where prompt tokens come from, and how busy the links are",
        "Each token counts in the nearest tier that had it when its request was first scheduled; what no tier had is "
        "computed. Of each tier's links the busiest is drawn, in both directions: one that is busy most of the time "
        "makes requests wait for their KV.",
        f"Shares of the prompt tokens of the {label}: {shares}, computed {computed}. The table has the links as well.",
        "half",
        NumberTable(
            "What each tier did at the study's load",
            ("Tier", "Prompt tokens", "Peak of its capacity", "GiB in", "GiB out", "Link busy, in", "Link busy, out"),
            tuple(rows),
        ),
    )


def _occupancy(timeline: TierTimeline, label: str) -> Drawing:
    rows = [
        (store.name, percent(sum(store.held) / len(store.held)), percent(max(store.held)), percent(store.held[-1]))
        for store in timeline.stores
    ]
    return Drawing(
        "tier-room",
        "How full each tier is over time",
        "Host memory counts allocated pages, copies on their way included; the stores behind it what could "
        "be found. A store that never fills is larger than this workload needs; one that is full from early on evicts "
        "from then on.",
        f"Share of its capacity in use over time of {counted(len(timeline.stores), 'store')} of the {label}.",
        "half",
        NumberTable("Capacity in use", ("Store", "Mean", "Most", "At the end"), tuple(rows)),
    )


def _tiers(curves: Sequence[TierCurve], label: str) -> Drawing:
    rows = []
    for curve in curves:
        for point, freed in zip(curve.points, (*curve.returns(), None), strict=True):
            chosen = " (chosen)" if point.gib == curve.chosen_gib else ""
            rows.append(
                (
                    curve.name,
                    f"{significant(point.gib)}{chosen}",
                    percent(point.hit_rate),
                    percent(point.own_hit_rate),
                    f"{significant(point.ttft_s)} s",
                    usd(point.usd_per_hour),
                    UNDEFINED if freed is None else f"${freed:,.2f}",
                )
            )
    return Drawing(
        "tiers",
        "How large each cache tier should be",
        f"The {label} with one tier of another size and all else as it is; a diamond is the chosen size, and sizes "
        "that the engine or the host does not take are left out. Where a line is flat, more of the tier buys nothing. "
        "Below: what the next dollar for it frees in machine time (one cent at least is drawn): above the dashed $1 a "
        "larger size pays for itself, where so much time is freed that a machine can be given up.",
        f"Hit rate, {draw.ttft_of(curves)} and return over the size of {counted(len(curves), 'cache tier')}; the table "
        "has the same numbers.",
        "tall half",
        NumberTable(
            "By size of each tier; the last column is of the step to the next larger size",
            ("Tier", "GiB", "Hit rate", "of it here", draw.ttft_of(curves), "USD/hour", "Freed by the next dollar"),
            tuple(rows),
        ),
    )
