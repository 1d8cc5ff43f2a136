"""Prints errors as one line each on standard error: the only place where the command line handles them."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from hisearch.cli.compilation import end_notes

#: Exit codes.
ERROR, USAGE, MISSES_SLO, DISAGREES, NOTHING_FEASIBLE, INTERRUPTED = 1, 2, 97, 98, 99, 130
#: By SIGINT and by SIGTERM.
INTERRUPTED_CODES = (INTERRUPTED, 143)


class ReportingGroup(TyperGroup):
    """The root command: turns errors of the library and of the operating system into a message and an exit code.

    The library's errors are all ``ValueError`` (``SpecError``, ``TraceError``, ``DoesNotFit``, ``ExportError``, …) or
    ``OSError``, and what is too large to simulate here is a ``MemoryError``; anything else is a defect of the program
    and shows its traceback.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            try:
                return super().invoke(ctx)
            finally:
                end_notes()
                sys.stdout.flush()
        except KeyboardInterrupt:
            print("hisearch: interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except (ValueError, OSError, MemoryError) as error:
            if os.environ.get("HISEARCH_DEBUG"):
                raise
            from hisearch.cli.output import printable

            for line in _lines(error):
                print(f"hisearch: error: {printable(line)}", file=sys.stderr)
            raise typer.Exit(ERROR) from None


def _lines(error: ValueError | OSError | MemoryError) -> list[str]:
    """One line for each thing that is wrong."""
    from hisearch.specs.errors import SpecError

    if isinstance(error, SpecError):
        return [str(problem) for problem in error.problems]
    if isinstance(error, OSError) and error.strerror and error.filename:
        return [f"{error.filename}: {error.strerror}"]
    return [" ".join(str(error).split()) or type(error).__name__]
