"""Which deployment to buy, why, and what stands next to it."""

from __future__ import annotations

from collections.abc import Sequence

from hisearch.search.deployments import describe
from hisearch.search.pareto import miss_order
from hisearch.search.trial import Recommendation, TermCheck, Trial


def recommend(trials: Sequence[Trial]) -> Recommendation | None:
    """The cheapest feasible deployment, with the reason and up to three runner-ups; None where nothing is feasible.

    Ties in price go to the higher goodput, then to the lower p99 TTFT, then to the earlier trial. Runner-ups: the next
    cheapest on other hardware, the one with the lowest TTFT, and the best on another engine.
    """
    comparable = [trial for trial in trials if trial.comparable]
    feasible = sorted((trial for trial in comparable if trial.feasible), key=_preference)
    if not feasible:
        return None
    best = feasible[0]
    return Recommendation(best, _reason(best, feasible, comparable), tuple(_runner_ups(best, feasible)))


def nearest_miss(trials: Sequence[Trial]) -> Trial | None:
    """Of infeasible deployments the one whose worst miss is smallest; None where there is none."""
    missed = [trial for trial in trials if trial.comparable and not trial.feasible]
    return min(missed, key=miss_order, default=None)


def describe_miss(trial: Trial) -> list[str]:
    """Each SLO term of an infeasible trial in one line: value, bound, and by how much it is kept or missed."""
    lines = [term_in_words(check) for check in trial.slo]
    if all(check.holds for check in trial.slo):
        lines.append(f"rejected requests: {trial.metrics['rejected_fraction']:.2%}, more than the SLO allows")
    return lines


def term_in_words(check: TermCheck) -> str:
    """``ttft_p99 0.61 s of at most 2 s: 70 % left``."""
    verdict = f"{check.margin:.0%} left" if check.holds else f"missed by {-check.margin:.0%}"
    return f"{check.label} {_seconds(check.value_s)} of at most {_seconds(check.bound_s)}: {verdict}"


def _seconds(value_s: float) -> str:
    return f"{value_s * 1e3:.3g} ms" if value_s < 0.1 else f"{value_s:.3g} s"


def _preference(trial: Trial) -> tuple[float, float, float, int]:
    metrics = trial.metrics
    return (round(metrics["usd_per_hour"], 6), -metrics["goodput_rps"], metrics["ttft_p99_s"], trial.number)


def _reason(best: Trial, feasible: Sequence[Trial], comparable: Sequence[Trial]) -> str:
    """Two sentences: what it costs and delivers, and why nothing cheaper will do."""
    metrics = best.metrics
    tightest = min(best.slo, key=lambda check: check.margin)
    first = (
        f"{describe(best.deployment)} is the cheapest of {len(feasible)} feasible among {len(comparable)} deployments "
        f"simulated on the whole trace: ${metrics['usd_per_hour']:,.2f} per hour for {metrics['goodput_rps']:.3g} good "
        f"requests per second, its tightest term being {term_in_words(tightest)}."
    )
    cheaper = [t for t in comparable if not t.feasible and t.metrics["usd_per_hour"] < metrics["usd_per_hour"]]
    nearest = nearest_miss(cheaper)
    if nearest is None:
        return f"{first} Nothing cheaper was left to simulate."
    worst = min(nearest.slo, key=lambda check: check.margin)
    miss = "it rejects too many requests" if worst.holds else f"{worst.label} is missed by {-worst.margin:.0%}"
    return (
        f"{first} Of the {len(cheaper)} cheaper ones the nearest is {describe(nearest.deployment)} at "
        f"${nearest.metrics['usd_per_hour']:,.2f} per hour, where {miss}."
    )


def _runner_ups(best: Trial, feasible: Sequence[Trial]) -> list[tuple[Trial, str]]:
    """Up to three distinct alternatives with what each would trade."""
    hardware = _hardware(best)
    engine = best.deployment.pool.engine.name
    choices = [
        (next((t for t in feasible if _hardware(t) != hardware), None), "next cheapest hardware"),
        (min(feasible, key=lambda t: (t.metrics["ttft_p99_s"], *_preference(t))), "lowest TTFT"),
        (next((t for t in feasible if t.deployment.pool.engine.name != engine), None), "best on another engine"),
    ]
    found: list[tuple[Trial, str]] = []
    taken = {best.number}
    for trial, title in choices:
        if trial is not None and trial.number not in taken:
            taken.add(trial.number)
            found.append((trial, f"{title}: {_trade(best, trial)}"))
    return found


def _hardware(trial: Trial) -> tuple[str, int]:
    pool = trial.deployment.pool
    return pool.accelerator, pool.tensor_parallel * pool.replicas


def _trade(best: Trial, other: Trial) -> str:
    """What changes from ``best`` to ``other``: price, p99 TTFT and p99 TPOT."""
    dollars = other.metrics["usd_per_hour"] - best.metrics["usd_per_hour"]
    parts = [
        f"${dollars:+,.2f} per hour".replace("$-", "-$").replace("$+", "+$") if abs(dollars) >= 0.005 else "same price"
    ]
    for key, name in (("ttft_p99_s", "TTFT p99"), ("tpot_p99_s", "TPOT p99")):
        parts.append(f"{name} {_seconds(best.metrics[key])} -> {_seconds(other.metrics[key])}")
    return ", ".join(parts)
