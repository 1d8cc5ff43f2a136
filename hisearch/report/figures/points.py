"""The data of a study's figures, in displayed units."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from hisearch.report.data.inputs import ReportInput
from hisearch.report.words.settings import UNUSED, settings
from hisearch.score.quantities import Quantity, quantity
from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import Trial, metric_of

Status = Literal["highlighted", "front", "dominated", "infeasible"]

#: Statuses from the faintest to the boldest.
STATUS_ORDER: tuple[Status, ...] = ("infeasible", "dominated", "front", "highlighted")

#: At most this many points off the front are drawn; more would bury the front and swell the report.
MAX_FAINT = 1000

#: An axis is logarithmic where the bulk of its values spans more than this factor.
_LOG_RATIO = 10.0

#: Share of the points at each end of an axis that may be outliers, and by what share an axis may grow
#: by showing them.
_TAIL = 0.1
_LONG_TAIL = 0.25

#: Most axes of the parallel coordinates that fit the page with legible labels.
MAX_DIMENSIONS = 12


class Axis(NamedTuple):
    """An objective as an axis. bound: the SLO's bound in displayed units. span: least and largest value in view."""

    name: str
    quantity: Quantity
    log: bool
    bound: float | None
    span: tuple[float, float]


class Point(NamedTuple):
    """One trial. values: in displayed units, one per axis."""

    number: int
    stage: int
    status: Status
    label: str
    values: tuple[float, ...]


class ParetoData(NamedTuple):
    """Points of the Pareto figures.

    highlight: label of the highlighted trial. omitted: faint points left out. feasible: the front meets the SLO.
    """

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    highlight: str
    omitted: int
    feasible: bool

    def beyond(self, *names: str) -> int:
        """Points that lie outside the spans of the named axes."""
        shown = [(i, axis.span) for i, axis in enumerate(self.axes) if axis.name in names]
        return sum(any(not low <= point.values[i] <= high for i, (low, high) in shown) for point in self.points)


class Dimension(NamedTuple):
    """One vertical axis. values: per trial; ticks: (value, text).

    categorical: the values are the ticks' places and have no meaning of their own.
    """

    title: str
    values: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]
    categorical: bool = False


class ParallelData(NamedTuple):
    """Lines of the parallel coordinates, faintest first.

    statuses, numbers: per line; numbers are the trials'. omitted: settings without an axis.
    """

    dimensions: tuple[Dimension, ...]
    statuses: tuple[Status, ...]
    omitted: tuple[str, ...]
    numbers: tuple[int, ...]


class ProgressData(NamedTuple):
    """share: hypervolume so far / final hypervolume, per simulation. stages: (first simulation, stage)."""

    simulations: tuple[int, ...]
    share: tuple[float, ...]
    stages: tuple[tuple[int, int], ...]


def pareto_data(data: ReportInput) -> ParetoData:
    """Every trial that replayed the whole trace at the study's load and has finite objectives.

    An objective that is undefined for every trial gets no axis.
    """
    names = _defined_objectives(data)
    front = {trial.number for trial in data.front}
    chosen = data.highlighted
    drawn = sorted(
        (_point(trial, names, front, chosen) for trial in data.trials if _drawable(trial, names)),
        key=lambda point: (STATUS_ORDER.index(point.status), point.number),
    )
    faint = [point for point in drawn if point.status in ("infeasible", "dominated")]
    bold = [point for point in drawn if point.status in ("front", "highlighted")]
    faint_drawn = _thin(faint, MAX_FAINT)
    axes = tuple(_axis(name, i, faint_drawn, bold, data) for i, name in enumerate(names))
    feasible = data.recommendation is not None
    return ParetoData(axes, tuple(faint_drawn + bold), data.title_of_chosen, len(faint) - len(faint_drawn), feasible)


def _defined_objectives(data: ReportInput) -> tuple[str, ...]:
    """The study's objectives, without those undefined for every comparable trial."""
    comparable = [trial for trial in data.trials if trial.comparable]
    return tuple(
        name
        for name in data.objectives
        if not comparable or any(not math.isnan(trial.metrics.get(metric_of(name), math.nan)) for trial in comparable)
    )


def _drawable(trial: Trial, names: Sequence[str]) -> bool:
    return trial.comparable and all(math.isfinite(trial.metrics.get(metric_of(name), math.nan)) for name in names)


def _point(trial: Trial, names: Sequence[str], front: set[int], chosen: Trial | None) -> Point:
    status: Status = "dominated" if trial.feasible else "infeasible"
    if trial.number in front:
        status = "front"
    if chosen is not None and trial.number == chosen.number:
        status = "highlighted"
    values = tuple(float(f"{trial.objective(name) * quantity(name).scale:.4g}") for name in names)
    return Point(trial.number, trial.stage, status, describe(trial.deployment), values)


