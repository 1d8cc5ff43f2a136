"""The first page of the dashboard: every run with its state and recommendation, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hisearch.report.words.comparison_words import name_of, show
from hisearch.report.words.templating import render_page
from hisearch.score.stated import LATENCIES, spoken_of

#: Metrics of the runs' recommendations, in rows; a latency name means its percentiles.
_ROWS = ("usd_per_hour", "goodput_rps", "attainment", "ttft", "tpot", "e2e", "hit_rate")

#: Seconds after which the page is loaded anew while a run is going on.
REFRESH_S = 5
#: The same for the report of such a run.
REPORT_REFRESH_S = 30


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    label: its folder's name. study: the study's name. ended: its documents are written. simulations: finished so far;
    budget: allowed. trial, description, feasible, metrics: of the recommendation (or the nearest miss); of a live run,
    of the cheapest feasible trial so far. They are "", None or empty where unknown. stopped: what ended it early, as
    in provenance. has_report: a report exists, or can be drawn from a live run. asked: latency metrics that its SLO
    bounds.
    """

    label: str
    study: str
    ended: bool
    simulations: int
    budget: int
    stopped: str = ""
    trial: int | None = None
    description: str = ""
    feasible: bool | None = None
    has_report: bool = False
    asked: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)


def shown_metrics(slo_metrics: Iterable[str]) -> list[str]:
    """Metrics in rows; ``slo_metrics``: of the latencies that SLOs bound, as ``score.stated.stated`` gives them."""
    stated_names = tuple(slo_metrics)
    return [name for row in _ROWS for name in (spoken_of(row, stated_names) if row in LATENCIES else (row,))]


def may_show(metric: str) -> bool:
    """Whether a metric is one of the rows, whatever the SLOs ask for."""
    return metric in _ROWS or metric.partition("_")[0] in LATENCIES


def render_index(runs: Sequence[RunState]) -> str:
    """The page's HTML; it loads itself anew while a run is going on."""
    rows = [
        (name_of(metric), [show(metric, run.metrics[metric]) if metric in run.metrics else "-" for run in runs])
        for metric in shown_metrics(name for run in runs for name in run.asked)
        if any(metric in run.metrics for run in runs)
    ]
    return render_page(
        "dashboard.html.j2",
        runs=runs,
        rows=rows,
        pairs=[(a, b) for a in range(len(runs)) for b in range(a + 1, len(runs)) if runs[a].ended and runs[b].ended],
        refresh_s=0 if all(run.ended for run in runs) else REFRESH_S,
    )


def render_refusal(message: str) -> str:
    """A page with an error message."""
    return render_page("refusal.html.j2", message=message)
