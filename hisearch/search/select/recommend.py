"""Which deployment to recommend, why, and its closest competitors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hisearch.score.quantities import quantity, titled
from hisearch.score.stated import LATENCIES
from hisearch.score.terms import Check, LimitCheck, RejectionCheck, TermCheck
from hisearch.search.model.deployments import (
    SHAPES,
    accelerators_of,
    describe,
    engines_of,
    shape_of,
    width_of_formats,
)
from hisearch.search.model.trial import Recommendation, Trial, metric_of, price_of
from hisearch.search.select.pareto import front, miss_order
from hisearch.specs.deployments.agent_memory import ENGINE_POLICIES
from hisearch.specs.studies.study import PRICE
from hisearch.specs.wording import counted, format_percent, listed

#: Among equally priced deployments, tightest margins within this share of the bound count as equal, and goodputs within
#: this share: one request more or less moves a percentile by as much.
EQUAL_MARGIN = 0.01
EQUAL_GOODPUT = 0.01

#: A miss is near while no value is beyond its bound by more than this share of it: at most twice the bound.
NEAR_MISS = 1.0


def recommend(trials: Sequence[Trial], objectives: Sequence[str]) -> Recommendation | None:
    """The recommended deployment, with the reason and up to six runner-ups; None if nothing is feasible.

    It is the ``preferred`` one of all that an engine can run; what a policy that no release has would bring is said
    beside it. Runner-ups, among simulated ones: the cheapest, the equally priced one with the
    widest margin, the cheapest on another accelerator, the one with the lowest first latency objective, and the
    cheapest on another engine. If an objective is in dollars per something other than the hour, also the preferred one
    on another accelerator.
    """
    comparable = [trial for trial in trials if trial.comparable]
    feasible = [trial for trial in comparable if trial.feasible]
    best = recommended(comparable, objectives)
    if best is None:
        return None
    known = [trial for trial in comparable if _has_policy(trial)] if _has_policy(best) else comparable
    reason = _reason(best, [trial for trial in known if trial.feasible], known, objectives)
    reason += _foresight(best, feasible, objectives)
    return Recommendation(best, reason, runner_ups(best, feasible, objectives))


def recommended(trials: Sequence[Trial], objectives: Sequence[str]) -> Trial | None:
    """The trial of ``recommend`` alone: of those that an engine can run, where any meets the SLO."""
    feasible = [trial for trial in trials if trial.meets_slo]
    return preferred([trial for trial in feasible if _has_policy(trial)] or feasible, objectives)


def _has_policy(trial: Trial) -> bool:
    """Whether releases of the trial's engines have its policies for agents' objects."""
    pools = trial.deployment.pools
    return all(pool.agents is None or pool.agents.policy in ENGINE_POLICIES[pool.engine.name] for pool in pools)


def preferred(feasible: Sequence[Trial], objectives: Sequence[str]) -> Trial | None:
    """The cheapest feasible trial on the front of ``objectives``; None if there are none.

    If price is an objective, the widest formats of all equally priced ones decide first, as they change the model
    least: the front is that of such deployments. Then the largest tightest margin against the SLO decides, which makes
    it likelier to hold, then the goodput, if they differ by more than ``EQUAL_MARGIN`` and ``EQUAL_GOODPUT``. Then the
    lower p99 TTFT, then the earlier trial.
    """
    best = front(feasible, objectives)
    if not best:
        return None
    price = min(price_of(trial) for trial in best)
    best = [trial for trial in (feasible if PRICE in objectives else best) if price_of(trial) == price]
    formats = max(width_of_formats(trial.deployment) for trial in best)
    best = front([trial for trial in best if width_of_formats(trial.deployment) == formats], objectives)
    margin = max(trial.worst_margin for trial in best) - EQUAL_MARGIN
    best = [trial for trial in best if trial.worst_margin >= margin]
    goodput = max(trial.metrics["goodput_rps"] for trial in best) * (1 - EQUAL_GOODPUT)
    best = [trial for trial in best if trial.metrics["goodput_rps"] >= goodput]
    return min(best, key=lambda trial: (trial.metrics["ttft_p99_s"], trial.number))


def cheapest(feasible: Sequence[Trial], objectives: Sequence[str]) -> Trial | None:
    """The ``preferred`` one with price added to the objectives: the cheapest of all."""
    return preferred(feasible, tuple(dict.fromkeys((*objectives, PRICE))))


def cheapest_usd(trials: Iterable[Trial]) -> float:
    """Dollars per hour of the cheapest of ``trials`` that meets the SLO; infinite without one."""
    return min((trial.metrics["usd_per_hour"] for trial in trials if trial.meets_slo), default=math.inf)


def widest(best: Trial, trials: Sequence[Trial]) -> Trial | None:
    """The feasible deployment at the price of ``best`` with the widest tightest margin.

    None if that is not wider by more than ``EQUAL_MARGIN``. It may be off the front: margin is no objective.
    """
    equal = [trial for trial in trials if trial.meets_slo and price_of(trial) == price_of(best)]
    widest_margin = max(equal, key=lambda trial: (trial.worst_margin, -trial.number), default=None)
    return (
        widest_margin
        if widest_margin is not None and widest_margin.worst_margin > best.worst_margin + EQUAL_MARGIN
        else None
    )


def nearest_miss(trials: Sequence[Trial]) -> Trial | None:
    """The infeasible deployment whose worst miss is smallest; None without any."""
    missed = [trial for trial in trials if trial.comparable and not trial.feasible]
    return min(missed, key=miss_order, default=None)


def is_near(miss: Trial) -> bool:
    """Whether an infeasible deployment comes near enough to be offered: see ``NEAR_MISS``."""
    return miss.worst_violation <= NEAR_MISS


def describe_miss(trial: Trial) -> list[str]:
    """Each SLO term of a trial in one line: value, bound, and the distance between them."""
    return [format_term(check) for check in trial.slo]


def format_term(check: Check) -> str:
    """``TTFT p99 0.61 s of at most 2 s: 70 % left``; of rejections ``Rejected 2.50 % of at most 0 %: missed``."""
    if isinstance(check, RejectionCheck):
        verdict = "met" if check.holds else f"missed, {check.note}"
        return f"{titled(check)} {format_percent(check.value, 2)} of at most {check.bound * 100:g} %: {verdict}"
    if check.margin is None:
        return f"{titled(check)} {check.note}"
    verdict = f"{format_percent(check.margin)} left" if check.holds else f"missed by {format_percent(-check.margin)}"
    if isinstance(check, LimitCheck):
        direction = "at least" if check.at_least else "at most"
        return f"{titled(check)} {check.value:.4g} of {direction} {check.bound:g}: {verdict}"
    return f"{titled(check)} {in_seconds(check.value_s or 0.0)} of at most {in_seconds(check.bound_s)}: {verdict}"


def in_seconds(value_s: float) -> str:
    """``0.61 s``, ``43 ms``."""
    return f"{value_s * 1e3:.3g} ms" if value_s < 0.1 else f"{value_s:.3g} s"


def _reason(best: Trial, feasible: Sequence[Trial], comparable: Sequence[Trial], objectives: Sequence[str]) -> str:
    """Two sentences: its price and performance, and the next cheaper ones."""
    metrics = best.metrics
    unbeaten = (
        ""
        if PRICE in objectives
        else f" that none beats in all of {listed([quantity(name).within for name in objectives])}"
    )
    tightest = max((c for c in best.slo if isinstance(c, TermCheck)), key=lambda check: check.violation)
    first = (
        f"{describe(best.deployment)} is the cheapest{unbeaten} of {len(feasible):,} feasible among "
        f"{counted(len(comparable), 'deployment')} simulated on the whole trace: ${metrics['usd_per_hour']:,.2f} per "
        f"hour for {_what_for(metrics)}, its tightest term being "
        f"{format_term(tightest)}."
    )
    serving = cheapest([trial for trial in feasible if price_of(trial) < price_of(best)], objectives)
    if serving is not None:
        count = sum(price_of(trial) < price_of(best) for trial in feasible)
        return (
            f"{first} The SLO is also met by {counted(count, 'cheaper one')}, from ${price_of(serving):,.2f} per hour "
            f"({describe(serving.deployment)}), but beaten in those objectives, of which price is none."
        )
    cheaper = [trial for trial in comparable if not trial.feasible and price_of(trial) < price_of(best)]
    nearest = nearest_miss(cheaper)
    if nearest is None:
        return f"{first} Nothing cheaper was simulated on the whole trace."
    worst = max(nearest.slo, key=lambda check: check.violation)
    miss = (
        f"{worst.requests:,} of {counted(worst.arrived, 'request')} are rejected, more than the SLO allows"
        if isinstance(worst, RejectionCheck)
        else f"{titled(worst)} is missed by {format_percent(worst.violation)}"
    )
    return (
        f"{first} The SLO is missed by {counted(len(cheaper), 'cheaper one')}, most narrowly by "
        f"{describe(nearest.deployment)} at ${nearest.metrics['usd_per_hour']:,.2f} per hour, where {miss}."
    )


def _foresight(best: Trial, feasible: Sequence[Trial], objectives: Sequence[str]) -> str:
    """A sentence on what a policy that no engine has would bring; "" where none is tried or beats ``best``."""
    other = preferred(feasible, objectives)
    if other is None or _has_policy(other):
        return "" if _has_policy(best) else " No release of the engine has its policy for agents' objects."
    if not _has_policy(best):
        return " No release of the engine has its policy for agents' objects."
    policies = listed([pool.agents.policy for pool in other.deployment.pools if pool.agents is not None])
    return (
        f" With the policy {policies}, which no release of the engine has, {describe(other.deployment)} would cost "
        f"${other.metrics['usd_per_hour']:,.2f} per hour for {_what_for(other.metrics)}, with distances as good as the "
        "workload's."
    )


def _what_for(metrics: Mapping[str, float]) -> str:
    """``58.6 good requests per second``; with populations of other sizes tried, how many agents first."""
    good = f"{metrics['goodput_rps']:.3g} good requests per second"
    most = metrics.get("agents", 0.0)
    return f"up to {most:,.0f} agents within the SLO; with the workload's own, {good}" if most else good


def runner_ups(best: Trial, feasible: Sequence[Trial], objectives: Sequence[str]) -> tuple[tuple[Trial, str], ...]:
    """Distinct alternatives, up to six and one of each other shape, with the trade-off of each."""
    elsewhere = [t for t in feasible if accelerators_of(t.deployment) != accelerators_of(best.deployment)]
    other_engine = [t for t in feasible if engines_of(t.deployment) != engines_of(best.deployment)]
    cheaper = [t for t in feasible if price_of(t) < price_of(best)]
    latency = latency_objective(objectives)
    values = {t.number: t.metrics[metric_of(latency)] for t in feasible}
    least = min((value for value in values.values() if not math.isnan(value)), default=math.nan)
    fastest = [t for t in feasible if values[t.number] == least]
    choices = [
        (cheapest(cheaper, objectives), "cheapest found that meets the SLO"),
        (widest(best, feasible), "widest margin found at this price"),
        (cheapest(elsewhere, objectives), "cheapest found on another accelerator"),
        (_best_by(elsewhere, objectives), "best by the study's objectives on another accelerator"),
        (cheapest(fastest, objectives), f"lowest {quantity(latency).label} found"),
        (cheapest(other_engine, objectives), "cheapest found on another engine"),
    ]
    for shape, words in SHAPES.items():
        of_shape = [t for t in feasible if shape_of(t.deployment) == shape != shape_of(best.deployment)]
        choices.append((cheapest(of_shape, objectives), f"cheapest found with {words}"))
    chosen: list[tuple[Trial, str]] = []
    taken = {best.number}
    for trial, title in choices:
        if trial is not None and trial.number not in taken:
            taken.add(trial.number)
            chosen.append((trial, f"{title}: {_trade(best, trial, objectives)}"))
    return tuple(chosen)


def _best_by(feasible: Sequence[Trial], objectives: Sequence[str]) -> Trial | None:
    """The ``preferred`` one if an objective is in dollars per something other than a deployment's hour."""
    by_other_dollars = PRICE not in objectives and any(name.startswith("usd_") for name in objectives)
    return preferred(feasible, objectives) if by_other_dollars else None


