"""Measured runs against their simulation: error of each second, in the sum, and of means.

    throughput    of seconds in which tokens were measured: median of |simulated - measured| / measured; of the sum; of
                  the run's end, in seconds
    power         of joules from the first burst to the last sample, and of watts by second, median; gpu_work_w: mean
                  watts of seconds that draw more than half of the range
    hit rates     in percentage points, over the seconds after the first hit: median, largest, and at the end
    capacity, TTFT, TPOT    relative

Series of power begin where they first rise by a quarter of their range, hits with their first hit. A log of tokens by
the clock is shifted by the constant, of at most a second around its first token, that brings its first burst nearest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.api.deployments.deployment import SimulatedDeployment, simulate_deployment
from hisearch.api.measured.run_file import MeasuredRun, Series, SeriesFile, read_runs, read_series, read_trace
from hisearch.api.measured.series import hit_percent, tokens_per_second, watts_by_second
from hisearch.base.dtypes import F8
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.errors import SpecError


@dataclass(frozen=True)
class RunFigure:
    """One figure of a run.

    measured, simulated: in ``unit``. error: relative and signed; hit rates: difference in points. median_error: of the
    seconds, absolute; None where seconds are not compared. set_here: which constant the figure set; "": it is scored.
    """

    unit: str
    measured: float
    simulated: float
    error: float
    median_error: float | None = None
    largest_error: float | None = None
    set_here: str = ""


@dataclass(frozen=True)
class RunScore:
    """A run's figures by name; ``reason``: why it was not simulated, "" where it was."""

    id: str
    figures: dict[str, RunFigure] = field(default_factory=dict)
    profile: str = ""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def validate_runs(
    folder: Path,
    runs: Path | None = None,
    catalogue: Catalogue | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[RunScore]:
    """Every run of a folder, in turn; one that cannot be simulated has a reason, and the others go on.

    Args:
        folder: see ``run_file``.
        runs: the list of runs where it is not ``runs.yaml`` of the folder.
        catalogue: of models, accelerators and profiles.
        note: called with a line before each run is simulated.

    Raises:
        SpecError: the list of runs is not valid.
    """
    listed, base = read_runs(folder, runs)
    for run in listed.runs:
        note(f"run {run.id}")
        try:
            yield score_run(run, folder, base, catalogue)
        except (ValueError, OSError) as error:
            yield RunScore(run.id, assumptions=tuple(run.assumptions), reason=_reason(error))


def score_run(run: MeasuredRun, folder: Path, base: Path, catalogue: Catalogue | None = None) -> RunScore:
    """Simulate a run and pair its figures with the measured ones.

    Raises:
        SpecError, ValueError: a file cannot be read, or the deployment cannot be simulated.
    """
    trace = read_trace(folder / run.trace, run.block_tokens)
    done = simulate_deployment(base / run.deployment, trace, overrides=run.settings, log=True, catalogue=catalogue)
    figures: dict[str, RunFigure] = {}
    if run.throughput is not None:
        figures["throughput"] = _throughput(done, read_series(folder, run.throughput), by_second=run.by_second)
    if run.gpu_power is not None:
        watts = read_series(folder, run.gpu_power)
        figures["gpu_power"] = _power(done, watts, None)
        figures["gpu_work_w"] = _work_w(done, watts)
    if run.server_power is not None:
        figures["server_power"] = _power(done, read_series(folder, run.server_power), run.server_power)
    for name, series in (("prefix_hits", run.prefix_hits), ("external_hits", run.external_hits)):
        if series is not None:
            figures[name] = _hits(done, read_series(folder, series), external=name == "external_hits")
    requests = done.result.requests
    finished = requests.finished & (requests.output_tokens > 1)
    means = {
        "kv_capacity_tokens": ("tokens", run.kv_capacity_tokens, float(done.result.kv_capacity_tokens)),
        "ttft_ms": ("ms", run.ttft_ms, 1e3 * float(np.mean(requests.ttft_s[requests.finished]))),
        "tpot_ms": ("ms", run.tpot_ms, 1e3 * float(np.mean(requests.tpot_s[finished]))),
    }
    for name, (unit, measured, simulated) in means.items():
        if measured is not None:
            figures[name] = RunFigure(unit, float(measured), simulated, simulated / measured - 1.0)
    marked = {
        name: RunFigure(**{**asdict(figure), "set_here": run.set_here.get(name, "")})  # type: ignore[call-overload]
        for name, figure in figures.items()
    }
    return RunScore(run.id, marked, done.plan.costs.profile, tuple(run.assumptions), tuple(done.warnings))


def _throughput(done: SimulatedDeployment, series: Series, *, by_second: bool) -> RunFigure:
    at_s, measured, busy = series.at_s, series.values, series.values > 0
    if series.by_clock:
        at_s = at_s + _shift_s(done, series)
    simulated = tokens_per_second(done, at_s)
    median = float(np.median(np.abs(simulated[busy] / measured[busy] - 1.0))) if by_second else None
    # All requests end in both, so that only the mean rate up to the end tells their sums apart.
    total, made = float(measured.sum()), float(done.result.requests.output_tokens.sum())
    rates = total / float(at_s[busy][-1]), made / float(np.nanmax(done.result.requests.finish_s))
    return RunFigure("tokens/s to the end", rates[0], rates[1], rates[1] / rates[0] - 1.0, median)


def _shift_s(done: SimulatedDeployment, series: Series) -> float:
    """Seconds from a log's clock to the trace's."""
    busy = series.values > 0
    begun = float(series.at_s[int(np.argmax(busy))])
    idle = np.flatnonzero(~busy & (series.at_s > begun))
    burst = slice(int(np.argmax(busy)), int(idle[0]) if len(idle) else len(busy))
    first_s = float(np.nanmin(done.result.requests.first_token_s))
    shifts = first_s - begun + np.arange(-1.0, 1.01, 0.05)
    off = [np.abs(tokens_per_second(done, series.at_s[burst] + shift) - series.values[burst]).sum() for shift in shifts]
    return float(shifts[int(np.argmin(off))])


def _rise(values: F8) -> int:
    """The first sample that exceeds the least by a quarter of the range."""
    return int(np.argmax(values > values.min() + 0.25 * (values.max() - values.min())))


def _power(done: SimulatedDeployment, series: Series, server: SeriesFile | None) -> RunFigure:
    at_s, measured = series.at_s, series.values
    first = _rise(measured)
    seconds = np.arange(int(at_s[-1] - at_s[first]) + 1)
    watts = np.interp(at_s[first] + seconds, at_s, measured)
    simulated = watts_by_second(done, len(seconds))
    ours = simulated.accelerators_w
    if server is not None:
        pool = done.resolved.deployment.pools[0]
        card = done.resolved.accelerators[pool.accelerator].spec
        waiting_w = card.standby_w if card.standby_w is not None else card.idle_w
        ours = ours + simulated.host_w + server.other_accelerators * waiting_w
    joules = float(watts.sum()), float(ours.sum())
    median = float(np.median(np.abs(ours / watts - 1.0)))
    return RunFigure("J", joules[0], joules[1], joules[1] / joules[0] - 1.0, median)


def _work_w(done: SimulatedDeployment, series: Series) -> RunFigure:
    """Mean watts at work, which idle time does not hide; seconds at work are each side's own."""
    measured = series.values
    simulated = watts_by_second(done, int(np.nanmax(done.result.requests.finish_s))).accelerators_w
    means = [float(w[w > 0.5 * (w.min() + w.max())].mean()) for w in (measured, simulated)]
    return RunFigure("W", means[0], means[1], means[1] / means[0] - 1.0)


def _hits(done: SimulatedDeployment, series: Series, *, external: bool) -> RunFigure:
    at_s, measured = series.at_s, series.values
    first_s = float(np.nanmin(done.result.requests.scheduled_s))
    ours_at = np.arange(0.0, float(at_s[-1]) + 1.0)
    ours = hit_percent(done, first_s + ours_at, external=external)
    # Clocks differ by a constant: both series begin with their first hit.
    shift = at_s[int(np.argmax(measured > 0))] - ours_at[int(np.argmax(ours > 0))]
    after = at_s >= at_s[int(np.argmax(measured > 0))]
    simulated = hit_percent(done, first_s + at_s - shift, external=external)
    each = np.abs(simulated[after] - measured[after])
    ends = float(measured[-1]), float(simulated[-1])
    return RunFigure("% at the end", ends[0], ends[1], ends[1] - ends[0], float(np.median(each)), float(each.max()))


def _reason(error: Exception) -> str:
    if isinstance(error, SpecError):
        return "; ".join(str(problem) for problem in error.problems)
    return " ".join(str(error).split()) or type(error).__name__
