"""Output of ``hisearch size --have``: the largest rate, its settings, what binds, the curve, what more would bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hisearch.api.studies.largest import described
from hisearch.api.studies.largest_answer import AssuredRate, Compared, LargestRate
from hisearch.cli import output
from hisearch.cli.views.terms import TERM_COLUMNS, term_rows
from hisearch.score.quantities import quantity, significant, titled, usd
from hisearch.score.steady_state import TREND_TEST, format_growth
from hisearch.score.terms import LimitCheck
from hisearch.search.evaluate.sustained import GROWTH
from hisearch.search.model.deployments import formats
from hisearch.search.model.trial import Trial
from hisearch.search.stages.ending import ON_ANOTHER_DAY
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.wording import capitalised, counted, format_percent

#: Limit of a race -> what is said of it.
_ENDED = {
    "": "",
    "work": "; the limit on work was reached before all were tried",
    "seconds": f"; the seconds were up before all were tried: {ON_ANOTHER_DAY}",
}

#: Limit of the draws -> why they were not all made.
_ENDED_EARLY = {"work": ": the limit on work was reached", "seconds": f": the seconds were up; {ON_ANOTHER_DAY}"}

#: What a largest rate without a probability is not.
_EDGE = "the edge as simulated: nothing is to spare there, and step times err"


def show(answers: Sequence[LargestRate]) -> None:
    """Print the answer for each kind of accelerators, for people."""
    for answer in answers:
        _show(answer)
        output.say()
    if len(answers) > 1:
        rates = [_carried_rps(answer) for answer in answers]
        total = sum(rates)
        shares = ", ".join(
            f"{format_percent(rate / total)} to {_accelerators(answer)}"
            for rate, answer in zip(rates, answers, strict=True)
            if total > 0
        )
        output.say(
            f"Together {significant(total)} requests/s, each kind behind an address of its own: {shares}", bold=True
        )


def to_dict(answers: Sequence[LargestRate]) -> dict[str, Any]:
    """The same for machines; see docs/json.md."""
    return {
        "model": answers[0].study.resolved.model_name,
        "rate_rps": sum(answer.rate_rps for answer in answers),
        "kinds": [answer.to_dict() for answer in answers],
    }


def _accelerators(answer: LargestRate) -> str:
    resolved = answer.study.resolved
    execution, limit = resolved.space.spec.execution, resolved.study.limits_by_name.get("accelerators")
    most = execution.max_accelerators if limit is None else min(execution.max_accelerators, int(limit.bound))
    return f"{most} × {' or '.join(execution.accelerators)}"


def _show(answer: LargestRate) -> None:
    trial, model = answer.trial, answer.study.resolved.model.spec.huggingface_id
    if trial is None:
        output.say(f"{_accelerators(answer)} carry no rate of {model} within the SLO", bold=True)
        output.say(f"{counted(answer.entrants, 'deployment')} of the space; {answer.tried:,} were tried")
        output.pairs({"rests on": _rests_on(answer)})
        return
    sure, rate = answer.assured, significant(_carried_rps(answer))
    if sure is not None and answer.nothing_assured:
        output.say(
            f"{_accelerators(answer)}: no rate of {model} was found that holds the SLO with "
            f"{format_percent(sure.at_least)}",
            bold=True,
        )
    else:
        chance = f" with {format_percent(sure.at_least)}" if sure is not None else ""
        output.say(f"{_accelerators(answer)} carry {rate} requests/s of {model} within the SLO{chance}", bold=True)
    output.pairs(
        {
            **_mind(answer),
            "deployment": described(answer),
            "settings": "; ".join(_settings(trial)),
            "as simulated": f"{significant(answer.rate_rps)} requests/s; {_EDGE if sure is None else _chances(sure)}",
            "binds": _binds(answer),
            "rests on": _rests_on(answer),
            "searched": _searched(answer),
        }
    )
    output.heading(f"At the edge, {significant(answer.rate_rps)} requests/s")
    output.table(TERM_COLUMNS, term_rows(trial.slo), numbers=(1, 2, 3))
    if answer.curve:
        output.heading("Rate against latency")
        labels = list(answer.curve[0].values)
        rows = [
            (
                significant(point.rate_rps),
                *(_value(label, point.values[label]) for label in labels),
                f"{significant(point.queue_growth_rps, 2)} requests/s" if point.queue_growth_rps > 0 else "-",
                "holds" if point.feasible else "missed",
            )
            for point in answer.curve
        ]
        titles = [quantity(label).label for label in labels]
        output.table(("requests/s", *titles, "queue grows by", "SLO"), rows, numbers=range(len(labels) + 2))
        if any(point.queue_growth_rps > 0 for point in answer.curve):
            output.say(f"Growth of the queue: by {TREND_TEST}.")
    for heading, others in (
        (f"How far simpler settings fall short of {significant(answer.rate_rps)}, as simulated", answer.simpler),
        (f"What more would bring, as simulated: {significant(answer.rate_rps)} now", answer.more),
    ):
        if others:
            output.heading(heading)
            output.table(("", "requests/s", "difference"), [_compared(row, answer) for row in others], numbers=(1, 2))
    if answer.run_dir is not None:
        output.say()
        output.pairs(
            {"scripts": str(Path(answer.run_dir) / "recommended"), "study": str(answer.run_dir / "study.yaml")}
        )


def _carried_rps(answer: LargestRate) -> float:
    """The rate with the required probability, 0 if none was found; as simulated where none is required."""
    return answer.rate_rps if answer.assured is None else answer.assured.rate_rps


def _chances(sure: AssuredRate) -> str:
    """How likely both rates are to hold, or that none likely enough was found."""
    edge = "" if sure.at_edge is None else f"{_held(sure.at_edge, sure)} draws of step times hold that, "
    if sure.rate_rps > 0.0:
        ended = f" (not refined{_ENDED_EARLY[sure.ended]})" if sure.ended else ""
        hold = f"{edge}{_held(sure.probability, sure)} hold the headline's rate{ended}"
        return (
            f"{hold}. Each draw is one steady state: `size --rate` draws traffic too, for as long as it is asked of, "
            "and may ask for a replica more or less"
        )
    if sure.ended:
        return f"{edge}which rate {format_percent(sure.at_least)} hold was not found{_ENDED_EARLY[sure.ended]}"
    return f"{edge}{format_percent(sure.at_least)} hold no rate"


def _held(share: float, sure: AssuredRate) -> str:
    return f"{round(share * sure.draws)} of {sure.draws}"


def _settings(trial: Trial) -> list[str]:
    rows = []
    for pool in trial.deployment.pools:
        engine = pool.engine
        side = f"{pool.role}: " if len(trial.deployment.pools) > 1 else ""
        policy = f"{engine.capacity_policy}, " if engine.name == "trtllm" else ""
        rows.append(
            f"{side}{ENGINE_TITLES[engine.name]}, {pool.replicas} × {pool.parallelism}, chunks of "
            f"{engine.chunk_tokens:,} tokens, up to {engine.max_running_requests:,} running requests, "
            f"{policy}{format_percent(engine.memory_fraction)} of memory"
        )
    alone = sum(pool.replicas for pool in trial.deployment.pools) == 1
    return [*rows, *formats(trial.deployment), *([] if alone else [f"{trial.deployment.router.policy} router"])]


def _binds(answer: LargestRate) -> str:
    limit = _limit(answer)
    check = answer.binds
    if check is None or math.isinf(answer.missed_rps):
        return f"more was not tried{limit}"
    at = f"at {significant(answer.missed_rps)} requests/s"
    if isinstance(check, LimitCheck) and check.label == GROWTH:
        return f"{at} {format_growth(check.value)}{limit}"
    return f"{at} {titled(check)} is missed{limit}"


def _limit(answer: LargestRate) -> str:
    """The resource of which more would raise the rate most."""
    if not answer.relieved:
        return ""
    if answer.limit is None:
        return "; a quarter more of no resource alone carries more"
    carried = significant(answer.limit.rate_rps)
    return f"; a quarter more {answer.limit.what} would carry {carried} requests/s"


def _mind(answer: LargestRate) -> dict[str, str]:
    """What is to be doubted of the rate, as a row; none without any."""
    return {"mind": " ".join(f"{capitalised(warning)}." for warning in answer.warnings)} if answer.warnings else {}


def _rests_on(answer: LargestRate) -> str:
    """The profile of the step times with its evidence and error, and the prices with theirs."""
    profile = answer.profile
    prices = [
        f"{note.item} {usd(note.price)} per {note.unit.partition('/')[2]}, {note.evidence}, as of {note.as_of}"
        for note in answer.prices
    ]
    paid = f". Prices: {'; '.join(prices)}" if prices else ""
    return f"{profile.evidence} step times of profile {profile.name}: {profile.error}{paid}"


def _searched(answer: LargestRate) -> str:
    ended = _ENDED[answer.ended]
    return (
        f"{counted(answer.entrants, 'deployment')} of the space and the winner's neighbours: {answer.tried:,} tried at "
        f"{counted(answer.simulations, 'load')}, {answer.wall_s:.0f} s{ended}"
    )


def _value(label: str, value: float) -> str:
    return quantity(label).show(value) if math.isfinite(value) else "without end"


def _compared(other: Compared, answer: LargestRate) -> tuple[str, str, str]:
    if math.isnan(other.rate_rps):
        return other.what, "-", "cannot run"
    change = other.rate_rps / answer.rate_rps - 1.0
    sign = "+" if change >= 0 else "−"
    return other.what, significant(other.rate_rps), f"{sign}{abs(change) * 100:.0f} %"