def _thin(points: list[Point], limit: int) -> list[Point]:
    """``limit`` points, evenly spread over the list's order."""
    if len(points) <= limit:
        return points
    return [points[i * len(points) // limit] for i in range(limit)]


def _axis(name: str, index: int, faint: Sequence[Point], bold: Sequence[Point], data: ReportInput) -> Axis:
    """An axis over the bold points, the SLO's bound and the bulk of the faint points."""
    shown = quantity(name)
    bound = next((term.at_most_s * shown.scale for term in data.slo if term.label == name), None)
    needed = [point.values[index] for point in bold] + ([bound] if bound is not None else [])
    span, log = _span(sorted([*needed, *(point.values[index] for point in faint)]), needed)
    return Axis(name, shown, log, bound, span)


def _span(values: Sequence[float], needed: Sequence[float]) -> tuple[tuple[float, float], bool]:
    """Least and largest of ``values`` (sorted) without outliers that squeeze the rest; whether to take logarithms.

    An end is cut at the 10th or the 90th percentile, or at the outermost of ``needed``, if the values beyond would
    take more than ``_LONG_TAIL`` of the remaining span. The remaining span decides the scale.
    """
    if not values:
        return (0.0, 1.0), False
    tail = math.floor(_TAIL * len(values))
    low = min([values[tail], *needed])
    high = max([values[-1 - tail], *needed])
    log = low > 0 and high / low > _LOG_RATIO
    margin = _LONG_TAIL * (high - low)
    if low - values[0] <= margin and not (log and values[0] <= 0):
        low = values[0]
    if values[-1] - high <= margin:
        high = values[-1]
    return (low, high), log


def parallel_data(data: ReportInput) -> ParallelData:
    """The settings that differ between the drawn trials, then the objectives; at most ``MAX_DIMENSIONS`` axes.

    A setting determined by another (a page size that follows from the engine) is left out. Of too many settings
    those are kept for which most trials differ from the commonest value.
    """
    pareto = pareto_data(data)
    by_number = {trial.number: trial for trial in data.trials}
    chosen = [settings(by_number[point.number].deployment) for point in pareto.points]
    columns: dict[str, list[str | int | float]] = {}
    for name in chosen[0] if chosen else ():
        column = [setting[name] for setting in chosen]
        if len(set(column) - UNUSED) > 1 and not any(same_partition(column, earlier) for earlier in columns.values()):
            columns[name] = column
    varied = sorted(columns, key=lambda name: Counter(columns[name]).most_common(1)[0][1])
    axis_names = set(varied[: MAX_DIMENSIONS - len(pareto.axes)])
    dimensions = [_setting_dimension(name, column) for name, column in columns.items() if name in axis_names]
    for index, axis in enumerate(pareto.axes):
        dimensions.append(_objective_dimension(axis, [point.values[index] for point in pareto.points]))
    omitted = tuple(name for name in columns if name not in axis_names)
    statuses, numbers = zip(*((point.status, point.number) for point in pareto.points), strict=True)
    return ParallelData(tuple(dimensions), statuses, omitted, numbers)


def same_partition(first: Sequence[object], second: Sequence[object]) -> bool:
    """True where one column is the other with its values renamed."""
    return len(set(zip(first, second, strict=True))) == len(set(first)) == len(set(second))


def _setting_dimension(name: str, column: Sequence[str | int | float]) -> Dimension:
    """Few distinct values get a tick each, evenly spaced; many numbers get a plain scale."""
    distinct = sorted(set(column), key=_numbers_first)
    if len(distinct) > 10 and not any(isinstance(value, str) for value in distinct):
        values = tuple(float(value) for value in column)
        return Dimension(name, values, _even_ticks(min(values), max(values)))
    place = {value: float(i) for i, value in enumerate(distinct)}
    ticks = tuple((place[value], value if isinstance(value, str) else f"{value:,.6g}") for value in distinct)
    return Dimension(name, tuple(place[value] for value in column), ticks, categorical=True)


def _numbers_first(value: str | int | float) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def _objective_dimension(axis: Axis, values: Sequence[float]) -> Dimension:
    """An axis over the span; lines of values beyond it run through its end."""
    low, high = axis.span
    inside = [min(max(value, low), high) for value in values]
    if not axis.log:
        return Dimension(axis.quantity.title, tuple(inside), _even_ticks(min(inside), max(inside)))
    ticks = tuple((math.log10(tick), f"{tick:g}") for tick in _decades(low, high))
    return Dimension(axis.quantity.title, tuple(math.log10(value) for value in inside), ticks)


def _even_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high], four to ten of them; one where low is high."""
    if low == high:
        return ((low, f"{low:,.4g}"),)
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(power * factor for factor in (0.1, 0.2, 0.5, 1.0) if (high - low) / (power * factor) <= 10)
    ticks = [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return tuple((tick, f"{tick:,.4g}") for tick in ticks)


def _decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within [low, high]; only powers of ten where that is still many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1.0, 2.0, 5.0) if len(powers) <= 4 else (1.0,)
    return [tick for power in powers for tick in (step * 10.0**power for step in steps) if low <= tick <= high]


def progress_data(data: ReportInput) -> ProgressData:
    """Hypervolume as a share of the last one, and where each stage begins."""
    simulations = sorted(data.progress)
    final = data.progress[simulations[-1]] if simulations else 0.0
    share = tuple(data.progress[n] / final if final > 0 else 0.0 for n in simulations)
    first: dict[int, int] = {}
    for trial in sorted(data.trials, key=lambda trial: trial.number):
        first.setdefault(trial.stage, trial.number)
    return ProgressData(tuple(simulations), share, tuple((number, stage) for stage, number in sorted(first.items())))
