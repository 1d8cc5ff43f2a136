"""The first page of the dashboard: every run with its state and recommendation, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hisearch.report.figures import curves
from hisearch.report.figures.curves import Curve
from hisearch.report.words.comparison_words import name_of, show
from hisearch.report.words.templating import render_page
from hisearch.score.stated import LATENCIES, spoken_of

#: Metrics of the runs' recommendations, in rows; a latency name means its percentiles.
_ROWS = ("usd_per_hour", "goodput_rps", "attainment", "ttft", "ttfo", "tpot", "e2e", "hit_rate")

#: Seconds after which the page is loaded anew while a run is going on.
REFRESH_S = 5
#: The same for the report of such a run.
REPORT_REFRESH_S = 30


Status = Literal["ended", "running", "interrupted", "unknown"]

#: Rows of a table of what differs, at most.
_MOST_ROWS = 16


@dataclass(frozen=True)
class RunState:
    """The state of a run.

    label: its folder's name. study: the study's name. status: see ``hisearch.api.run_state.status_of``. simulations:
    finished so far; budget: allowed. trial, description, feasible, metrics, settings: of the recommendation (or the
    nearest miss); before the end, of the cheapest feasible trial so far. They are "", None or empty where unknown.
    stopped: what ended it early, as in provenance. has_report: a report exists, or can be drawn so far. asked: latency
    metrics that its SLO bounds. curves: progress. filters: (setting, value, trials) by which All trials can be
    narrowed. question: the study's keys and values, as text.
    """

    label: str
    study: str
    status: Status
    simulations: int
    budget: int
    stopped: str = ""
    trial: int | None = None
    description: str = ""
    feasible: bool | None = None
    has_report: bool = False
    asked: tuple[str, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    curves: tuple[Curve, ...] = ()
    filters: tuple[tuple[str, str, int], ...] = ()
    question: dict[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Its documents are written, and nothing works on it."""
        return self.status == "ended"


def shown_metrics(slo_metrics: Iterable[str]) -> list[str]:
    """Metrics in rows; ``slo_metrics``: of the latencies that SLOs bound, as ``score.stated.stated`` gives them."""
    stated_names = tuple(slo_metrics)
    return [name for row in _ROWS for name in (spoken_of(row, stated_names) if row in LATENCIES else (row,))]


def may_show(metric: str) -> bool:
    """Whether a metric is one of the rows, whatever the SLOs ask for."""
    return metric in _ROWS or metric.partition("_")[0] in LATENCIES


def render_index(runs: Sequence[RunState], *, optuna: bool = True) -> str:
    """The page's HTML; it loads itself anew while a run goes on. optuna: whether optuna-dashboard is served as well."""
    rows = [
        (name_of(metric), [show(metric, run.metrics[metric]) if metric in run.metrics else "-" for run in runs])
        for metric in shown_metrics(name for run in runs for name in run.asked)
        if any(metric in run.metrics for run in runs)
    ]
    live = any(run.status in ("running", "unknown") for run in runs)
    return render_page(
        "dashboard.html.j2",
        runs=runs,
        rows=rows,
        studies=_differing([run.question for run in runs]),
        settings=_differing([run.settings for run in runs if run.settings] and [run.settings for run in runs]),
        pairs=[(a, b) for a in range(len(runs)) for b in range(a + 1, len(runs)) if runs[a].ended and runs[b].ended],
        refresh_s=REFRESH_S if live else 0,
        optuna=optuna,
        frame=curves,
    )


def _differing(sides: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Keys in which the sides differ, each with its values."""
    keys = dict.fromkeys(key for side in sides for key in side)
    rows = [(key, [side.get(key, "-") for side in sides]) for key in keys]
    return [row for row in rows if len(set(row[1])) > 1][:_MOST_ROWS]


def render_refusal(message: str) -> str:
    """A page with an error message."""
    return render_page("refusal.html.j2", message=message)
