"""Whether a deployment carries its load for good: what of a run is measured, and whether its queue grows.

A run that is to show a steady state has a warm-up and a measured part. Percentiles cover the requests that arrive in
the measured part. The queue is the number of requests in the system, waiting or running: by Little's law it has a trend
exactly where time in system has one. Two stretches of equal length, ``lag_s`` apart, are compared cell by cell: of a
traffic with a rhythm they are whole cycles apart, so that equal hours of the day are compared. The queue grows where

- the later cells hold more than the earlier ones, by Wilcoxon's signed-rank test, one-sided, with ``CONFIDENCE``. Ranks
  make it robust: a burst fills a few cells, an overload raises all of them;
- and it grows by more than ``LEAST_GROWTH`` of the rate of arrivals, and by more than ``DEVIATIONS`` times the square
  root of the queue between the two stretches. A queue near its limit wanders by so much without a trend.

Where more requests arrive in the later stretch, as while conversations accumulate, so many more may be in the system.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.score.quantities import significant
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome, RequestTable
from hisearch.specs.wording import format_percent

#: Least span of measured arrivals: seconds, and times the 99th percentile of the time in system.
LEAST_SPAN_S = 600.0
SPANS_OF_STAY = 20.0

#: Share of the measured part that the warm-up before it lasts, and share of a cycle if it is a single one.
WARM_UP_SHARE = 0.1
WARM_UP_CYCLE_SHARE = 1 / 3

#: Cells of each of the two stretches, probability that a queue without a trend is not taken for one with it (under
#: independent cells), and the least growth that counts: a share of the rate of arrivals; standard deviations of a
#: Poisson number as large as the queue. Chosen: both below the 3 % within which a capacity is to be told.
CELLS = 10
CONFIDENCE = 0.99
LEAST_GROWTH = 0.01
DEVIATIONS = 3.0

#: What tells a trend, for people.
TREND_TEST = f"Wilcoxon's signed-rank test, {format_percent(CONFIDENCE)} confidence"


@dataclass(frozen=True)
class Stretch:
    """Parts of a run, in simulated seconds. lag_s: between the stretches that the test compares."""

    warm_up_s: float
    measured_s: float
    lag_s: float

    @property
    def total_s(self) -> float:
        """Warm-up and measured part."""
        return self.warm_up_s + self.measured_s


def stretch_of(span_s: float, cycle_s: float) -> Stretch:
    """A run whose measured part lasts ``span_s`` or longer: whole cycles, if the traffic has any (``cycle_s`` > 0)."""
    if cycle_s <= 0:
        return Stretch(WARM_UP_SHARE * span_s, span_s, span_s / 2)
    cycles = max(int(np.ceil(span_s / cycle_s - 1e-9)), 1)
    measured_s = cycles * cycle_s
    warm_up_s = WARM_UP_CYCLE_SHARE * cycle_s if cycles == 1 else WARM_UP_SHARE * measured_s
    return Stretch(warm_up_s, measured_s, max(cycles // 2, 1) * cycle_s)


def span_needed_s(e2e_p99_s: float, least_s: float = LEAST_SPAN_S) -> float:
    """Least span of measured arrivals at this 99th percentile of the time in system, ``least_s`` or more, seconds."""
    return max(least_s, SPANS_OF_STAY * e2e_p99_s)


def queue_growth_rps(requests: RequestTable, stretch: Stretch) -> float:
    """Requests per second by which the queue grows; 0.0 where the test finds no trend.

    requests: of a run with these parts; times count from the first arrival. One that stopped early is tested as far as
    it went if its traffic has no rhythm there, and else has no verdict.
    """
    arrival_s, gone_s = _times(requests)
    if not len(arrival_s):
        return 0.0
    begin_s, last_s = float(arrival_s[0]), float(arrival_s[-1])
    total_s, lag_s = stretch.total_s, stretch.lag_s
    if (requests.outcome == Outcome.UNREACHED).any() and last_s - begin_s < total_s:
        total_s = last_s - begin_s
        lag_s = 0.4 * total_s
        if stretch.lag_s * 2 > stretch.measured_s:
            return 0.0
    width_s = min(lag_s, total_s - lag_s - WARM_UP_SHARE * stretch.warm_up_s)
    if not width_s > 0:
        return 0.0
    edges = begin_s + total_s - width_s + width_s * np.linspace(0.0, 1.0, CELLS + 1)
    later, earlier = _mean_queue(arrival_s, gone_s, edges), _mean_queue(arrival_s, gone_s, edges - lag_s)
    came, came_before = (np.diff(np.searchsorted(arrival_s, ends[[0, -1]]))[0] for ends in (edges, edges - lag_s))
    gained = later - earlier * max(came / max(came_before, 1), 1.0)
    growth = float(gained.mean()) / lag_s
    least = max(LEAST_GROWTH * came / width_s * lag_s, DEVIATIONS * float(np.sqrt(earlier.mean())))
    return growth if growth * lag_s > least and _rises(gained) else 0.0


def format_growth(growth_rps: float) -> str:
    """``the queue grows by 3.1 requests a second``, with the test that tells so."""
    return f"the queue grows by {significant(growth_rps, 2)} requests a second ({TREND_TEST})"


def keeps_up(requests: RequestTable, span_s: float) -> bool:
    """Whether all that came was answered, and the queue does not grow within ``span_s`` of the first arrival."""
    stretch = Stretch(0.0, span_s, span_s / 2)
    return bool(requests.finished.all()) and queue_growth_rps(requests, stretch) == 0.0


def _times(requests: RequestTable) -> tuple[F8, F8]:
    """Sorted times at which served requests came, and left; infinite where they never did."""
    served = (requests.outcome == Outcome.FINISHED) | (requests.outcome == Outcome.IN_FLIGHT)
    gone_s = np.where(np.isnan(requests.finish_s[served]), np.inf, requests.finish_s[served])
    return np.sort(requests.arrival_s[served]), np.sort(gone_s)


def _mean_queue(arrival_s: F8, gone_s: F8, edges: F8) -> F8:
    """Mean number in the system between neighbouring edges; shape (len(edges) - 1,)."""
    finite = gone_s[np.isfinite(gone_s)]
    spent = _elapsed(arrival_s, edges) - _elapsed(finite, edges)
    return np.asarray(np.diff(spent) / np.diff(edges))


def _elapsed(times_s: F8, edges: F8) -> F8:
    """Sum over ``times_s``, sorted, of the seconds since each, at every edge; shape of ``edges``."""
    before = np.searchsorted(times_s, edges)
    return np.asarray(edges * before - np.concatenate(([0.0], np.cumsum(times_s)))[before])


def _rises(gained: F8) -> bool:
    """Wilcoxon's signed-rank test, one-sided: whether the differences lie above 0 with ``CONFIDENCE``."""
    from scipy.stats import wilcoxon

    if not np.any(gained):
        return False
    return bool(wilcoxon(gained, alternative="greater").pvalue <= 1.0 - CONFIDENCE)