def latency_objective(objectives: Sequence[str]) -> str:
    """The first latency among the objectives; p99 TTFT if there is none."""
    return next(_latencies(objectives), "ttft_p99")


def _latencies(objectives: Sequence[str]) -> Iterator[str]:
    return (name for name in objectives if name.partition("_")[0] in LATENCIES)


def latencies_instead(ours: Trial, theirs: Trial, objectives: Sequence[str]) -> list[str]:
    """``TTFT p95 0.8 s instead of 1 s`` for each latency that both have: the SLO's terms, then the objectives."""
    values: dict[str, tuple[float | None, float | None]] = {}
    for check, their_check in zip(ours.slo, theirs.slo, strict=False):
        if isinstance(check, TermCheck) and isinstance(their_check, TermCheck):
            values[titled(check)] = (check.value_s, their_check.value_s)
    for name in _latencies(objectives):
        values.setdefault(quantity(name).label, (ours.metrics[metric_of(name)], theirs.metrics[metric_of(name)]))
    return [
        f"{label} {in_seconds(value)} instead of {in_seconds(their_value)}"
        for label, (value, their_value) in values.items()
        if value is not None and their_value is not None and math.isfinite(value) and math.isfinite(their_value)
    ]


def _trade(best: Trial, alternative: Trial, objectives: Sequence[str]) -> str:
    """Differences between ``best`` and ``alternative``.

    Price, agents if their number is an objective, the latencies of the SLO and of the objectives, tightest margin.
    """
    dollars = alternative.metrics["usd_per_hour"] - best.metrics["usd_per_hour"]
    parts = [
        f"${dollars:+,.2f} per hour".replace("$-", "-$").replace("$+", "+$") if abs(dollars) >= 0.005 else "same price"
    ]
    most, theirs = best.metrics.get("agents", 0.0), alternative.metrics.get("agents", 0.0)
    if most and theirs:
        parts.append(f"up to {theirs:,.0f} agents instead of {most:,.0f}")
    parts += latencies_instead(alternative, best, objectives)
    if round(best.worst_margin, 2) != round(alternative.worst_margin, 2):
        parts.append(
            f"tightest margin {format_percent(alternative.worst_margin)} instead of {format_percent(best.worst_margin)}"
        )
    return ", ".join(parts)
