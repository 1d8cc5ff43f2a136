"""``hisearch validate`` scheduler, router: against recordings of what real engines and routers decided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hisearch.cli import options
from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import ERROR

if TYPE_CHECKING:
    from hisearch.validate.scheduler import IdlePasses


def scheduler(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="Recordings of an engine's scheduler, .json or .json.gz, or folders of them."
        ),
    ],
    versions: Annotated[
        bool,
        typer.Option("--versions", help="Replay by the rules of every modelled release, and tell how far off each is."),
    ] = False,
    skip_idle_passes: Annotated[
        bool,
        typer.Option(
            "--skip-idle-passes",
            help="An idle SGLang scheduler passes again at the next event, not at once as in the engine: the clock of "
            "the first recordings. The verdict says so.",
        ),
    ] = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Replay recordings of an engine's own scheduler and compare every step.

    Exits with 1 where a single step or token time differs; with --versions, where no release is equal. docs/formats.md
    states the form of a recording.
    """
    from hisearch.cli import output
    from hisearch.cli.views import validate as validate_view
    from hisearch.validate.scheduler import validate_by_release, validate_recordings

    note_compilation(quiet)
    idle_passes: IdlePasses = "skipped" if skip_idle_passes else "repeated"
    cases = list(
        (validate_by_release if versions else validate_recordings)(_recordings(files), idle_passes=idle_passes)
    )
    equal_files = {case.file for case in cases if case.ok}
    ok = all(case.ok or (versions and case.file in equal_files) for case in cases)
    show = validate_view.show_releases if versions else validate_view.show
    output.result(as_json, lambda: {"cases": cases, "ok": ok}, lambda: show(cases))
    for case in cases:
        if case.error is not None:
            output.note(f"error: {case.error}")
    output.warn(validate_view.warnings(cases), quiet)
    if not ok:
        raise typer.Exit(ERROR)


def router(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="Recordings of a router's choices, .json or .json.gz, or folders of them."
        ),
    ],
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Replay recordings of a real router and compare every choice.

    What the router left to chance is taken from the recording where it was possible, and counted as drawn. Exits with 1
    where a single choice differs. docs/formats.md states the form of a recording.
    """
    from hisearch.cli import output
    from hisearch.cli.views import routers as routers_view
    from hisearch.validate.router.replay import validate_routers

    note_compilation(quiet)
    cases = list(validate_routers(_recordings(files)))
    ok = all(case.ok for case in cases)
    output.result(as_json, lambda: {"cases": cases, "ok": ok}, lambda: routers_view.show(cases))
    for case in cases:
        if case.error is not None:
            output.note(f"error: {case.error}")
    if not ok:
        raise typer.Exit(ERROR)


def _recordings(paths: list[Path]) -> list[Path]:
    """The files, and those of folders.

    Raises:
        typer.BadParameter: a folder without a recording.
    """
    files: list[Path] = []
    for path in paths:
        within = sorted(file for file in path.glob("*") if file.name.endswith((".json", ".json.gz")))
        if path.is_dir() and not within:
            raise typer.BadParameter(f"{path}: no recording, .json or .json.gz, in this folder", param_hint="FILE")
        files += within if path.is_dir() else [path]
    return files
