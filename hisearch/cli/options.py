"""Options that several verbs share."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer


def positive(value: float | None) -> float | None:
    """Callback of an option: a finite number above 0, or none.

    Raises:
        typer.BadParameter: it is not.
    """
    if value is not None and not (math.isfinite(value) and value > 0):
        raise typer.BadParameter(f"{value:g} is not a number above 0.")
    return value


def check_choice(option: str, value: str | None, choices: Collection[str]) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        typer.BadParameter: names the option and the choices.
    """
    if value is not None and value not in choices:
        raise typer.BadParameter(f"expected {', '.join(choices)}, not {value}", param_hint=option)


def check_places(*files: Path | None) -> None:
    """Refuse files to write whose folder does not exist, before anything is computed."""
    from hisearch.api.run_folder import check_place

    for file in files:
        if file is not None:
            check_place(file)


Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the document; may be given more than once."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on standard error.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of everything random.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Keep the first requests only.")]
SkipBad = Annotated[int, typer.Option("--skip-bad", min=0, metavar="N", help="Leave out up to N broken rows.")]
Format = Annotated[str, typer.Option("--format", help="Format of the trace file (docs/traces.md).")]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        metavar="FIELD=COLUMN,…",
        help="Of a table of your own: which column is what, e.g. arrival_s=ts,input_tokens=prompt (docs/traces.md).",
    ),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--adapters",
        metavar="NAME=RANK,…",
        help="Which of the models that calls and logs ask for, or of a table's column adapter, are LoRA "
        "adapters, and their ranks; a name alone: the deployment's rank.",
    ),
]
#: Values of ``--time-unit``.
TIME_UNITS = ("auto", "s", "ms", "us", "ns")
TimeUnit = Annotated[
    str,
    typer.Option(
        "--time-unit",
        metavar="UNIT",
        help="Of a table or log: unit of times that are numbers, s, ms, us or ns; auto: told by their size.",
    ),
]
Trace = Annotated[str, typer.Argument(metavar="TRACE", help="A workload or trace file.")]
Source = Annotated[str, typer.Option("--source", help="Where the measurements come from, with their licence.")]
ProfileFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write there; standard output where absent.")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="Folder that `hisearch run` has written.")]
