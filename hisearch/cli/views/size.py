"""Output of ``hisearch size``: the deployment to buy in 25 lines at most; the rest is in the report."""

from __future__ import annotations

import math
import shlex
from typing import Any

from hisearch.api.run_folder import REPORT
from hisearch.api.studies.limiting import RELIEF, Limiting, limiting
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.size import next_cheaper
from hisearch.cli import output
from hisearch.cli.views import run as run_view
from hisearch.report.data.confidence import Confidence
from hisearch.report.pages.page import availability, energy_words, idle_accelerators
from hisearch.report.words.cautions import PROVISIONAL, shortcoming
from hisearch.report.words.terms import far_off
from hisearch.score.metrics import front_end_note
from hisearch.score.quantities import HOURS_PER_MONTH, quantity, titled, usd
from hisearch.score.steady_state import format_growth
from hisearch.score.terms import RejectionCheck, TermCheck
from hisearch.search.confidence.conclusion_words import ENDED
from hisearch.search.model.deployments import formats, hardware
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import format_term, is_near
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.checks.checks import left_out_formats
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.from_question import Asked
from hisearch.specs.wording import SURE, capitalised, counted, format_percent

#: Simulations of a longer search that the answer proposes.
_LONGER = 400


def show(result: StudyResult, asked: Asked) -> None:
    """Print the answer for people."""
    trial, model = result.highlighted, result.resolved.model.spec.huggingface_id
    if trial is None:
        if result.failure is not None:
            output.say(f"{model}: {result.failure.heading}", bold=True)
            output.say(result.failure.text)
        return
    if result.recommendation is None:
        output.say(f"Nothing that was tried meets the SLO with {model}", bold=True)
    else:
        output.say(f"{_verb(result)} {_hardware(trial.deployment)} for {model}: {_price(trial)}", bold=True)
    far = far_off(trial) if result.recommendation is None else ""
    if far:
        output.pairs({"nearest miss": f"{far}.", "traffic": asked.question.describe()})
    else:
        output.pairs(_deployment(result, trial, asked))
    output.say()
    run_view.show_terms(result, trial)
    output.say()
    output.pairs(_outlook(result, asked))


def _verb(result: StudyResult) -> str:
    """``Buy`` only what is likely to meet the SLO."""
    if result.outcome.ending.interrupted:
        return f"{PROVISIONAL}:"
    known = result.confidence
    sure = known is None or known.chance is None or known.chance >= SURE
    return "Buy" if sure and not shortcoming(known) else "The cheapest that meets the SLO as simulated is"


def _price(trial: Trial) -> str:
    usd_per_hour = trial.metrics["usd_per_hour"]
    return f"{usd(usd_per_hour)} per hour, {usd(usd_per_hour * HOURS_PER_MONTH)} per month"


def _hardware(deployment: DeploymentSpec) -> str:
    """``4 × h200``."""
    return " + ".join(f"{pool.replicas * pool.parallelism.ranks} × {pool.accelerator}" for pool in deployment.pools)


def _deployment(result: StudyResult, trial: Trial, asked: Asked) -> dict[str, str]:
    """The deployment, its settings and the traffic."""
    pool, replicas = trial.deployment.pool, trial.deployment.pool.replicas
    engine = pool.engine
    own = result.resolved.model.spec.weight_dtype
    weights = ", ".join(formats(trial.deployment)) or f"{own} weights (own)"
    router = f", routed by {trial.deployment.router.policy}" if replicas > 1 else ""
    rows = (
        {} if result.recommendation is not None else {"nearest miss": f"{_hardware(trial.deployment)}: {_price(trial)}"}
    )
    rows["deployment"] = (
        f"{counted(replicas, 'replica')} × {pool.parallelism.short} on {ENGINE_TITLES[engine.name]}{router}"
    )
    order = "" if engine.schedule == "fcfs" else f", queue order {engine.schedule}"
    rows["settings"] = (
        f"{weights}; chunks of {engine.chunk_tokens:,} tokens, up to {engine.max_running_requests:,} running requests "
        f"each, {format_percent(engine.memory_fraction)} of memory{order}"
    )
    rows["traffic"] = asked.question.describe()
    if asked.prompts:
        rows["prompts"] = asked.prompts
    return rows


