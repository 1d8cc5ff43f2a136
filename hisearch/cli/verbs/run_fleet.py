"""``hisearch run`` of several models: one search each, and the combined result."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hisearch.api.run_folder import REPORT
from hisearch.cli import output
from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import INTERRUPTED, NOTHING_FEASIBLE
from hisearch.cli.verbs.running import Place, how_to_resume, progress_of
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
    from hisearch.search.records.interrupts import Interrupts

    with Interrupts((signal.SIGINT, signal.SIGTERM), exit_at_once=True) as interrupts:
        try:
            fleet_study = load_fleet_study(ref, settings)
            if not quiet:
                note_compilation()
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
        except KeyboardInterrupt:
            output.note("interrupted before the search began")
            raise typer.Exit(interrupts.exit_code or INTERRUPTED) from None
    if as_json:
        output.print_json(result.to_dict())
    else:
        show(result)
    if not quiet and result.whole is not None:
        output.warn(result.whole.warnings)
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
        rows = [(name, describe(t.deployment), usd(t.metrics["usd_per_hour"])) for name, t in parts]
        output.table(("model", "deployment", "per hour"), rows, numbers=(2,))
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
    axes = result.resolved.study.axes
    names = [quantity(axis) for axis in axes]
    shown = sorted(result.front, key=lambda combination: combination.figures["usd_per_hour"])
    output.heading(f"Front: {len(shown):,} combinations of the models' fronts")
    rows = [
        (
            "*" if combination == result.recommendation else "",
            " | ".join(describe(trial.deployment) for trial in combination.trials),
            *(name.number(combination.figures[axis]) for name, axis in zip(names, axes, strict=True)),
        )
        for combination in shown[:FRONT_ROWS]
    ]
    columns = ("", "deployments", *(name.title for name in names))
    output.table(columns, rows, numbers=range(2, len(columns)))
    if len(shown) > FRONT_ROWS:
        output.say(f"and {len(shown) - FRONT_ROWS:,} more in front.csv")
