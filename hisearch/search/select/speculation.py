"""Whether drafted tokens pay: the recommendation beside the cheapest that differs from it in drafting, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.select.recommend import cheapest
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.studies.study import PRICE
from hisearch.specs.wording import listed


def drafts_of(deployment: DeploymentSpec) -> str:
    """``3 drafted tokens (mtp)``, with the pools' names where others draft otherwise or not at all; "" without any."""
    by_label: dict[str, list[str]] = {}
    for pool in deployment.pools:
        if pool.engine.speculation is not None:
            by_label.setdefault(pool.engine.speculation.label, []).append(pool.name)
    every = len(deployment.pools)
    return listed(
        [f"{label}{'' if len(names) == every else f' in {listed(names)}'}" for label, names in by_label.items()]
    )


def _labels(deployment: DeploymentSpec) -> tuple[str, ...]:
    drafts = [pool.engine.speculation for pool in deployment.pools]
    return tuple(speculation.label for speculation in drafts if speculation is not None)


def brief_speculation(chosen: Trial | None) -> str:
    """``describe_speculation`` in half a line, of a deployment that drafts; "" of others."""
    drafts = drafts_of(chosen.deployment) if chosen is not None else ""
    return f"{drafts}: measure on your own text how many are accepted" if drafts else ""


def describe_speculation(
    chosen: Trial | None, trials: Sequence[Trial], likely: Callable[[Trial], str] = lambda _trial: ""
) -> str:
    """What a deployment's drafts rest on, and the price of doing without; of one without drafts, the price of drafting.

    trials: the study's; "" where neither ``chosen`` nor any of them drafts. likely: how likely one meets the SLO.
    """
    if chosen is None:
        return ""
    drafts = drafts_of(chosen.deployment)
    others = [trial for trial in trials if trial.comparable and bool(drafts_of(trial.deployment)) != bool(drafts)]
    best = cheapest([trial for trial in others if trial.feasible], (PRICE,))
    if not drafts:
        if best is not None:
            costs = f"costs ${price_of(best):,.2f} per hour, {_difference(best, chosen)}{likely(best)}"
            return (
                f"Drafted tokens do not pay here: the cheapest found with them, {describe(best.deployment)}, {costs}."
            )
        return "Nothing with drafted tokens was found to meet the SLO." if others else ""
    rests = [f"{warning}." for warning in chosen.warnings if warning.startswith(_labels(chosen.deployment))]
    if best is not None:
        price = f"at ${price_of(best):,.2f} per hour, {_difference(best, chosen)}{likely(best)}"
        without = f"The cheapest found without them: {describe(best.deployment)} {price}."
    elif others:
        without = "Nothing without them was found to meet the SLO."
    else:
        without = "Nothing without them was simulated on the whole trace: list null among speculation to compare."
    return " ".join([f"It serves {drafts}, and what they yield depends on the text.", *rests, without])


def _difference(other: Trial, chosen: Trial) -> str:
    usd = price_of(other) - price_of(chosen)
    return f"${abs(usd):,.2f} {'less' if usd < 0 else 'more'}" if abs(usd) >= 0.005 else "the same price"
