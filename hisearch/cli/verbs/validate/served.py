"""``hisearch validate`` silicon, e2e, batch, open-loop, mlperf, runs: against measured runs of real servers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import ERROR

if TYPE_CHECKING:
    from hisearch.api.mlperf import Cell


def silicon(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv", help="Measured closed-loop runs, a row each.")],
    where: Annotated[
        list[str] | None,
        typer.Option("--where", metavar="COLUMN=VALUE", help="Only rows with this value; may be given several times."),
    ] = None,
    rows: Annotated[
        Path | None, typer.Option("--rows", metavar="OUT.csv", help="Write every row with its prediction here.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="One latency profile for all rows, by catalogue name or path; where absent each row's own, "
            "ENGINE-GPU, or roofline where there is none.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat measured serving runs in the simulator and compare mean TTFT and TPOT.

    Every row is a closed loop of random prompts. docs/formats.md states the columns, docs/accuracy-details.md the
    conditions that are assumed. Where aiconfigurator-core (extra aic) is installed, its own prediction of the same rows
    stands beside.
    """
    from hisearch.cli import output
    from hisearch.cli.views import silicon as silicon_view
    from hisearch.validate.silicon.peer import PeerPricer, installed
    from hisearch.validate.silicon.pricing import Pricer
    from hisearch.validate.silicon.report import validate_silicon

    note_compilation(quiet)
    selection, pricer = _selection(where or ()), Pricer(profile)
    peer = PeerPricer(pricer) if installed() else None
    report = validate_silicon(file, where=selection, pricer=pricer, rows_out=rows, peer=peer)
    output.result(as_json, lambda: report, lambda: silicon_view.show(report))


def _selection(pairs: Sequence[str]) -> dict[str, str]:
    """Columns and values of ``COLUMN=VALUE``."""
    for pair in pairs:
        if not pair.partition("=")[0] or "=" not in pair:
            raise typer.BadParameter(f"expected COLUMN=VALUE, not '{pair}'", param_hint="--where")
    return dict(pair.split("=", 1) for pair in pairs)


def e2e(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Measured runs: requests, settings, operator tables.")
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="LatencyProfile with the engine's and the machine's constants; that of the machine if absent.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Replay measured serving runs on their operator tables and compare TTFT, TPOT, latency and throughput.

    docs/formats.md states the form of a run's folder.
    """
    from hisearch.cli import output
    from hisearch.cli.views import accuracy as accuracy_view
    from hisearch.validate.e2e import validate_cases

    note_compilation(quiet)
    cases = list(validate_cases(folders, profile))
    output.result(as_json, lambda: {"cases": cases}, lambda: accuracy_view.show_e2e(cases))
    output.warn([f"{case.case}: {warning}" for case in cases for warning in case.warnings], quiet)


def batch(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="attention.csv or skew.csv of a folder of operator tables.")
    ],
    as_json: options.Json = False,
) -> None:
    """Price measured attention batches by the laws of the simulator, with a part of the rows held out.

    docs/latency.md states the form of operator tables.
    """
    from hisearch.cli import output
    from hisearch.cli.views import accuracy as accuracy_view
    from hisearch.validate.batch import validate_batches

    batch_files = list(validate_batches(files))
    output.result(as_json, lambda: {"files": batch_files}, lambda: accuracy_view.show_batches(batch_files))


def open_loop(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Measured runs: runs.json, measured.csv, models/.")
    ],
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="One latency profile for all runs, by catalogue name or path; that of each engine and GPU if absent.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat measured open-loop serving runs in the simulator and compare E2E, ITL and TTFT.

    Exits with 1 where a run could not be simulated; the others are. docs/formats.md states the form of a folder.
    """
    from hisearch.cli import output
    from hisearch.cli.views import open_loop as open_loop_view
    from hisearch.validate.open_loop_report import validate_open_loop

    note_compilation(quiet)
    report = validate_open_loop(folders, profile, (lambda _: None) if quiet else output.note)
    output.result(as_json, report.document, lambda: open_loop_view.show(report))
    for failure in report.failed:
        output.note(f"error: {failure.reason}")
    output.warn([f"{score.run.name}: {warning}" for score in report.scores for warning in score.warnings], quiet)
    if report.failed:
        raise typer.Exit(ERROR)


def mlperf(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="results.csv and datasets/ of MLPerf Inference.")],
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="COLUMN=VALUE",
            help="Only cells with this model, accelerator (a catalogue name), scenario or engine; may be given again.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(metavar="S", callback=options.positive, help="Of each cell's search.")
    ] = 60.0,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; all cores where absent.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Search the largest rate of every machine of a benchmark's table, and compare it with its best submission.

    Nothing is fitted. docs/formats.md states the form of the folder and what is assumed.
    """
    from hisearch.api.mlperf import validate_mlperf
    from hisearch.cli import output
    from hisearch.cli.views import mlperf as mlperf_view

    note_compilation(quiet)

    def note(cell: Cell) -> None:
        if not quiet:
            outcome = cell.skipped or f"{cell.ratio:.2f} of the best submission, {cell.wall_s:.0f} s"
            output.note(f"{cell.model} on {cell.accelerators} × {cell.accelerator}, {cell.scenario}: {outcome}")

    cells = validate_mlperf(folder, only=_selection(where or ()), workers=workers, seconds=seconds, advanced=note)
    document = {"cells": [cell.to_dict() for cell in cells]}
    output.result(as_json, lambda: document, lambda: mlperf_view.show(cells))


def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Measured runs: runs.yaml, CSV files, traces.")],
    runs_file: Annotated[
        Path | None,
        typer.Option("--runs", metavar="FILE", help="The list of runs, where it is not runs.yaml of the folder."),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Repeat measured runs and compare them second by second: tokens, watts, prefix hits, KV capacity.

    Assumptions are stated first. Figures that set a constant are marked, and not to be counted. Exits with 1 where a
    run could not be simulated; the others are. docs/formats.md states the form of a folder.
    """
    from hisearch.api.measured.score import validate_runs
    from hisearch.cli import output
    from hisearch.cli.views import runs as runs_view

    note_compilation(quiet)
    scores = list(validate_runs(folder, runs_file, note=(lambda _: None) if quiet else output.note))
    output.result(as_json, lambda: {"runs": [score.to_dict() for score in scores]}, lambda: runs_view.show(scores))
    output.warn([f"{score.id}: {warning}" for score in scores for warning in score.warnings], quiet)
    if any(score.reason for score in scores):
        raise typer.Exit(ERROR)
