"""How evenly a deployment serves tenants that compete for it.

Notation
    service  1 per prompt token, when its request is first scheduled, and 2 per output token, spread evenly from the
             first token to the last; weights as of Sheng et al., "Fairness in Serving Large Language Models" (OSDI
             2024)
    G        moments that are looked at; T tenants

The largest difference of service is that of any two tenants over any period in which both had requests waiting. A fair
order of the queue keeps it within a bound, however long the period is; by arrival it grows with the period.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome

#: Weights of prompt and output tokens.
INPUT_WEIGHT, OUTPUT_WEIGHT = 1.0, 2.0
#: Tenants that are compared, those with the most requests; moments that are looked at, spread over all events.
MOST_TENANTS, MOST_MOMENTS = 20, 20_000


@dataclass(frozen=True)
class ServiceDifference:
    """The largest difference of service, see the module.

    tokens: weighted. more, less: tenants. from_s, to_s: the period. share: of the service of both in that period.
    """

    tokens: float
    more: int
    less: int
    from_s: float
    to_s: float
    share: float


def largest_service_difference(result: Result) -> ServiceDifference | None:
    """Of a finished simulation; None where no two tenants had requests waiting at the same time.

    Requests that are never scheduled wait until the end, those turned away do not count.

    Raises:
        ValueError: the table of requests does not know their tenants.
    """
    requests = result.requests
    if requests.tenant is None:
        raise ValueError("the requests' tenant is not known here")
    counted = np.isin(requests.outcome, (Outcome.FINISHED, Outcome.IN_FLIGHT))
    numbers, counts = np.unique(requests.tenant[counted], return_counts=True)
    tenants = np.sort(numbers[np.argsort(-counts, kind="stable")][:MOST_TENANTS])
    if len(tenants) < 2:
        return None
    moments_s = _moments(result, counted)
    of_tenant = [counted & (requests.tenant == tenant) for tenant in tenants]
    service = [_service(result, mine, moments_s) for mine in of_tenant]
    waiting = [_waiting(result, mine, moments_s) for mine in of_tenant]
    largest: ServiceDifference | None = None
    for a, b in combinations(range(len(tenants)), 2):
        both = np.concatenate(([0], (waiting[a] & waiting[b]).astype(np.int8), [0]))
        gap = service[a] - service[b]
        for begin, end in np.flatnonzero(np.diff(both)).reshape(-1, 2).tolist():
            low, high = sorted((begin + int(np.argmin(gap[begin:end])), begin + int(np.argmax(gap[begin:end]))))
            difference = float(gap[high] - gap[low])
            if high == low or (largest is not None and abs(difference) <= largest.tokens):
                continue
            more, less = (a, b) if difference > 0 else (b, a)
            of_both = sum(float(service[k][high] - service[k][low]) for k in (a, b))
            largest = ServiceDifference(
                abs(difference),
                int(tenants[more]),
                int(tenants[less]),
                float(moments_s[low]),
                float(moments_s[high]),
                abs(difference) / of_both if of_both > 0 else math.nan,
            )
    return largest


def _moments(result: Result, counted: np.ndarray) -> F8:
    """Times of arrivals, first schedulings, first tokens and ends; shape (G,). Between two, service grows evenly."""
    requests = result.requests
    columns = (requests.arrival_s, requests.scheduled_s, requests.first_token_s, requests.finish_s)
    times = np.concatenate([column[counted] for column in columns])
    times = np.unique(times[np.isfinite(times)])
    if len(times) > MOST_MOMENTS:
        times = times[np.linspace(0, len(times) - 1, MOST_MOMENTS).astype(np.int64)]
    return times


def _service(result: Result, mine: np.ndarray, moments_s: F8) -> F8:
    """Service of the requests of a mask up to each moment; shape (G,)."""
    requests = result.requests
    scheduled = mine & np.isfinite(requests.scheduled_s)
    total = INPUT_WEIGHT * _sum_until(requests.scheduled_s[scheduled], requests.input_tokens[scheduled], moments_s)
    ended = mine & requests.finished
    total += OUTPUT_WEIGHT * _sum_until(requests.first_token_s[ended], np.ones(int(ended.sum())), moments_s)
    begin_s, end_s = requests.first_token_s[ended], requests.finish_s[ended]
    several = end_s > begin_s
    begin_s, end_s = begin_s[several], end_s[several]
    tokens_per_s = OUTPUT_WEIGHT * (requests.output_tokens[ended][several] - 1) / (end_s - begin_s)
    for times_s, sign in ((begin_s, 1.0), (end_s, -1.0)):
        rate = _sum_until(times_s, tokens_per_s, moments_s)
        total += sign * (rate * moments_s - _sum_until(times_s, tokens_per_s * times_s, moments_s))
    return np.asarray(total)


def _sum_until(times_s: F8, values: np.ndarray, moments_s: F8) -> F8:
    """Sum of the values whose time has come by each moment; shape (G,)."""
    order = np.argsort(times_s, kind="stable")
    sums = np.concatenate(([0.0], np.cumsum(values[order])))
    return np.asarray(sums[np.searchsorted(times_s[order], moments_s, side="right")])


def _waiting(result: Result, mine: np.ndarray, moments_s: F8) -> np.ndarray:
    """Whether requests of a mask have come and are not scheduled right after each moment; shape (G,)."""
    requests = result.requests
    ones = np.ones(len(mine))
    scheduled = mine & np.isfinite(requests.scheduled_s)
    came = _sum_until(requests.arrival_s[mine], ones[mine], moments_s)
    return np.asarray(came > _sum_until(requests.scheduled_s[scheduled], ones[scheduled], moments_s))
