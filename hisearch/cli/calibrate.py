"""``hisearch calibrate``: measurements of operators to a LatencyProfile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from hisearch.cli import options


def calibrate(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]",
            help="Tables of operator latencies in hisearch's own form (docs/latency.md), or aiconfigurator-core, "
            "unpacked; the installed one where absent.",
        ),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="NAME", help="Name or path of the Accelerator measured.")
    ] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="vllm, sglang or trtllm.")] = None,
    engine_version: Annotated[str, typer.Option("--engine-version", help="With tables of one's own.")] = "unknown",
    multiprocessors: Annotated[
        int | None, typer.Option("--multiprocessors", min=1, help="SMs of the accelerator; with tables of one's own.")
    ] = None,
    source: Annotated[
        str, typer.Option("--source", help="Where one's own tables come from, with their licence.")
    ] = "own measurements",
    name: Annotated[str | None, typer.Option("--name", help="Of the profile; ENGINE-ACCELERATOR where absent.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there; standard output where absent.")
    ] = None,
    shipped: Annotated[
        Path | None,
        typer.Option("--shipped", metavar="FOLDER", help="Instead: fit every profile that hisearch ships, into it."),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fit operator latencies, and write them as a LatencyProfile.

    The laws are those of one accelerator under one engine. Each states its error on shapes that were left out of its
    fit. --json prints those instead of the profile.
    """
    from hisearch.api import calibrate as api
    from hisearch.cli import output as out
    from hisearch.specs.base import ENGINE_TITLES

    def said(text: str) -> None:
        if not quiet:
            out.note(text)

    if shipped is not None:
        for path in api.calibrate_shipped(shipped, folder=folder, said=said):
            typer.echo(str(path))
        return
    if accelerator is None:
        raise typer.BadParameter("say which accelerator was measured", param_hint="--accelerator")
    if engine not in ENGINE_TITLES:
        raise typer.BadParameter("vllm, sglang or trtllm", param_hint="--engine")
    serving = engine
    if folder is not None and _is_own(folder):
        if multiprocessors is None:
            raise typer.BadParameter("needed with tables of one's own", param_hint="--multiprocessors")
        found = api.calibrate_own(
            folder,
            accelerator=accelerator,
            engine=serving,
            engine_version=engine_version,
            multiprocessors=multiprocessors,
            source=source,
            name=name,
            said=said,
        )
    else:
        found = api.calibrate_aiconfigurator(accelerator, serving, folder=folder, name=name, said=said)
    if output is not None:
        output.write_text(found.yaml, encoding="utf-8")
    if as_json:
        out.print_json({"name": found.name, "laws": _errors(found.profile)})
    elif output is None:
        typer.echo(found.yaml, nl=False)


def _is_own(folder: Path) -> bool:
    from hisearch.calibrate.tables import COLUMNS

    return any((folder / f"{table}{suffix}").exists() for table in COLUMNS for suffix in (".csv", ".parquet"))


def _errors(profile: Any) -> list[dict[str, Any]]:
    """A row for each law."""
    from hisearch.specs.laws import LawTerms

    rows = []
    for family, laws in profile.laws:
        if isinstance(laws, dict):
            for dtype, terms in cast("dict[str, LawTerms]", laws).items():
                error = terms.error.model_dump() if terms.error is not None else {}
                rows.append({"family": family, "format": dtype, "source": terms.source, **error})
    return rows
