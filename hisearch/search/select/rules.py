"""Which feasible deployment a study's rule recommends, and why, in numbers.

``cheapest``         the cheapest on the front (``hisearch.search.select.recommend``)
``best_value``       the knee of the front: before it a little money buys much, after it much money buys little
``lowest_latency``   the lowest of the study's first latency objective, or p99 TTFT, within a price
``most_headroom``    the largest load that was simulated and met the SLO, within a price if one is given
``least_energy``     the fewest joules per generated token, within a price if one is given

Every rule chooses among the simulations of the complete trace. The search looks for cheap deployments and widens its
front from there; where the load counts, to the most replicas that are allowed (``refine.raising``). The fastest
deployment of all, or the one of least energy, may be one that it had no reason to try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hisearch.score.metrics import joules_per_generated_token
from hisearch.score.quantities import quantity, significant
from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import Recommendation, Trial, is_maximised, metric_of, price_of
from hisearch.search.select.pareto import front, minimised
from hisearch.search.select.recommend import (
    EQUAL_GOODPUT,
    cheapest,
    in_seconds,
    latencies_instead,
    latency_objective,
    recommend,
    runner_ups,
)
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.studies.study import OF_ENERGY, PRICE, RecommendSpec, RuleName
from hisearch.specs.wording import capitalised, counted, format_percent, listed

#: Deployments whose largest load ``most_headroom`` looks for, and a table that only names its choice.
HEADROOM_CANDIDATES, TABLE_CANDIDATES = 4, 2

#: Rules that need a price limit; in tables, if a study has none: times the cheapest.
WITHIN_PRICE: tuple[RuleName, RuleName] = ("lowest_latency", "most_headroom")
TABLE_LIMIT = 2.0


def recommend_by(
    trials: Sequence[Trial],
    objectives: Sequence[str],
    rule: RecommendSpec,
    *,
    chosen: tuple[Trial, str] | None = None,
    loads: Mapping[int, float] = {},
) -> Recommendation | None:
    """The recommended deployment by a rule; None if nothing is feasible.

    trials: those at other loads too. chosen: a trial chosen by other means than the rule, and why, in two sentences.
    loads: largest simulated load that met the SLO, by trial number; only ``most_headroom`` needs it.
    """
    recommendation = recommend(trials, objectives)
    if recommendation is None:
        return None
    if chosen is not None:
        trial, reason = chosen
    elif rule.rule == "cheapest":
        trial, reason = recommendation.trial, recommendation.reason
    else:
        feasible = [t for t in trials if t.meets_slo]
        inside = [t for t in feasible if _within(t, rule)]
        choice = _RULES[rule.rule] if inside else _too_dear
        trial, reason = choice(_Choice(feasible, inside, objectives, rule, loads))
    if trial is not recommendation.trial:
        feasible = [t for t in trials if t.meets_slo]
        recommendation = Recommendation(trial, reason, runner_ups(trial, feasible, objectives))
    return replace(recommendation, reason=reason, rule=rule.rule)


def knee(trials: Sequence[Trial], objectives: Sequence[str]) -> tuple[Trial, ...]:
    """The front in ``objectives`` and the price, best value first.

    Every objective is taken on a logarithmic scale (a tenth of the price against a tenth of the latency). It is scaled
    to 0 at the best and 1 at the worst of the front. The knee is the point with the smallest mean. In two objectives it
    lies farthest from the straight line between the front's ends, on the better side. In more, it lies farthest from
    the planes on which all objectives trade evenly. Objectives within 1 % over the front are left out as noise. Ties:
    the cheaper, then the earlier trial.
    """
    names = tuple(dict.fromkeys((*objectives, PRICE)))
    points = [trial for trial in front(trials, names) if trial.feasible]
    if not points:
        return ()
    values = minimised(points, names)
    scaled = []
    for column, name in zip(values.T, names, strict=True):
        amounts = -column if is_maximised(name) else column
        logs = np.log(amounts) if (amounts > 0).all() else amounts
        span = float(np.ptp(logs))
        if span > (math.log1p(EQUAL_GOODPUT) if (amounts > 0).all() else 0.0):
            worst_high = logs.max() - logs if is_maximised(name) else logs - logs.min()
            scaled.append(worst_high / span)
    means = np.mean(scaled, axis=0) if scaled else np.zeros(len(points))
    order = sorted(
        range(len(points)), key=lambda i: (round(float(means[i]), 12), price_of(points[i]), points[i].number)
    )
    return tuple(points[i] for i in order)


def preference(
    trials: Sequence[Trial], objectives: Sequence[str], rule: RecommendSpec, loads: Mapping[int, float]
) -> tuple[Trial, ...]:
    """The feasible trials within the rule's price that it may choose, most preferred first.

    For ``cheapest`` the front by price, for ``best_value`` the front in the order of ``knee``, for ``most_headroom``
    the trials of ``loads``. Empty if none is within the price.
    """
    inside = [t for t in trials if t.meets_slo and _within(t, rule)]
    if rule.rule == "best_value":
        return knee(inside, objectives)
    if rule.rule == "lowest_latency":
        return _by_latency(inside, latency_objective(objectives))
    if rule.rule == "most_headroom":
        return _by_load(inside, loads)
    if rule.rule == "least_energy":
        return _by_energy(inside)
    return tuple(sorted(front(inside, objectives), key=lambda t: (price_of(t), t.number)))


def _by_latency(trials: Sequence[Trial], name: str) -> tuple[Trial, ...]:
    """Lowest first; trials with an undefined value are left out."""
    defined = [t for t in trials if not math.isnan(t.metrics[metric_of(name)])]
    return tuple(sorted(defined, key=lambda t: (t.metrics[metric_of(name)], price_of(t), t.number)))


def _by_load(trials: Sequence[Trial], loads: Mapping[int, float]) -> tuple[Trial, ...]:
    """Largest load first, of trials with other loads tried."""
    tried = [t for t in trials if t.number in loads]
    return tuple(sorted(tried, key=lambda t: (-loads[t.number], price_of(t), t.number)))


def _by_energy(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Fewest joules per generated token first, without the last bits, which depend on the order of summation."""
    stated = [t for t in trials if math.isfinite(joules_per_generated_token(t.metrics))]
    return tuple(sorted(stated, key=lambda t: (round(joules_per_generated_token(t.metrics), 9), price_of(t), t.number)))


