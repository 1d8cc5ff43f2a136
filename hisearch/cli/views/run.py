"""Output of ``hisearch run``: the recommendation or the nearest miss, its cautions, runner-ups, the front."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hisearch.api.provenance import format_simulations
from hisearch.api.run_folder import NOT_EXPORTED, REPORT
from hisearch.api.studies.result import StudyResult
from hisearch.cli import output
from hisearch.cli.views import confidence as confidence_view
from hisearch.cli.views.terms import TERM_COLUMNS, term_rows, terms_to_dict
from hisearch.report.pages.page import caution, cautions, energy_words, load_words
from hisearch.report.pages.reasons import HardwareRow, hardware_rows
from hisearch.report.pages.trades import trades
from hisearch.report.words.cautions import PROVISIONAL, may_miss, shortcoming, verdict_of
from hisearch.report.words.templating import text
from hisearch.report.words.terms import far_off, term_lines
from hisearch.score.quantities import HOURS_PER_MONTH, percent, quantity, significant, usd
from hisearch.score.stated import percentile_of
from hisearch.score.terms import TermCheck, name_of
from hisearch.search.model.deployments import describe, describe_each, format_devices, hardware
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import describe_miss
from hisearch.specs.models.model import names_weights
from hisearch.specs.wording import counted, format_percent, listed

#: Rows of the front that are printed; all are in front.csv.
FRONT_ROWS = 5

#: The table's words, for those who see them for the first time.
_WORDS = "TTFT: time to the first token. TPOT: time per token after it. {0}: {1} of 100 requests are no slower."


def show(result: StudyResult, verbose: bool = False) -> None:
    """Print a result for people: the answer and its cautions first; ``verbose``: all that the report's text says."""
    if verbose:
        _show_all(result)
    else:
        _show_answer(result)


def _show_answer(result: StudyResult) -> None:
    """Print the recommendation, a line per caution, the SLO, three trades, and where the rest is: 30 lines at most."""
    recommendation = result.recommendation
    if recommendation is None:
        _show_miss(result, verbose=False)
        _show_origin(result)
        return
    _show_heading(result)
    output.say(_sentence(result, recommendation.trial))
    report = result.report_input()
    if words := load_words(report):
        output.say(f"Load: {words}")
    if energy := energy_words(report):
        output.say(f"Energy: {', '.join(energy)}")
    for note in cautions(report):
        output.say(f"{note.title}: {note.brief}.")
    known = report.confidence
    if known is not None and known.satisfied is False:
        output.say(known.summary)
    elif known is not None and known.chance is not None and not may_miss(known):
        output.say(text("cautions", "chance", known))
    output.heading("Against the SLO")
    show_terms(result, recommendation.trial)
    if label := next((check.label for check in recommendation.trial.slo if isinstance(check, TermCheck)), ""):
        percent = f"{percentile_of(label):g}"
        output.say(_WORDS.format(f"p{percent}", percent))
    output.heading("Instead of it")
    rows = [(trade.role, trade.hardware or "-", trade.change, trade.effect) for trade in trades(report)]
    output.table(("", "deployment", "USD/hour", "what it gives or takes"), rows)
    if others := hardware_rows(report):
        output.say(_fared(others))
    output.say()
    _show_origin(result, heading=False)
    output.say("Print reasons, figures, runner-ups and the front: --verbose")


def _fared(others: Sequence[HardwareRow]) -> str:
    """How other hardware fared, in a line: the first with an attached device, else the first."""
    first = next((row for row in others if row.attached), others[0])
    more = f". {counted(len(others) - 1, 'other kind')}: --verbose" if len(others) > 1 else ""
    return f"Other hardware: {first.hardware} ({counted(first.trials, 'trial')}): {first.wins}{more}"


def _show_heading(result: StudyResult) -> None:
    if result.outcome.ending.interrupted:
        output.say(f"{PROVISIONAL}: best so far for {result.resolved.name}", bold=True)
        return
    lacks = shortcoming(result.confidence)
    heading = f"Nearest that was found for {result.resolved.name}: it {lacks}" if lacks else ""
    output.say(heading or f"Recommended for {result.resolved.name}", bold=True)


def _show_all(result: StudyResult) -> None:
    recommendation = result.recommendation
    if recommendation is not None:
        _show_heading(result)
        output.say(_sentence(result, recommendation.trial))
        _show_cautions(result)
        _show_deployment(result, recommendation.trial)
        output.heading("Why this one")
        output.say(" ".join(text for text in (recommendation.reason, recommendation.against_baseline) if text))
        if recommendation.runner_ups:
            output.heading("Runner-ups, of what was simulated on the whole trace")
            lines = describe_each([trial.deployment for trial, _ in recommendation.runner_ups])
            rows = [(line, trade) for line, (_, trade) in zip(lines, recommendation.runner_ups, strict=True)]
            output.table(("deployment", "what it trades against the recommendation"), rows)
        if others := hardware_rows(result.report_input()):
            output.heading("How other hardware fared: the cheapest deployment of each")
            fared = [(row.hardware, f"{row.trials:,}", row.line, row.price, row.wins) for row in others]
            output.table(("hardware", "trials", "deployment", "USD/hour", "would win with"), fared, numbers=(1,))
        confidence_view.show(result)
    else:
        _show_miss(result, verbose=True)
    _show_front(result)
    _show_origin(result)