def _outlook(result: StudyResult, asked: Asked) -> dict[str, str]:
    """Probability, headroom, what holds it back, what is cheaper, cautions, and how to go on."""
    rows = {
        "chance": _chance(result),
        "energy": ", ".join(energy_words(result.report_input())),
        "headroom": _headroom(result, asked) + _asked_in_reverse(result, asked),
        "held back by": _held_back(limiting(result)),
        "next cheaper": _cheaper(result),
        "with a spare": _spare(result),
        "mind": " ".join(f"{capitalised(note)}." for note in _cautions(result, asked)),
        "rests on": _rests_on(result, asked),
        "report": str(result.run_dir / REPORT),
        "go on": _go_on(result, asked),
    }
    output_rows = {name: text for name, text in rows.items() if text}
    if result.recommendation is None and result.failure is not None:
        return {"why": result.failure.text} | output_rows
    return output_rows


def _chance(result: StudyResult) -> str:
    """How likely the recommendation is to meet the whole SLO, and the price of more."""
    confidence = result.confidence
    if result.recommendation is None or confidence is None or confidence.chance is None:
        return ""
    text = f"{format_percent(confidence.chance)} for the whole SLO"
    if confidence.chance_range is not None and confidence.level is not None:
        low, high = (format_percent(end) for end in confidence.chance_range)
        text += f" ({format_percent(confidence.level)} interval {low} to {high})"
    if confidence.misses is not None:
        text += f". {confidence.misses.sentence.removesuffix('.')}"
    required = result.resolved.study.confidence.required
    if required is not None:
        return f"{text}{_shortfall(result, required)}"
    constrained = confidence.chance_constrained
    if constrained is None:
        return text
    if constrained.trial is None:
        return f"{text}. For {format_percent(SURE)} ask with --confidence {SURE:g}"
    likelier = result.trial(constrained.trial)
    return (
        f"{text}. {format_percent(SURE)} or more: {_short(result, likelier.deployment)} at "
        f"{usd(likelier.metrics['usd_per_hour'])} per hour"
    )


def _shortfall(result: StudyResult, required: float) -> str:
    """What a required probability costs: against the cheapest that meets the SLO in the simulation."""
    known = result.confidence
    if known is not None and known.satisfied is False and known.unchecked:
        return f"; the search for one with the {required * 100:g} % that are required was ended by its time"
    if known is not None and known.satisfied is False:
        return _unsatisfied(known, required)
    nominal = known.nominal if known is not None else None
    if nominal is None:
        return ""
    rows = [priced for priced in (known.between if known is not None else None, nominal) if priced is not None]
    cheaper = ". Cheaper, but " + "; ".join(
        f"{_below(row.chance, required)}: {_short(result, result.trial(row.trial).deployment)} at "
        f"{usd(row.usd_per_hour)} per hour"
        for row in rows
    )
    close = [row for row in rows if row.chance_range is not None and row.chance_range[1] >= required]
    if not close:
        return cheaper
    draws = close[0].draws
    return f"{cheaper}. {draws} draws do not tell the first of these from {format_percent(required)} for sure"


def _unsatisfied(known: Confidence, required: float) -> str:
    """Why nothing with the required probability was found."""
    search, sure = known.search, f"the {required * 100:g} % that are required"
    if search is not None and search.over_window:
        return (
            f"; no deployment can have {sure}: in {search.over_window} of {known.draws} draws the model's window alone "
            "rejects too many requests"
        )
    if search is not None and search.ended:
        looked_at = counted(search.looked_at, "deployment")
        return f"; the search for one with {sure} was ended by {ENDED[search.ended]}, after {looked_at}"
    return f"; nothing found has {sure}"


