"""Formats narrower than the checkpoint's: the warning that they change the model, and the price of avoiding them."""

from __future__ import annotations

from collections.abc import Sequence

from hisearch.search.model.deployments import describe
from hisearch.search.model.problem import OWN_KV_BYTES
from hisearch.search.model.trial import Trial, price_of
from hisearch.search.select.recommend import cheapest
from hisearch.specs.base import DTYPE_BYTES
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.studies.search_space import ExecutionSpace
from hisearch.specs.studies.study import PRICE
from hisearch.specs.wording import format_percent, listed


def narrower_formats(model: ModelSpec, deployment: DeploymentSpec) -> str:
    """``fp8 weights (the checkpoint has bf16)``, ``an fp8 KV cache``, or both; "" if nothing is narrower."""
    texts: dict[str, None] = {}
    for pool in deployment.pools:
        weights = pool.weight_dtype or model.weight_dtype
        if DTYPE_BYTES[weights] < DTYPE_BYTES[model.weight_dtype]:
            texts[f"{weights} weights (the checkpoint has {model.weight_dtype})"] = None
    for pool in deployment.pools:
        if DTYPE_BYTES[pool.kv_dtype] < OWN_KV_BYTES:
            texts[f"KV in {pool.kv_dtype}"] = None
    return listed(list(texts))


def brief_formats(model: ModelSpec, chosen: Trial | None, likely: tuple[Trial, float] | None = None) -> str:
    """``describe_formats`` in half a line."""
    narrower = narrower_formats(model, chosen.deployment) if chosen is not None else ""
    if chosen is None or not narrower:
        return ""
    text = f"{narrower}: answers differ, and their quality is not simulated"
    if likely is None:
        return text
    other, chance = likely
    usd = price_of(other) - price_of(chosen)
    more = f"${abs(usd):,.2f} an hour {'less' if usd < 0 else 'more'}" if abs(usd) >= 0.005 else "nothing"
    return f"{text}; keeping the checkpoint's costs {more} ({format_percent(chance)} likely to hold the SLO)"


def _searched_own(model: ModelSpec, execution: ExecutionSpace) -> bool:
    """True if the space has deployments that keep the checkpoint's formats."""
    weights = execution.weight_dtypes or [model.weight_dtype]
    return any(DTYPE_BYTES[dtype] >= DTYPE_BYTES[model.weight_dtype] for dtype in weights) and any(
        DTYPE_BYTES[dtype] >= OWN_KV_BYTES for dtype in execution.kv_dtypes
    )


def describe_formats(
    model: ModelSpec,
    chosen: Trial | None,
    trials: Sequence[Trial],
    execution: ExecutionSpace,
    likely: tuple[Trial, float] | None = None,
) -> str:
    """Warning about a deployment's narrower formats, with the price of keeping the checkpoint's; "" without any.

    model: as published. trials: the study's; the cheapest that keeps the checkpoint's formats is named. execution: the
    searched formats. likely: the cheapest that keeps them and is as likely to meet the SLO as required, with its
    probability, if that was looked for.
    """
    if chosen is None:
        return ""
    narrower = narrower_formats(model, chosen.deployment)
    if not narrower:
        return ""
    text = (
        f"It serves {narrower}: answers differ from the published model's, and how much worse they are is not "
        "simulated. Evaluate them on your own tasks first."
    )
    keeping = [trial for trial in trials if trial.comparable and not narrower_formats(model, trial.deployment)]
    best, chance = likely or (cheapest([trial for trial in keeping if trial.feasible], (PRICE,)), None)
    if best is not None:
        usd = price_of(best) - price_of(chosen)
        more = f"${abs(usd):,.2f} {'less' if usd < 0 else 'more'}" if abs(usd) >= 0.005 else "the same price"
        sure = "" if chance is None else f", with a probability of {format_percent(chance)}"
        return (
            f"{text} The cheapest found that keeps the checkpoint's formats: {describe(best.deployment)} at "
            f"${price_of(best):,.2f} per hour, {more}{sure}."
        )
    if not _searched_own(model, execution):
        return f"{text} What the checkpoint's formats cost is not known: the search space has no deployment with them."
    if keeping:
        return f"{text} Nothing that keeps the checkpoint's formats was found to meet the SLO."
    return f"{text} Nothing that keeps the checkpoint's formats was simulated on the whole trace."
