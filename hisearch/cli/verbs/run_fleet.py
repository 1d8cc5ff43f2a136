"""``hisearch run`` of several models: one search each, and the combined result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hisearch.api.run_folder import REPORT
from hisearch.cli import output
from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import NOTHING_FEASIBLE
from hisearch.cli.verbs.running import Place, how_to_resume, interruptible, progress_of
from hisearch.cli.views.terms import TERM_COLUMNS, term_rows
from hisearch.score.quantities import HOURS_PER_MONTH, percent, quantity, usd
from hisearch.search.model.deployments import describe

if TYPE_CHECKING:
    from hisearch.api.fleet_combined import CombinedDeployment
    from hisearch.api.fleet_study import FleetResult

#: Rows of the front that are printed; all are in front.csv.
FRONT_ROWS = 15


def run_fleet(
    ref: str,
    settings: tuple[str, ...],
    resume: Path | None,
    out: Path | None,
    place: Place,
    as_json: bool,
    quiet: bool,
) -> None:
    """Search a study of several models; exits as ``hisearch run`` does."""
    from hisearch.api.fleet_study import load_fleet_study

    with interruptible() as interrupts:
        fleet_study = load_fleet_study(ref, settings)
        note_compilation(quiet)
        with progress_of(quiet) as progress:
            result = fleet_study.run(
                place.workers,
                resume or out,
                resume is not None,
                progress,
                backend=place.backend,
                scheduler=place.scheduler,
                interrupts=interrupts,
            )
    output.result(as_json, result.to_dict, lambda: show(result))
    output.warn(result.whole.warnings if result.whole is not None else (), quiet)
    if interrupts.exit_code is not None:
        output.note(how_to_resume(result.run_dir))
        raise typer.Exit(interrupts.exit_code)
    if result.recommendation is None or result.unsure:
        raise typer.Exit(NOTHING_FEASIBLE)


def show(result: FleetResult) -> None:
    """Print a result for people."""
    if result.whole is None or result.recommendation is None:
        _show_miss(result)
    else:
        output.say(f"Recommended for {result.resolved.name}", bold=True)
        price = result.recommendation.figures["usd_per_hour"]
        output.say(f"{usd(price)} per hour, {usd(price * HOURS_PER_MONTH)} per month ({HOURS_PER_MONTH:g} hours):")
        parts = zip(result.results, result.recommendation.trials, strict=True)
        output.records(
            [
                {"model": name, "deployment": describe(t.deployment), "per hour": usd(t.metrics["usd_per_hour"])}
                for name, t in parts
            ],
            text=("model", "deployment"),
        )
        for sentence in result.cautions:
            output.say(sentence)
        _show_whole(result.whole)
    _show_front(result)
    output.say(f"\nReport: {result.run_dir / REPORT}; of each model a run folder with its own report in models/.")


def _show_miss(result: FleetResult) -> None:
    """Print which models, or which limits, prevent a recommendation."""
    output.say(f"{result.resolved.name}: nothing is recommended", bold=True)
    output.say(result.refusal)
    for name in result.missed:
        study_result = result.results.get(name)
        failure = None if study_result is None else study_result.failure
        output.say(f"{name}: {'was not searched' if failure is None else failure.text}")


def _show_whole(fleet: CombinedDeployment) -> None:
    output.heading("Simulated together, against the SLO: " + ("met" if fleet.score.feasible else "missed"))
    output.table(TERM_COLUMNS, term_rows(fleet.score.slo), numbers=(1, 2, 3))
    shares = [
        (share.model, f"{share.arrived:,}", percent(share.score.metrics["attainment"]), usd(share.cost.total))
        for share in fleet.shares
    ]
    output.table(("model", "requests", "meet every term", "per hour"), shares, numbers=(1, 2, 3))


def _show_front(result: FleetResult) -> None:
    if not result.front:
        return
    shown = sorted(result.front, key=lambda combination: combination.figures["usd_per_hour"])
    output.heading(f"Front: {len(shown):,} combinations of the models' fronts")
    rows = [
        {
            "": "*" if combination == result.recommendation else "",
            "deployments": " | ".join(describe(trial.deployment) for trial in combination.trials),
            **{
                quantity(axis).title: quantity(axis).number(combination.figures[axis])
                for axis in result.resolved.study.axes
            },
        }
        for combination in shown[:FRONT_ROWS]
    ]
    output.records(rows, text=("", "deployments"))
    if len(shown) > FRONT_ROWS:
        output.say(f"and {len(shown) - FRONT_ROWS:,} more in front.csv")
