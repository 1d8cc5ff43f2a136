"""Capacity: the largest factor on the trace's arrival rate at which the SLO still holds, in a steady state."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hisearch.score.evaluate import Score


@dataclass(frozen=True)
class Capacity:
    """Outcome of a capacity search.

    load: largest feasible load factor simulated; 0.0 if none was feasible.
    goodput_rps: goodput at that load, requests per second; 0.0 if none was feasible.
    infeasible_load: smallest infeasible load factor simulated; infinite if none was.
    simulations: loads that were simulated.
    queue_growth_rps: requests per second by which the queue grows at ``infeasible_load``; 0.0 if it has no trend there,
    and only a term is missed.
    """

    load: float
    goodput_rps: float
    infeasible_load: float
    simulations: int
    queue_growth_rps: float = 0.0


def capacity(
    simulate_at: Callable[[float], Score],
    *,
    start: float = 1.0,
    growth: float = 2.0,
    relative_tolerance: float = 0.05,
    max_load: float = 64.0,
    min_load: float = 1.0 / 64.0,
) -> Capacity:
    """Bracket the largest feasible load by growing or shrinking from ``start``, then bisect it geometrically.

    Feasibility need not be monotone in load: a burst may happen to align with a router's or an eviction's decisions.
    The result therefore describes simulated loads only, never an extrapolation: ``load`` was feasible,
    ``infeasible_load`` was not. When bracketed, they are within ``relative_tolerance`` of each other. With several
    crossings it is one of them.

    Args:
        simulate_at: scores the deployment at a load factor, in a steady state (``score.steady_state``).
        start: first load tried.
        growth: factor between loads while bracketing, > 1.
        relative_tolerance: stop once the infeasible load is within this share above the feasible one.
        max_load: growth stops here; if it is feasible it is the answer.
        min_load: shrinking stops here; if it is infeasible the capacity is 0.

    Raises:
        ValueError: ``growth`` is not above 1, the tolerance is not above 0, or ``start`` is outside the limits.
    """
    if growth <= 1.0 or relative_tolerance <= 0.0 or not min_load <= start <= max_load:
        raise ValueError(
            "capacity needs growth > 1, relative_tolerance > 0 and min_load <= start <= max_load; got "
            f"growth={growth}, relative_tolerance={relative_tolerance}, start={start} in [{min_load}, {max_load}]"
        )
    low, high, goodput, queue_growth, simulations = 0.0, math.inf, 0.0, 0.0, 0
    load = start
    while True:
        score = simulate_at(load)
        simulations += 1
        if score.feasible:
            low, goodput = load, score.metrics["goodput_rps"]
        else:
            high, queue_growth = load, score.metrics.get("queue_growth_rps", 0.0)
        if low >= max_load or high <= min_load or high <= low * (1.0 + relative_tolerance):
            return Capacity(low, goodput, high, simulations, queue_growth)
        load = _next_load(low, high, growth, min_load, max_load)


def _next_load(low: float, high: float, growth: float, min_load: float, max_load: float) -> float:
    if math.isinf(high):
        return min(low * growth, max_load)
    if low == 0.0:
        return max(high / growth, min_load)
    return math.sqrt(low * high)
