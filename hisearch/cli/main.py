"""The ``hisearch`` command."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from hisearch.cli.errors import INTERRUPTED_CODES, ReportingGroup
from hisearch.cli.output import renamed_keys_noted
from hisearch.cli.streams import leavable_streams
from hisearch.cli.verbs import (
    advise,
    bench,
    calibrate,
    catalogue,
    compare,
    dashboard,
    doctor,
    folder,
    observe,
    run,
    simulate,
    size,
    trace,
    verify,
)
from hisearch.cli.verbs.validate.app import app as validate
from hisearch.kernels.fleet import head_start

app = typer.Typer(
    name="hisearch",
    cls=ReportingGroup,
    help="Find the LLM-serving deployment to buy, and how to configure it, by simulation. No GPU needed.",
    epilog="Catalogue names are accepted wherever a path is. Exit codes: 0 done, 1 error, 2 usage, 97 verify: the "
    "measured trial misses the SLO, 98 verify: measured and predicted differ, 99 nothing meets the SLO, or as likely "
    "as was asked, 130 and 143 interrupted. HISEARCH_DEBUG=1 shows where an error came from.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"hisearch {version('hisearch')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("run")(run.run)
app.command("size")(size.size)
app.command("simulate")(simulate.simulate)
app.add_typer(trace.app, name="trace")
app.add_typer(validate, name="validate")
app.command("report")(folder.report)
app.command("export")(folder.export)
app.command("observe")(observe.observe)
app.command("advise")(advise.advise)
app.command("verify")(verify.verify)
app.command("dashboard")(dashboard.dashboard)
app.command("compare")(compare.compare)
app.command("doctor")(doctor.doctor)
app.command("list")(catalogue.list_)
app.command("schema")(catalogue.schema)
app.add_typer(calibrate.app, name="calibrate")
app.command("bench")(bench.bench)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command; always raises ``SystemExit`` with its exit code.

    Args:
        arguments: those after the program's name; the process's where None.
    """
    with leavable_streams(), renamed_keys_noted():
        app(args=None if arguments is None else list(arguments), prog_name="hisearch")


def program() -> None:
    """The command as a process, which ends without taking the interpreter apart.

    That would take up to two seconds beside compiled kernels, and abort where threads still compile one.
    """
    try:
        main()
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            _end_process(ending.code or 0)
        raise


def _end_process(code: int) -> None:
    """Exit with ``code``; returns where standard output cannot take what is left for it."""
    if code in INTERRUPTED_CODES:  # nothing is waited for
        head_start.stop()
    else:
        atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
