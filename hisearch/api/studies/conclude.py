"""Conclusion of a study after its search: calls ``search.confidence``, and writes ``confidence.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.api.provenance import price_notes, profile_note
from hisearch.api.run_folder import CONFIDENCE_JOURNAL, write_text
from hisearch.api.studies.steadiness import carrying_on
from hisearch.report.data.stored import CONFIDENCE
from hisearch.search.confidence.answer import Question
from hisearch.search.confidence.assessment import Assessor, at_prices
from hisearch.search.confidence.conclusion import conclude
from hisearch.search.confidence.device_bandwidth import BandwidthWin, bandwidth_wins, faster
from hisearch.search.confidence.record import to_dict
from hisearch.search.confidence.uncertainty import (
    Draw,
    PriceRange,
    Uncertainty,
    drawn_ranges,
    normal_draws,
    with_factors,
)
from hisearch.search.records.journal import Journal
from hisearch.search.select.other_hardware import other_hardware
from hisearch.search.stages.ending import ON_ANOTHER_DAY
from hisearch.specs.wording import format_percent, listed
from hisearch.traces.changes.bootstrap import describe_schemes, session_table

if TYPE_CHECKING:
    from hisearch.search.driver import SearchOutcome
    from hisearch.search.evaluate.runner import TrialRunner
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.model.job import Evaluation
    from hisearch.search.model.problem import Problem
    from hisearch.search.model.trial import Trial
    from hisearch.specs.deployments.deployment import DeploymentSpec
    from hisearch.specs.documents.resolved import ResolvedStudy


def conclude_study(
    resolved: ResolvedStudy, problem: Problem, simulation: Simulation, runner: TrialRunner, outcome: SearchOutcome,
    folder: Path, *, inputs: str, resume: bool,
) -> SearchOutcome:  # fmt: skip
    """Recommend by the study's rule, assess the recommendation, and write ``confidence.json``.

    Args:
        resolved: the study.
        problem: the search's.
        simulation: runs the simulations.
        runner: the search's trial runner.
        outcome: of the search.
        folder: the run's.
        inputs: digest of all inputs of simulations except the draws.
        resume: reuse simulations of an earlier run.

    Returns:
        The outcome with the final recommendation.
    """
    if outcome.recommendation is None:
        return outcome
    settings, book = resolved.study.confidence, simulation.book
    uncertainty = uncertainty_of(resolved, simulation)
    memory = {name: accelerator.memory_bytes for name, accelerator in simulation.world.accelerators.items()}

    def evaluate(deployment: DeploymentSpec, draw: Draw) -> Evaluation:
        evaluation = simulation.evaluate_disturbed(
            deployment, draw.trace, lambda costs: draw.disturbed(costs, settings.correlation)
        )
        return at_prices(evaluation, book.cost(deployment), book.at(draw.prices).cost(deployment))

    def evaluate_what_if(deployment: DeploymentSpec, factors: Mapping[str, float], load: float) -> Evaluation:
        return simulation.evaluate_disturbed(
            deployment, simulation.world.trace, lambda costs: with_factors(costs, factors), load
        )

    path = folder / CONFIDENCE_JOURNAL
    if not resume:
        path.unlink(missing_ok=True)
    with Journal(path, inputs, resume=resume) as journal:
        assessor = Assessor(
            uncertainty,
            evaluate,
            what_if=evaluate_what_if,
            carrying_on=partial(carrying_on, simulation) if settings.what_if or settings.required else None,
            workers=runner.workers,
            journal=journal,
            progress=runner.progress,
            seconds=settings.seconds,
        )
        question = Question(resolved.study.recommend, settings, book, memory)
        outcome, conclusion = conclude(problem, runner, outcome, assessor, question)
    if conclusion is not None:
        best = outcome.recommendation.trial if outcome.recommendation is not None else None
        drawn = {} if best is None else _drawn(simulation, best, uncertainty, settings.level)
        # Draws of step times go by the errors of served runs where they are known, and else by those of steps alone.
        pools = () if best is None else simulation.fleet(best.deployment).pools
        served = any(pool.plan.costs.served is not None for pool in pools)
        record = to_dict(conclusion, format_varied(resolved, uncertainty, best, drawn if served else {}))
        if best is not None and settings.what_if and not assessor.out_of_time:
            record["bandwidths"] = [asdict(win) for win in _bandwidths(simulation, outcome, best)]
        record["drawn"] = drawn
        unchecked = (
            f"Checks of the answer ended after {settings.seconds:g} s of wall time (spec.confidence.seconds), before "
            f"all were made: {ON_ANOTHER_DAY}."
        )
        record["unchecked"] = unchecked if assessor.timed_out else ""
        write_text(folder / CONFIDENCE, json.dumps(record, indent=2, allow_nan=False) + "\n")
    return outcome


def _drawn(simulation: Simulation, best: Trial, uncertainty: Uncertainty, level: float) -> dict[str, list[float]]:
    """By regime, the interval of the factors that draws put on step times and TTFT: of all pools together."""
    ranges = [drawn_ranges(pool.plan.costs, uncertainty, level) for pool in simulation.fleet(best.deployment).pools]
    ends: dict[str, list[float]] = {}
    for drawn in ranges:
        for name, (low, high) in drawn.items():
            known = ends.get(name, [low, high])
            ends[name] = [min(known[0], low), max(known[1], high)]
    return ends


def _bandwidths(simulation: Simulation, outcome: SearchOutcome, best: Trial) -> list[BandwidthWin]:
    """At which bandwidth each attached device that was not chosen would win."""
    world = simulation.world

    def evaluate(deployment: DeploymentSpec, item: str, factor: float) -> Evaluation:
        devices = {**world.devices, item: faster(world.devices[item], factor)}
        changed = type(simulation)(replace(world, devices=devices))
        return changed.evaluate_disturbed(deployment, world.trace, lambda costs: costs)

    others = other_hardware(simulation.book, outcome.trials, best)
    return bandwidth_wins(others, best, world.devices, evaluate, simulation.book.cost)


def uncertainty_of(resolved: ResolvedStudy, simulation: Simulation) -> Uncertainty:
    """The uncertain inputs of a study: step times, sessions, prices."""
    spec, trace = resolved.study, simulation.world.trace
    settings = spec.confidence
    return Uncertainty(
        trace,
        spec.seed,
        normal_draws(settings.draws, spec.seed),
        price_ranges(resolved, simulation),
        session_table(trace) if settings.draws else None,
        settings.correlation,
    )


def price_ranges(resolved: ResolvedStudy, simulation: Simulation) -> tuple[PriceRange, ...]:
    """Each uncertain price of the space with its stated range; assumed ones without a range get the study's."""
    ranges, settings = [], resolved.study.confidence
    used = {note.item for note in price_notes(resolved)}
    for price in simulation.book.prices():
        if price.item not in used:
            continue
        share = settings.assumed_price_error if price.evidence == "assumed" else 0.0
        low, high = price.bounds if price.bounds is not None else (price.usd * (1 - share), price.usd * (1 + share))
        if low < high:
            ranges.append(PriceRange(price.item, price.usd, low, high))
    return tuple(ranges)


def format_varied(
    resolved: ResolvedStudy, uncertainty: Uncertainty, best: Trial | None, drawn: Mapping[str, Sequence[float]]
) -> list[str]:
    """The inputs that draws of ``best`` vary, as text.

    drawn: by regime, the interval of the factors on step times where these go by served runs; else empty.
    """
    profile = profile_note(resolved, best)
    level = format_percent(resolved.study.confidence.level)
    if drawn:
        named = {"prefill": "prefill", "decode": "decode", "ttft": "TTFT beyond prefill"}
        spans = listed(
            [
                f"{title} by {drawn[name][0]:.2f} to {drawn[name][1]:.2f}"
                for name, title in named.items()
                if name in drawn
            ]
        )
        error = f"the errors of served runs ({spans} in {level} of the draws"
    else:
        error = f"the stated error of the step times ({format_percent(profile.relative_error, 1)}, median"
    steps = f"{error}; of profile {profile.name}; regimes correlated at {uncertainty.correlation:g})"
    items = [price.item for price in uncertainty.prices]
    prices = [f"ranges of the prices of {', '.join(items)}"] if items else []
    return [steps, describe_schemes(uncertainty.sessions), *prices]