def _below(chance: float, required: float) -> str:
    """A chance below what is required, with a decimal where it would be rounded up to that."""
    return format_percent(chance, 1 if chance < required <= round(chance, 2) else 0)


def _short(result: StudyResult, deployment: DeploymentSpec) -> str:
    """Hardware and formats, and the engine where several are tried."""
    engines = result.resolved.space.spec.execution.engines
    engine = [ENGINE_TITLES[deployment.pool.engine.name]] if len(engines) > 1 else []
    return ", ".join([hardware(deployment), *engine, *formats(deployment)])


def _headroom(result: StudyResult, asked: Asked) -> str:
    """The largest rate that was simulated and held."""
    capacity, rate = result.headroom, asked.question.total_rate
    if result.recommendation is None:
        return ""
    if rate is None:
        return "not known for a fixed number of users; ask again with more"
    if capacity is None or capacity.load <= 0:
        return "larger rates were not tried"
    text = f"as simulated, holds up to {capacity.load:.3g} × this rate ({capacity.load * rate:.3g} requests/s)"
    if capacity.queue_growth_rps > 0:
        return f"{text}; at {capacity.infeasible_load:.3g} × {format_growth(capacity.queue_growth_rps)}"
    if math.isfinite(capacity.infeasible_load):
        return f"{text}, no longer at {capacity.infeasible_load:.3g} ×"
    return f"{text}; more was not tried"


def _asked_in_reverse(result: StudyResult, asked: Asked) -> str:
    """Why the largest rate of the same accelerators may be another; "" where that cannot be asked."""
    known, best = result.confidence, result.recommendation
    if best is None or asked.question.total_rate is None or known is None or known.chance is None:
        return ""
    pools = best.trial.deployment.pools
    have = f"{pools[0].accelerator}:{sum(pool.accelerators for pool in pools)}"
    return (
        f". `size --have {have}` draws step times alone, in a steady state: its rate may tell of a replica more or less"
    )


def _held_back(limit: Limiting | None) -> str:
    """The tightest term, and its resource."""
    if limit is None:
        return ""
    check, resource = limit.check, limit.resource
    if check.value_s is None or not math.isfinite(check.value_s):
        return f"{titled(check)}: requests wait without end"
    margin = check.margin or 0.0
    state = f"{format_percent(margin)} left" if check.holds else f"missed by {format_percent(-margin)}"
    if not resource:
        return (
            f"{titled(check)} ({state}); a quarter more prefill compute, decode bandwidth, host speed or KV memory "
            "alone hardly changes it"
        )
    show = quantity(check.label).show
    return (
        f"{resource}: a quarter more would take {titled(check)} ({state}) from {show(check.value_s)} to "
        f"{show(limit.relieved_s[resource])}"
    )


def _cheaper(result: StudyResult) -> str:
    """The nearest cheaper deployment, and why it is not recommended; "" where the row of chances names cheaper ones."""
    if result.recommendation is None:
        return ""
    trial = next_cheaper(result)
    if trial is None:
        return "nothing cheaper was tried"
    if trial.feasible and result.confidence is not None and result.confidence.nominal is not None:
        return ""
    text = f"{_short(result, trial.deployment)} at {usd(trial.metrics['usd_per_hour'])} per hour"
    if trial.feasible:
        known = result.confidence.candidates if result.confidence is not None else ()
        chance = next((row.chance for row in known if row.trial == trial.number), None)
        likely = f", with a chance of {format_percent(chance)}" if chance is not None else ""
        return f"{text} meets the SLO as simulated{likely}: not likely enough"
    worst = trial.worst
    if isinstance(worst, TermCheck) and worst.value_s is not None and not math.isfinite(worst.value_s):
        return f"{text}: overloaded, requests wait without end"
    return f"{text}: {format_term(worst)}" if worst is not None else text


def _spare(result: StudyResult) -> str:
    """What bears an update; "" where nothing is recommended, or a single replica is warned of."""
    spare, trial = result.report_input().spare, result.highlighted
    if spare is None or trial is None or trial.deployment.pool.replicas == 1:
        return ""
    return (
        f"{_short(result, spare.deployment)} at {usd(spare.usd_per_hour)} per hour: the SLO holds while a replica is "
        "updated, drained or lost"
    )