def _show_cautions(result: StudyResult) -> None:
    """Print the recommendation's cautions, or how likely it is to meet the SLO."""
    report = result.report_input()
    for note in cautions(report):
        output.say(f"{note.title}: {note.text}")
    summary = "" if report.confidence is None or report.confidence.satisfied is None else report.confidence.summary
    if not may_miss(report.confidence) or summary:
        known = report.confidence is not None and report.confidence.chance is not None
        if summary or known:
            output.say(summary or text("cautions", "chance", report.confidence))


def _show_miss(result: StudyResult, *, verbose: bool) -> None:
    nearest, failure = result.nearest_miss, result.failure
    if failure is None:
        return
    output.say(f"{result.resolved.name}: {failure.heading}", bold=True)
    _show_cautions(result)
    if nearest is None:
        output.say(failure.text)
        return
    far = far_off(nearest)
    output.say(f"{failure.text}\n\n{f'{far}. Term by term:' if far else 'The nearest miss, term by term:'}")
    for line in describe_miss(nearest):
        output.say(f"  {line}")
    if not far:
        output.say(f"\n{_sentence(result, nearest)}")
    if verbose:
        _show_deployment(result, nearest)
    else:
        output.heading("Against the SLO")
        show_terms(result, nearest)


def _sentence(result: StudyResult, trial: Trial) -> str:
    return text("deployment", "whole", trial, result.resolved.model.spec.huggingface_id)


def _show_deployment(result: StudyResult, trial: Trial) -> None:
    """Print the SLO term by term, then throughput and cost."""
    output.heading("Against the SLO")
    show_terms(result, trial)
    output.heading("Figures")
    output.pairs(_figures(result, trial))


def show_terms(result: StudyResult, trial: Trial) -> None:
    """Print the SLO term by term, each with the probability that it holds where that is known."""
    confidence = result.confidence if result.recommendation is not None else None
    columns: tuple[str, ...] = TERM_COLUMNS
    rows = term_rows(trial.slo)
    if confidence is not None and confidence.terms:
        columns = (*columns, "chance to hold")
        chances = [confidence.terms.get(name_of(check)) for check in trial.slo]
        rows = [
            (*row[:-1], verdict_of(line, chance).words, "" if chance is None else format_percent(chance))
            for row, line, chance in zip(rows, term_lines(trial.slo), chances, strict=True)
        ]
    output.table(columns, rows, numbers=(1, 2, 3, 5))


def _figures(result: StudyResult, trial: Trial) -> dict[str, str]:
    metrics = trial.metrics
    figures = {
        "goodput": f"{significant(metrics['goodput_rps'])} requests/s ({percent(metrics['attainment'])} of requests, "
        f"over the {significant(metrics['makespan_s'])} s to the last answer: the drain counts)",
        "output tokens": f"{significant(metrics['output_tokens_per_s'])} per second",
        "prefix cache hits": f"{percent(metrics['hit_rate'])} of prompt tokens",
        "price per hour": usd(metrics["usd_per_hour"]),
        "price per month": f"{usd(metrics['usd_per_hour'] * HOURS_PER_MONTH)} ({HOURS_PER_MONTH:g} hours)",
        "per million tokens": f"{usd(metrics['usd_per_million_tokens'])} (prompt and output)",
    }
    headroom = result.headroom
    if energy := energy_words(result.report_input()):
        figures["energy"] = ", ".join(energy)
    if words := load_words(result.report_input()):
        figures["arrivals"] = words
    if result.recommendation is not None and headroom is not None and headroom.load > 0:
        figures["load"] = (
            f"{format_percent(1 / headroom.load)} of the largest at which the SLO holds "
            f"({headroom.load:.3g} × this load meets it, {headroom.infeasible_load:.3g} × does not)"
            if math.isfinite(headroom.infeasible_load)
            else f"at most {format_percent(1 / headroom.load)} of the largest at which the SLO holds "
            f"({headroom.load:.3g} × this load meets it; more was not tried)"
        )
    return figures


def _show_front(result: StudyResult) -> None:
    if not result.front:
        return
    objectives = [name for name in result.resolved.study.objectives if name != "usd_per_hour"]
    shown = sorted(result.front, key=lambda trial: trial.metrics["usd_per_hour"])
    lines = describe_each([trial.deployment for trial in shown])
    report = result.report_input()
    output.heading(f"{text('report', 'front_heading', report)}: {text('report', 'front_caption', report)}")
    chosen = result.recommendation.trial.number if result.recommendation is not None else -1
    rows = [
        {
            "": "*" if trial.number == chosen else "",
            "trial": trial.number,
            "deployment": line,
            "USD/hour": usd(trial.metrics["usd_per_hour"]),
            **{quantity(name).title: quantity(name).number(trial.objective(name)) for name in objectives},
        }
        for trial, line in zip(shown[:FRONT_ROWS], lines, strict=False)
    ]
    output.records(rows, text=("", "deployment"))
    if len(shown) > FRONT_ROWS:
        output.say(f"and {len(shown) - FRONT_ROWS:,} more in {result.run_dir / 'front.csv'} and in the report")


