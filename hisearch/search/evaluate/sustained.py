"""A deployment at a load that lasts: the workload is carried on until a steady state shows, or its absence does.

Each load is decided by one run, or two: a brief one first, a third of the span that is needed, which shows most
overloads. It refuses a load at which the queue grows fast or a term is missed by far; it never accepts one.
A run also stops by itself once its TTFT term is bound to be missed. If requests turn out to stay for longer than the
span allows for, it is made again, longer than that asks for: a longer run has longer stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hisearch.score.evaluate import Score
from hisearch.score.metrics import metric_of
from hisearch.score.quantities import significant
from hisearch.score.steady_state import (
    LEAST_GROWTH,
    LEAST_SPAN_S,
    Stretch,
    in_measured_part,
    measured,
    queue_growth_rps,
    served_rates,
    span_needed_s,
    stretch_of,
)
from hisearch.score.terms import Check, LimitCheck
from hisearch.search.model.job import Evaluation
from hisearch.simulate.plans.fleet import NEVER, GiveUp
from hisearch.simulate.results.result import Result
from hisearch.specs.studies.slo import SloTerm
from hisearch.traces.changes.continuation import Continuation
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.trace import roots_of

#: Share of the needed span that is simulated first; what refuses a load there: a term's violation, or the queue's
#: growth as a share of the rate of arrivals. Chosen: queues near their limit wander by less.
BRIEF = 1 / 3
BRIEF_MISS = 0.25
BRIEF_GROWTH = 0.05

#: So many requests of the needed span are above the highest percentile of the SLO. With this and ``WHOLE`` capacity
#: moves by less than 3 % where a trace is made longer; chosen.
ABOVE_PERCENTILE = 200


class Least(NamedTuple):
    """Requests and seconds of the span that a verdict takes, at least; ``WHOLE`` is what an answer by itself takes."""

    requests: int
    span_s: float


WHOLE = Least(10_000, LEAST_SPAN_S)

#: Most requests of a run, unless the workload's own trace has more. It bounds what a load costs; a run that it cuts
#: short says so.
MOST_REQUESTS = 240_000

#: Factor on the span that stays ask for. A second run asks for up to a fifth more than the brief one did (draws of an
#: 8B model on eight GPUs): with the factor few runs are made a third time.
SPARE = 1.2

#: Figures of the whole run: of what it costs, and gaps between tokens, which are not kept by request.
_OF_THE_RUN = frozenset({
    "usd_per_hour", "usd_per_million_tokens", "energy_usd_per_hour", "mean_w", "joules_per_token", "utilisation",
    "accelerators", "itl_mean_s", "itl_p50_s", "itl_p90_s", "itl_p95_s", "itl_p99_s",
})  # fmt: skip

#: Likewise where hits in the tiers behind the second are counted by store.
_HITS = frozenset({"hit_rate", "host_hit_rate", "storage_hit_rate"})

#: Label of the check that the queue does not grow.
GROWTH = "queue_growth"

Run = Callable[[CompiledTrace, GiveUp], Result]
#: Scores a result; with a mask of those of the trace's requests that it has.
ScoreOf = Callable[[CompiledTrace, Result, np.ndarray | None], Score]


def sustained(
    continuation: Continuation,
    load: float,
    terms: Sequence[SloTerm],
    run: Run,
    score_of: ScoreOf,
    *,
    only_brief: bool = False,
    to_the_end: bool = False,
    least: Least = WHOLE,
) -> Evaluation:
    """Simulate a load for as long as its verdict takes.

    Args:
        continuation: the workload and how it goes on.
        load: factor on its arrival rate, as ``run`` applies it.
        terms: the SLO's.
        run: replays a trace at that load.
        score_of: scores a run.
        only_brief: whether the brief run alone is made, if there is one; feasible is then what it does not refuse.
        to_the_end: whether a missed load is simulated for the whole span too, for figures that are shown.
        least: of the needed span, however few the SLO's percentiles need.
    """
    cycle_s, (least_s, most_s) = continuation.cycle_s / load, _spans_s(continuation, load, terms, least)
    needed_s = min(least_s, most_s)
    brief = cycle_s <= BRIEF * needed_s
    span_s = BRIEF * needed_s if brief else needed_s
    while True:
        stretch = stretch_of(span_s, cycle_s)
        trace = continuation.lasting(stretch.total_s * load)
        to_show = to_the_end and not brief
        result = run(trace, NEVER if to_show else _give_up(trace, terms, stretch, load))
        score, refused = _decided(trace, result, stretch, score_of, brief)
        wanted_s = span_needed_s(score.metrics["e2e_p99_s"], least_s)
        if brief and only_brief:
            return Evaluation(score.metrics, score.slo, not refused)
        if brief and refused and to_the_end:
            wanted_s = least_s  # requests stay for ever longer
        elif refused or (not brief and span_s >= min(wanted_s, most_s) * (1 - 1e-9)):
            break
        span_s, brief = min(wanted_s if wanted_s == least_s else SPARE * wanted_s, most_s), False
    warnings = [*result.warnings, *score.warnings]
    if not refused and wanted_s > most_s:
        warnings.append(
            f"at {significant(load)} times its rate the workload was carried on for {span_s:,.0f} s, of the "
            f"{wanted_s:,.0f} s that show a steady state: more than {MOST_REQUESTS:,} requests are not simulated"
        )
    return Evaluation(score.metrics, score.slo, score.feasible, warnings=tuple(warnings))


def steady_run(continuation: Continuation, load: float, terms: Sequence[SloTerm] = ()) -> tuple[CompiledTrace, Stretch]:
    """The workload carried on to be replayed at ``load``, and the run's parts.

    It lasts as long as ``sustained`` simulates a load that holds these terms, unless requests stay for longer.
    """
    stretch = stretch_of(min(_spans_s(continuation, load, terms)), continuation.cycle_s / load)
    return continuation.lasting(stretch.total_s * load), stretch


def _spans_s(
    continuation: Continuation, load: float, terms: Sequence[SloTerm], least: Least = WHOLE
) -> tuple[float, float]:
    """Least span of measured arrivals that shows a steady state and these terms, and the longest simulated; seconds."""
    arrivals = continuation.trace.arrays.arrival_s[continuation.trace.arrays.previous < 0]
    own_s = float(np.ptp(arrivals)) / load
    request_s = own_s / len(continuation.trace)
    above = min((1.0 - term.percentile / 100.0 for term in terms), default=1.0)
    requests = max(ABOVE_PERCENTILE / max(above, 1e-3), least.requests)
    return max(least.span_s, own_s, requests * request_s), max(MOST_REQUESTS * request_s, own_s)


def _decided(
    trace: CompiledTrace, result: Result, stretch: Stretch, score_of: ScoreOf, brief: bool
) -> tuple[Score, bool]:
    """The score of a run's measured part, its queue's growth among the checks; and whether it refuses the load."""
    growth, rate = queue_growth_rps(result.requests, stretch), len(trace) / stretch.total_s
    if result.horizon_reached:  # given up: the term is missed, whatever the rest would have been
        score = replace(score_of(trace, result, None), feasible=False)
        refused = True
    else:
        score = score_measured(trace, result, stretch, score_of)
        refused = growth > (BRIEF_GROWTH * rate if brief else 0.0)
        refused |= any(check.violation > (BRIEF_MISS if brief else 0.0) for check in score.slo)
    metrics = score.metrics | {metric_of(GROWTH): growth}
    if growth == 0.0:
        return replace(score, metrics=metrics), refused
    return Score(metrics, (*score.slo, LimitCheck(GROWTH, growth, LEAST_GROWTH * rate)), False), refused


def score_measured(trace: CompiledTrace, result: Result, stretch: Stretch, score_of: ScoreOf) -> Score:
    """The score of a run's measured part; what it costs, and gaps between tokens, are of the whole run.

    Throughput counts what ends in the measured part: under overload that is less than what arrives in it.
    """
    whole = score_of(trace, result, None)
    of_the_run = _OF_THE_RUN | _HITS if result.counts_hits_by_store else _OF_THE_RUN
    part = score_of(trace, measured(result, stretch), in_measured_part(result.requests, stretch))
    metrics = part.metrics | {name: value for name, value in whole.metrics.items() if name in of_the_run}
    metrics |= served_rates(result.requests, stretch)
    checks: tuple[Check, ...] = tuple(
        of_run if isinstance(check, LimitCheck) and metric_of(check.label) in of_the_run else check
        for check, of_run in zip(part.slo, whole.slo, strict=True)
    )
    return Score(metrics, checks, all(check.holds for check in checks))


def _give_up(trace: CompiledTrace, terms: Sequence[SloTerm], stretch: Stretch, load: float) -> GiveUp:
    """Stop once the TTFT term (or TTFO or E2E: no first token is later than others) is bound to be missed.

    TTFO is not of requests without a visible token, which may be as late as they will. Terms about classes do not stop
    a run: others' first tokens may be as late.
    """
    terms = [term for term in terms if not term.of_class]
    by_metric = ([term for term in terms if term.metric == metric] for metric in ("ttft_s", "ttfo_s", "e2e_s"))
    bounds = next(filter(None, by_metric), None)
    if bounds is None:
        return NEVER
    # The percentile lies at or above the bound once this many exceed it, beside all that may arrive in the warm-up.
    term = max(bounds, key=lambda term: term.percentile)
    arrays = trace.arrays
    start_s = arrays.arrival_s[roots_of(arrays.previous)]
    in_warm_up = int((start_s < np.nanmin(arrays.arrival_s) + stretch.warm_up_s * load).sum())
    hidden = int((arrays.thinking_tokens >= arrays.output_tokens).sum()) if term.metric == "ttfo_s" else 0
    return GiveUp(term.at_most_s, hidden + in_warm_up + math.ceil(len(trace) * (1.0 - term.percentile / 100.0)) + 1)