def headroom_candidates(
    trials: Sequence[Trial],
    rule: RecommendSpec,
    most: int = HEADROOM_CANDIDATES,
    expected: Callable[[Trial], float] | None = None,
) -> list[Trial]:
    """Feasible trials within the rule's price with the widest tightest margin, one of each price, widest first.

    expected: rate that a trial is expected to carry; then those of the largest, one of each, with the widest margin.
    """
    feasible = [t for t in trials if t.meets_slo and _within(t, rule)]
    rank, kind = (lambda t: t.worst_margin, price_of) if expected is None else (expected, expected)
    widest: dict[float, Trial] = {}
    for trial in sorted(feasible, key=lambda t: (-rank(t), -t.worst_margin, t.number)):
        widest.setdefault(kind(trial), trial)
    return list(widest.values())[:most]


def table_limit_usd(trials: Sequence[Trial], objectives: Sequence[str], rule: RecommendSpec) -> float:
    """Price limit for showing rules that need one: the study's, else twice that of the cheapest."""
    if rule.usd_per_hour is not None:
        return rule.usd_per_hour
    best = cheapest([t for t in trials if t.meets_slo], objectives)
    # Owned hardware costs nothing; the limit must be above zero.
    return max(TABLE_LIMIT * price_of(best), 0.01) if best is not None else math.inf


def table_rules(own: RecommendSpec, objectives: Sequence[str], limit_usd: float) -> list[RecommendSpec]:
    """The rules to show: ``least_energy`` only if it is the study's ``own`` rule, or an objective is of energy."""
    specs = [RecommendSpec(), RecommendSpec(rule="best_value")]
    specs += [RecommendSpec(rule=rule, usd_per_hour=limit_usd) for rule in WITHIN_PRICE]
    if own.rule == "least_energy":
        return [*specs, own]
    return specs + [RecommendSpec(rule="least_energy")] * bool(OF_ENERGY.intersection(objectives))


