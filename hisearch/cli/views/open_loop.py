"""Output of ``hisearch validate open-loop``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hisearch.cli import output
from hisearch.specs.wording import counted, format_percent

if TYPE_CHECKING:
    from hisearch.validate.open_loop import Figure, OpenLoopScore
    from hisearch.validate.open_loop_report import OpenLoopReport

_TITLES = {
    "e2e_mean": "E2E mean",
    "e2e_p90": "E2E p90",
    "e2e_p99": "E2E p99",
    "itl_mean": "ITL mean",
    "ttft_mean": "TTFT mean",
    "ttft_p90": "TTFT p90",
    "ttft_p99": "TTFT p99",
}
_STATISTICS = {"median": "median_ape", "mean abs.": "mape", "bias": "bias"}


def show(report: OpenLoopReport) -> None:
    """Errors by run, over all runs and by group, KV capacities, then runs that need a closer look."""
    from hisearch.validate.open_loop_report import GROUPS

    if report.scores:
        output.say(f"{counted(len(report.scores), 'run')} simulated; errors in % of the measured", bold=True)
        titles = (title.replace(" ", "\n") for title in _TITLES.values())
        columns = ("run", "model", "accelerator", "TP", *titles)
        output.table(columns, map(_row, report.scores), numbers=range(3, len(columns)))
        output.heading("Over all runs")
        _summary("", {"all": report.scores})
        for by in GROUPS:
            output.heading(f"By {by}")
            _summary(by, report.groups(by))
        _capacities(report.scores)
        output.say()
        _remarks(report)
    if report.failed:
        output.heading("Not simulated")
        rows = [("/".join(filter(None, (run.set, run.id))) or run.folder, run.reason) for run in report.failed]
        output.table(("run", "reason"), rows)


def _row(score: OpenLoopScore) -> Sequence[str]:
    run = score.run
    cells = (_error(score.metrics.get(name)) for name in _TITLES)
    return (run.name, run.model, run.accelerator, str(run.tensor_parallel), *cells)


def _summary(by: str, groups: dict[str, tuple[OpenLoopScore, ...]]) -> None:
    """Three rows for each group: median and mean of absolute errors, mean of signed ones."""
    from hisearch.validate.open_loop_report import errors_of

    rows = []
    for name, scores in groups.items():
        errors = errors_of(scores)
        for statistic, field in _STATISTICS.items():
            first = statistic == "median"
            cells = [
                format_percent(getattr(errors[metric], field), 1, signed=field == "bias") if metric in errors else "-"
                for metric in _TITLES
            ]
            rows.append((name or "-" if first else "", f"{len(scores):,}" if first else "", statistic, *cells))
    output.table((by, "runs", "error", *_TITLES.values()), rows, numbers=(1, *range(3, 3 + len(_TITLES))))


def _capacities(scores: Iterable[OpenLoopScore]) -> None:
    rows = []
    for score in scores:
        planned, measured = score.predicted_kv_tokens, score.run.measured_kv_tokens
        if measured is not None:
            error = format_percent(planned / measured - 1.0, 2, signed=True)
            rows.append((score.run.name, score.run.model, f"{planned:,}", f"{measured:,}", error))
    if rows:
        output.heading("KV capacity where it was measured, tokens")
        output.table(("run", "model", "planned", "measured", "error"), rows, numbers=(2, 3, 4))


def _remarks(report: OpenLoopReport) -> None:
    """Unfinished requests, overloads, runs without a measured metric."""
    from hisearch.validate.open_loop import OVERLOAD

    unfinished = [score for score in report.scores if score.unfinished]
    requests = sum(score.requests for score in report.scores)
    where = f": {_names(unfinished)}" if unfinished else ""
    output.say(
        "Unfinished in the simulation: "
        f"{sum(score.unfinished for score in unfinished):,} of {requests:,} requests{where}."
    )
    where = f": {_names(report.overloaded)}" if report.overloaded else ""
    output.say(
        f"Overloaded in the simulation alone (mean TTFT more than {OVERLOAD:g} times the measured): "
        f"{counted(len(report.overloaded), 'run')}{where}."
    )
    if report.unmeasured:
        output.say(
            f"Without any measured metric: {counted(len(report.unmeasured), 'run')}: {_names(report.unmeasured)}."
        )


def _names(scores: Iterable[OpenLoopScore]) -> str:
    return ", ".join(score.run.name for score in scores)


def _error(figure: Figure | None) -> str:
    return "-" if figure is None else format_percent(figure.error, 1, signed=True).removesuffix(" %")
