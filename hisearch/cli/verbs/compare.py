"""``hisearch compare``: two deployments or two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation

if TYPE_CHECKING:
    from hisearch.report.data.comparison import Comparison


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A deployment, or a run folder.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other one.")],
    trace: Annotated[str | None, typer.Option(help="Of deployments: the workload or trace file.")] = None,
    slo: Annotated[
        str | None, typer.Option(help="Of deployments: hold both against this SLO, by name, path or as a phrase.")
    ] = None,
    load: Annotated[
        float | None, typer.Option(callback=options.positive, help="Of deployments: factor on the arrival rate; 1.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of deployments: the first seed; 0.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, max=1000, help="Of deployments: how many seeds; 5.")] = None,
    limit: options.Limit = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page as well.")] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare two deployments, or two runs, and say why they differ.

    Deployments are simulated on the same requests, seed by seed, so that differences have confidence intervals. Of
    runs the recommended deployments (or the nearest misses) are compared, each on its own study's workload.
    """
    from hisearch.cli import output

    options.check_places(html)
    note_compilation(quiet)
    workload_options = {"--trace": trace, "--slo": slo, "--load": load}
    workload_options |= {"--seed": seed, "--seeds": seeds, "--limit": limit}
    comparison = _runs(a, b, workload_options) if _is_run(a) and _is_run(b) else _deployments(a, b, workload_options)
    if html is not None:
        from hisearch.api.run_folder import replace_with
        from hisearch.report.pages.comparison_page import write_comparison

        replace_with(html, lambda path: write_comparison(comparison, path))
    if as_json:
        output.print_json(comparison.to_dict())
    else:
        _show(comparison)
        if html is not None:
            output.say(f"\nPage: {html}")
    output.warn(comparison.notes, quiet)


def _is_run(ref: str) -> bool:
    return Path(ref).is_dir()


def _runs(a: str, b: str, workload_options: Mapping[str, object]) -> Comparison:
    from hisearch.api.compare import compare_runs

    extra = [name for name, value in workload_options.items() if value is not None]
    if extra:
        raise typer.BadParameter(f"{', '.join(extra)}: of deployments; runs bring their own workload and SLO")
    return compare_runs(a, b)


def _deployments(a: str, b: str, workload_options: Mapping[str, object]) -> Comparison:
    from hisearch.api.compare import compare_deployments

    for ref, counterpart in ((a, b), (b, a)):
        if not _is_run(ref):
            continue
        if not Path(counterpart).exists():
            raise FileNotFoundError(f"{counterpart}: no such run folder, to be compared with the folder {ref}")
        raise typer.BadParameter(
            f"{ref} is a folder, {counterpart} is a file: compare two run folders, or two deployments"
        )
    if workload_options["--trace"] is None:
        raise typer.BadParameter("deployments need a workload to be compared on: --trace")
    options_of = {name.removeprefix("--"): value for name, value in workload_options.items() if value is not None}
    return compare_deployments(a, b, **options_of)  # type: ignore[arg-type]


def _show(comparison: Comparison) -> None:
    """Print it for people."""
    from hisearch.cli import output
    from hisearch.report.words import comparison_words as words
    from hisearch.report.words.templating import text

    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        output.say(f"{letter}  {side.source}: {side.description}", bold=True)
    output.say(f"on {comparison.workload}")
    output.say(f"\n{words.summary(comparison)}")
    if comparison.question:
        output.heading("How the studies differ")
        output.table(("key", "A", "B"), [(c.key, c.a, c.b) for c in comparison.question])
    output.heading("What changed" if comparison.changes else "Nothing changed")
    if comparison.changes:
        output.table(("setting", "A", "B"), [(c.key, c.a, c.b) for c in comparison.changes])
    output.heading("What came of it")
    output.table(words.FIGURE_COLUMNS, words.figure_rows(comparison.figures), numbers=(1, 2, 3, 4))
    for model in comparison.models:
        output.heading(f"Requests for {model.model}")
        output.table(words.FIGURE_COLUMNS, words.figure_rows(model.figures), numbers=(1, 2, 3, 4))
    output.say(text("comparison", "seeds", comparison))
    if comparison.parts:
        output.heading("Where the mean time of a request goes")
        output.table(("", "A", "B"), words.time_rows(comparison), numbers=(1, 2))
        output.heading("Why it differs")
        output.table(("", "B − A", ""), words.part_rows(comparison), numbers=(1,))
    output.heading("What goes with it")
    output.table(("", "A", "B"), words.driver_rows(comparison), numbers=(1, 2))
    fronts = text("comparison", "fronts", comparison.fronts)
    if fronts:
        output.say(f"\n{fronts}")