def _cautions(result: StudyResult, asked: Asked) -> list[str]:
    """What to doubt, each in a sentence without its full stop."""
    notes = [asked.caution] if asked.caution else []
    if result.closeup is not None and result.closeup.too_short:
        notes.append(result.closeup.too_short.removesuffix("."))
    if result.formats:
        notes.append("narrower weights change answers: evaluate them on your tasks")
    resolved, accelerators = result.resolved, result.simulation.world.accelerators
    notes += left_out_formats(resolved.space.spec.execution, accelerators, resolved.model.spec)
    trial = result.highlighted
    if trial is not None:
        rejected = [check for check in trial.slo if isinstance(check, RejectionCheck) and check.requests]
        notes += [check.note for check in rejected]
        notes += filter(None, [front_end_note(trial.metrics)])
    if result.recommendation is not None and trial is not None and trial.deployment.pool.replicas == 1:
        notes.append(f"a single replica: {availability(result.report_input()).brief}")
    if idle := idle_accelerators(result.report_input()).brief:
        notes.append(f"idle accelerators: {idle}")
    if timed := result.outcome.ending.timed():
        notes.append(timed)
    elif _cut_short(result):
        notes.append(f"{result.outcome.ending.who(short=True)} before all was tried")
    if result.confidence is not None and result.confidence.unchecked:
        notes.append(result.confidence.unchecked.removesuffix("."))
    return notes


def _cut_short(result: StudyResult) -> bool:
    """True if what the search left untried may change the answer."""
    return bool(result.outcome.ending.brief(result.recommendation is not None))


def _rests_on(result: StudyResult, asked: Asked) -> str:
    """Simulations, step times and prices."""
    report = result.report_input()
    profile, assumed = report.provenance.profile, report.provenance.assumed_prices
    prices = "; prices are assumed" if assumed else ""
    requests = asked.requests.replace(" are simulated", "").removesuffix(".")
    return (
        f"{counted(result.simulations, 'simulation')} of {requests}; {profile.evidence} step times, "
        f"{profile.error}{prices}"
    )


def _go_on(result: StudyResult, asked: Asked) -> str:
    """The command that runs the study again, longer where it was cut short; else what to change."""
    nearest = result.nearest_miss
    if nearest is not None and not is_near(nearest):
        budget = [] if asked.question.budget_usd is None else ["a higher --budget-usd"]
        *first, last = [*budget, "another --gpu", "narrower --weights", "a looser --slo"]
        return f"ask again with {', '.join(first)} or {last}"
    if result.confidence is not None and result.confidence.unchecked:
        seconds = 2 * result.resolved.study.confidence.seconds
        return f"hisearch run --resume {shlex.quote(str(result.run_dir))} --set spec.confidence.seconds={seconds:g}"
    path = shlex.quote(str(result.run_dir / "study.yaml"))
    more = f" --set spec.budget.simulations={_LONGER}" if result.stopped == "simulations" and _cut_short(result) else ""
    return f"hisearch run {path}{more}"


def to_dict(result: StudyResult, asked: Asked) -> dict[str, Any]:
    """The answer for machines; see docs/json.md."""
    limit, cheaper = limiting(result), next_cheaper(result)
    return {
        **run_view.to_dict(result),
        "question": asked.question,
        "traffic": asked.question.describe(),
        "requests": asked.requests,
        "cautions": _cautions(result, asked),
        "held_back_by": None
        if limit is None
        else {
            "label": limit.check.label,
            "value_s": limit.check.value_s,
            "bound_s": limit.check.bound_s,
            "resource": limit.resource or None,
            "relieved_s": dict(limit.relieved_s),
            "times_relieved": 1.0 / RELIEF,
        },
        "next_cheaper": None if cheaper is None else run_view.trial_to_dict(cheaper),
    }