def in_measured_part(requests: RequestTable, stretch: Stretch) -> np.ndarray:
    """Mask of the requests that arrive in the measured part, shape (N,)."""
    begin_s = float(np.nanmin(requests.arrival_s)) + stretch.warm_up_s
    return np.asarray((requests.arrival_s >= begin_s) & (requests.arrival_s < begin_s + stretch.measured_s))


def served_rates(requests: RequestTable, stretch: Stretch) -> dict[str, float]:
    """Requests and tokens per second of what ends in the measured part."""
    begin_s = float(np.nanmin(requests.arrival_s)) + stretch.warm_up_s
    inside = requests.finished & (requests.finish_s >= begin_s) & (requests.finish_s < begin_s + stretch.measured_s)
    output, prompt = int(requests.output_tokens[inside].sum()), int(requests.input_tokens[inside].sum())
    return {
        "throughput_rps": int(inside.sum()) / stretch.measured_s,
        "output_tokens_per_s": output / stretch.measured_s,
        "total_tokens_per_s": (prompt + output) / stretch.measured_s,
    }


def measured(result: Result, stretch: Stretch) -> Result:
    """The result of the requests that arrive in the measured part, over its length; workers' figures stay the run's."""
    inside = in_measured_part(result.requests, stretch)
    columns = {name: values[inside] for name, values in result.requests.columns().items()}
    return replace(result, requests=RequestTable(**columns), makespan_s=stretch.measured_s)
