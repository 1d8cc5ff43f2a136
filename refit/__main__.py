"""``python -m refit profiles|heads|entries|hosts``: fits anew what hisearch ships."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from hisearch.base.one_thread import on_one_thread
from hisearch.cli import options
from hisearch.cli import output as out
from refit.entries import refit_entries
from refit.host_fit.leave_out import KEYS
from refit.host_fit.run import fit_hosts, write_judged
from refit.profiles import fit_heads, fit_profiles
from refit.shipped import ENGINES, data_folder

app = typer.Typer(rich_markup_mode=None, help="Fit anew what hisearch ships.")

Into = Annotated[Path, typer.Argument(metavar="INTO", help="Folder of latency profiles.")]
Tables = Annotated[
    Path | None,
    typer.Option("--tables", metavar="FOLDER", help="aiconfigurator-core, unpacked; the installed one if absent."),
]


@app.command("profiles")
def profiles(
    into: Into,
    tables: Tables = None,
    former: Annotated[
        Path | None,
        typer.Option(
            "--former",
            metavar="FOLDER",
            help="aiconfigurator 0.8.0, unpacked, for laws of engines' former versions; they stay as they are shipped "
            "where absent.",
        ),
    ] = None,
) -> None:
    """Fit the laws of operators of every accelerator and engine, and write the profiles that ship."""
    _show_written(lambda: fit_profiles(into, folder=tables, former=former, report=out.note))


@app.command("heads")
def heads(
    into: Into,
    tables: Tables = None,
) -> None:
    """Fit the laws of attention with other heads, and leave the rest of the profiles that ship as it is."""
    _show_written(lambda: fit_heads(into, folder=tables, report=out.note))


@app.command("entries")
def entries(
    into: Into,
    tables: Tables = None,
) -> None:
    """Fit anew the laws of compressed and block-sparse attention alone, in profiles that are there."""
    _show_written(lambda: refit_entries(into, data_folder(tables), ENGINES, report=out.note))


def _show_written(fit: Callable[[], Iterable[Path]]) -> None:
    """Fit, and print the files that were written; without tables end with what is missing."""
    try:
        written = fit()
    except ValueError as error:
        sys.exit(str(error))
    for path in written:
        out.say(str(path))


@app.command("hosts")
def hosts(
    silicon: Annotated[
        list[Path] | None,
        typer.Option(
            "--silicon", metavar="FILE.csv", help="Closed-loop runs, as of `validate silicon`; several times."
        ),
    ] = None,
    open_loop: Annotated[
        list[Path] | None,
        typer.Option("--open-loop", metavar="DIR", help="Open-loop runs, as of `validate open-loop`; several times."),
    ] = None,
    served: Annotated[
        list[Path] | None,
        typer.Option("--served", metavar="DIR", help="A served workload, as of `validate e2e`; several times."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Constants by engine and version, as YAML.")
    ] = Path("host_times.yaml"),
    errors: Annotated[
        Path | None, typer.Option("--errors", metavar="FILE", help="Write the laws of errors that are left, as YAML.")
    ] = None,
    without: Annotated[
        str,
        typer.Option(
            "--leave-out", metavar="A,…", help="What is left out in turn, and refitted: campaign, GPU, model; or none."
        ),
    ] = "campaign,GPU,model",
    processes: Annotated[int, typer.Option("--processes", min=1, help="That simulate side by side.")] = 2,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit the host work of engines to served runs of all campaigns at once, and judge it by what is left out.

    Every constant has a range and what is known of it beforehand (docs/latency.md). 1,300 runs take half an hour, and
    some minutes with --leave-out none.
    """
    names = [] if without == "none" else without.split(",")
    for name in names:
        options.check_choice("--leave-out", name, (*KEYS, "none"))
    files, folders, workloads = silicon or [], open_loop or [], served or []
    if not files and not folders and not workloads:
        raise typer.BadParameter("say what was measured: --silicon FILE.csv, --open-loop DIR or --served DIR")
    options.check_places(output, errors)
    note = (lambda _: None) if quiet else out.note
    try:
        judged = on_one_thread(fit_hosts)(files, folders, workloads, without=names, processes=processes, note=note)
    except ValueError as error:
        sys.exit(str(error))
    write_judged(judged, output, errors, ", ".join(path.name for path in (*files, *folders, *workloads)))
    if as_json:
        out.print_json({"runs": judged.runs, "errors": judged.errors, "coverage": judged.coverage})
        return
    rows = [
        {
            "left out": left_out,
            "runs of": group,
            "figure": figure,
            "runs": f"{error['runs']:,.0f}",
            "median": f"{100 * error['median_ape']:.1f} %",
            "mean": f"{100 * error['mape']:.1f} %",
        }
        for left_out, groups in judged.errors.items()
        for group, figures in groups.items()
        for figure, error in figures.items()
    ]
    out.records(rows, text=("left out", "runs of", "figure"))


if __name__ == "__main__":
    app()