class _Choice(NamedTuple):
    """Input of a rule: feasible trials, those within its price, and the largest loads tried."""

    feasible: Sequence[Trial]
    inside: Sequence[Trial]
    objectives: Sequence[str]
    rule: RecommendSpec
    loads: Mapping[int, float]

    @property
    def limit(self) -> str:
        """`` within $42.00 per hour``, or "" without a limit."""
        return "" if self.rule.usd_per_hour is None else f" within ${self.rule.usd_per_hour:,.2f} per hour"

    def alternatives(self, best: Trial, following: Sequence[Trial]) -> list[tuple[Trial, str]]:
        """The next one by the rule, and the cheapest of all if it is neither."""
        alternatives = [(trial, "next") for trial in following[:1]]
        least = cheapest(self.feasible, self.objectives)
        if least is not None and least.number not in {best.number, *(trial.number for trial, _ in alternatives)}:
            alternatives.append((least, "the cheapest that meets the SLO"))
        return alternatives


def _within(trial: Trial, rule: RecommendSpec) -> bool:
    return rule.usd_per_hour is None or price_of(trial) <= rule.usd_per_hour


def _best_value(given: _Choice) -> tuple[Trial, str]:
    ordered = knee(given.inside, given.objectives)
    best = ordered[0]
    cheaper = max((price_of(t) for t in ordered if price_of(t) < price_of(best)), default=None)
    dearer = min((price_of(t) for t in ordered if price_of(t) > price_of(best)), default=None)
    adjacent = [next(t for t in ordered if price_of(t) == usd) for usd in (cheaper, dearer) if usd is not None]
    sides = [
        f"the next on it, {describe(trial.deployment)}, is {_changes(best, trial, given.objectives)}"
        for trial in adjacent
    ]
    return best, (
        f"{describe(best.deployment)} is the knee of the front of {counted(len(ordered), 'deployment')}{given.limit}: "
        f"{_figures(best, given.objectives)}.{_sentence(sides) or ' The others cost the same.'}"
    )


def _lowest_latency(given: _Choice) -> tuple[Trial, str]:
    name = latency_objective(given.objectives)
    ordered = _by_latency(given.inside, name)
    if not ordered:
        best, text = _cheapest_of(given), f"No deployment has a {quantity(name).label}; this is the cheapest"
    else:
        best, text = ordered[0], f"the lowest {quantity(name).label} found{given.limit}"
        text = f"{describe(best.deployment)} has {text}"
    sides = [
        f"{words}, {describe(t.deployment)}, is {_changes(best, t, (name, *given.objectives))}"
        for t, words in given.alternatives(best, ordered[1:])
    ]
    return best, f"{text}: {_figures(best, given.objectives)}.{_sentence(sides)}"


def _most_headroom(given: _Choice) -> tuple[Trial, str]:
    ordered = _by_load(given.inside, given.loads)
    if not ordered:
        best = _cheapest_of(given)
        return best, f"No other load was simulated; this is the cheapest: {_figures(best, given.objectives)}."
    best = ordered[0]
    sides = [
        f"{words}, {describe(t.deployment)}, {given.loads[t.number]:.3g} × at {_usd(t)}"
        for t, words in given.alternatives(best, ordered[1:])
        if t.number in given.loads
    ]
    return best, (
        f"{describe(best.deployment)} carries {given.loads[best.number]:.3g} × this load within the SLO at "
        f"{_usd(best)}, the most of {counted(len(ordered), 'deployment')}{given.limit} that other loads were tried "
        f"on.{_sentence(sides)}"
    )


def _least_energy(given: _Choice) -> tuple[Trial, str]:
    ordered = _by_energy(given.inside)
    if not ordered:
        best = _cheapest_of(given)
        figures = _figures(best, given.objectives)
        return best, f"No deployment states joules per generated token; this is the cheapest: {figures}."
    best = ordered[0]
    sides = [
        f"{words}, {describe(t.deployment)}, takes {_joules(t)} and is {_changes(best, t, given.objectives)}"
        for t, words in given.alternatives(best, ordered[1:])
    ]
    return best, (
        f"{describe(best.deployment)} takes {_joules(best)} per generated token, the least of "
        f"{counted(len(ordered), 'deployment')} within the SLO{given.limit and ' and' + given.limit}: "
        f"{_figures(best, given.objectives)}.{_sentence(sides)}"
    )