def _show_origin(result: StudyResult, *, heading: bool = True) -> None:
    """Print the assumptions of the figures, and where the rest is."""
    report = result.report_input()
    profile, assumed = report.provenance.profile, report.provenance.assumed_prices
    if heading:
        output.heading("What this rests on")
    output.say(
        f"Step times: profile {profile.name}, {profile.evidence}, {profile.error}."
        + (f" Prices of {', '.join(assumed)} are assumptions." * bool(assumed))
    )
    ended = ""
    if not result.caution:
        ending = result.outcome.ending
        unlikely = f"; what its budget left untried is unlikely to {ending.unlikely} (under Provenance)"
        ended = unlikely if result.stopped else f"; {ending.describe()}"
    output.say(
        f"{format_simulations(result.provenance)}, in {result.provenance['run']['wall_time_s']:.1f} s{ended}."
        # A full disk leaves none.
        + f" Report: {result.run_dir / REPORT}" * (result.run_dir / REPORT).is_file()
    )
    if result.former:
        output.say(f"It recommended another deployment before: kept in {listed([str(path) for path in result.former])}")
    if result.recommendation is not None:
        output.say(_scripts(result.run_dir, result.recommendation.trial))
        model = result.resolved.model.spec.huggingface_id
        if not names_weights(model):
            output.say(
                f"They ask for MODEL: {model} is what the model's file is called, and no Hugging Face id. To have it "
                "written there, run with --set spec.huggingface_id=ORGANISATION/MODEL."
            )


def _scripts(run_dir: Path, trial: Trial) -> str:
    """Path of the launch scripts and what they start, or why there are none."""
    folder, reason = run_dir / "recommended", run_dir / NOT_EXPORTED
    if reason.is_file():
        return reason.read_text(encoding="utf-8").strip()
    attached = [format_devices(pool.devices) for pool in trial.deployment.pools if pool.devices is not None]
    if not attached:
        return f"Launch scripts: {folder}"
    return (
        f"Scripts that start the engines without {listed(list(dict.fromkeys(attached)))}, for which no engine has "
        f"settings, so NOT what was simulated: {folder}"
    )


def warnings(result: StudyResult) -> tuple[str, ...]:
    """Warnings about the trace and about the recommendation, or the nearest miss."""
    return result.report_input().provenance.warnings


def to_dict(result: StudyResult) -> dict[str, Any]:
    """A result for machines; see docs/json.md."""
    best, headroom = result.recommendation, result.headroom
    recommendation = None
    if best is not None:
        recommendation = {
            **trial_to_dict(best.trial),
            "rule": best.rule,
            "reason": best.reason,
            "against_baseline": best.against_baseline,
            "capacity": headroom,
            "runner_ups": [{**trial_to_dict(trial), "trade": trade} for trial, trade in best.runner_ups],
        }
    report = result.report_input()
    profile = report.provenance.profile
    return {
        "study": result.resolved.name,
        "run_dir": result.run_dir,
        "feasible": None if result.failure is not None and not result.failure.examined else best is not None,
        "failure": result.failure,
        "stopped": result.stopped,
        "untried": list(result.outcome.ending.untried),
        "left_out": list(result.outcome.ending.left_out),
        "likely": list(result.outcome.ending.likely),
        "proven": result.outcome.ending.proven,
        "objectives": list(result.resolved.study.objectives),
        "simulations": result.simulations,
        "replayed": result.provenance["run"]["replayed"],
        "recommendation": recommendation,
        "confidence": confidence_view.to_dict(result),
        "nearest_miss": None if result.nearest_miss is None else trial_to_dict(result.nearest_miss),
        "front": [trial_to_dict(trial) for trial in result.front],
        "other_hardware": [
            {**vars(other), "trial": None if other.trial is None else trial_to_dict(other.trial)}
            for other in report.other_hardware
        ],
        "arrivals": report.rates,
        "profile": {
            "name": profile.name,
            "evidence": profile.evidence,
            "relative_error": profile.relative_error,
        },
        "assumed_prices": list(report.provenance.assumed_prices),
        "caution": caution(report),
        "warnings": list(warnings(result)),
    }


def trial_to_dict(trial: Trial) -> dict[str, Any]:
    """A trial for machines; see docs/json.md."""
    return {
        "trial": trial.number,
        "stage": trial.stage,
        "description": describe(trial.deployment),
        "hardware": hardware(trial.deployment),
        "usd_per_month": trial.metrics["usd_per_hour"] * HOURS_PER_MONTH,
        "metrics": trial.metrics,
        "slo": terms_to_dict(trial.slo),
        "feasible": trial.feasible,
        "warnings": list(trial.warnings),
        "deployment": trial.deployment.model_dump(mode="json"),
    }