def _joules(trial: Trial) -> str:
    return f"{significant(joules_per_generated_token(trial.metrics))} J"


def _sentence(parts: Sequence[str]) -> str:
    """`` The parts; as a sentence.`` after another one; "" without any."""
    return f" {capitalised('; '.join(parts))}." if parts else ""


def _too_dear(given: _Choice) -> tuple[Trial, str]:
    """The cheapest of all, if nothing within the price meets the SLO."""
    best, limit = _cheapest_of(given), given.rule.usd_per_hour or 0.0
    return best, (
        f"Nothing that was simulated meets the SLO within ${limit:,.2f} per hour. This is the cheapest that does, "
        f"${price_of(best) - limit:,.2f} per hour above it: {describe(best.deployment)}, "
        f"{_figures(best, given.objectives)}."
    )


def _cheapest_of(given: _Choice) -> Trial:
    best = cheapest(given.inside or given.feasible, given.objectives)
    assert best is not None  # a rule is applied only if something is feasible
    return best


_RULES: dict[str, Callable[[_Choice], tuple[Trial, str]]] = {
    "best_value": _best_value,
    "lowest_latency": _lowest_latency,
    "most_headroom": _most_headroom,
    "least_energy": _least_energy,
}


def against_baseline(best: Trial, baseline: Trial, objectives: Sequence[str]) -> str:
    """One sentence that compares a deployment with the engine's defaults, sized to meet the load."""
    pool = baseline.deployment.pools[0]
    what = f"{ENGINE_TITLES[pool.engine.name]} with its default settings, {describe(baseline.deployment)}"
    share = price_of(best) / price_of(baseline) - 1.0 if price_of(baseline) > 0 else 0.0
    price = "as dear" if abs(share) < 0.0005 else f"{format_percent(abs(share), 1)} {_less_or_more(share)}"
    figures = latencies_instead(best, baseline, objectives)
    miss = "" if baseline.feasible else " (which misses the SLO with every number of replicas tried)"
    return f"Against {what} at {_usd(baseline)}{miss}, it is {price}{', with ' * bool(figures)}{listed(figures)}."


def _less_or_more(share: float) -> str:
    return "cheaper" if share < 0 else "dearer"


def _usd(trial: Trial) -> str:
    return f"${trial.metrics[PRICE]:,.2f} per hour"


def _figures(trial: Trial, objectives: Sequence[str]) -> str:
    """Price, then every other objective."""
    return ", ".join([_usd(trial), *(_figure(trial, name) for name in objectives if name != PRICE)])


def _figure(trial: Trial, name: str) -> str:
    value = trial.objective(name)
    if metric_of(name).endswith("_s"):
        return f"{quantity(name).within} {in_seconds(value)}"
    return f"{quantity(name).within} {value:.3g}"


def _changes(best: Trial, trial: Trial, objectives: Sequence[str]) -> str:
    """``12 % cheaper, with TTFT p99 40 % higher and goodput 1 % lower``: ``trial`` against ``best``."""
    share = price_of(trial) / price_of(best) - 1.0 if price_of(best) > 0 else 0.0
    price = "equally priced" if abs(share) < 0.0005 else f"{format_percent(abs(share), 1)} {_less_or_more(share)}"
    changes = []
    for name in dict.fromkeys(objectives):
        ours, theirs = best.objective(name), trial.objective(name)
        if name == PRICE or not ours or not math.isfinite(ours) or not math.isfinite(theirs):
            continue
        change = theirs / ours - 1.0
        if abs(change) >= 0.0005:
            changes.append(
                f"{quantity(name).within} {format_percent(abs(change), 1)} {'higher' if change > 0 else 'lower'}"
            )
    return f"{price}, with {listed(changes)}" if changes else price
