"""Where a study's simulations run, and their progress output."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hisearch.cli import options, output
from hisearch.cli.errors import INTERRUPTED, NOTHING_FEASIBLE

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.search.records.interrupts import Interrupts
    from hisearch.search.records.progress import Progress


@dataclass(frozen=True)
class Place:
    """Where simulations run and trials are stored; ``settings``: the overrides of study keys among it."""

    workers: int | None
    backend: str
    scheduler: str | None
    storage: str | None

    @property
    def settings(self) -> tuple[str, ...]:
        """Overrides of the study's keys."""
        from hisearch.specs.storage_url import without_secrets

        return (f"spec.storage={without_secrets(self.storage)}",) if self.storage is not None else ()


def place_of(workers: int | None, backend: str | None, scheduler: str | None, storage: str | None) -> Place:
    """The options as a ``Place``, checked against one another."""
    from hisearch.api.studies.backends import BACKENDS
    from hisearch.specs.storage_url import checked_storage_url

    backend = backend or ("threads" if scheduler is None else "dask")
    options.check_choice("--backend", backend, BACKENDS)
    if (backend == "dask") != (scheduler is not None):
        raise typer.BadParameter("--backend dask needs --scheduler tcp://HOST:PORT, and no other backend takes one")
    if storage is not None:
        try:
            checked_storage_url(storage)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--storage") from None
    return Place(workers, backend, scheduler, storage)


def exit_without_answer(result: StudyResult) -> None:
    """End the command where the study recommends nothing that holds.

    Raises:
        Exit: no deployment meets the SLO, or none with the probability that was asked for.
        ValueError: none was simulated on the whole trace; neither is then known.
    """
    if result.failure is not None and not result.failure.examined:
        raise ValueError(f"{result.failure.text} {result.caution}")
    if result.failure is not None or result.unsure:
        raise typer.Exit(NOTHING_FEASIBLE)


def how_to_resume(run_dir: Path) -> str:
    """The message for an interrupted run."""
    folder = shlex.quote(str(run_dir))
    return f"interrupted; what had finished is kept. Go on with: hisearch run --resume {folder}"


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupts]:
    """Around a search: signals end it in order; one before it began ends the program."""
    from hisearch.search.records.interrupts import Interrupts

    with Interrupts((signal.SIGINT, signal.SIGTERM), exit_at_once=True) as interrupts:
        try:
            yield interrupts
        except KeyboardInterrupt:
            output.note("interrupted before the search began")
            raise typer.Exit(interrupts.exit_code or INTERRUPTED) from None


@contextlib.contextmanager
def progress_of(quiet: bool) -> Iterator[Progress | None]:
    """Bars on a terminal, lines elsewhere, nothing if quiet."""
    from hisearch.search.records.progress import BarProgress, PlainProgress

    if quiet:
        yield None
    elif sys.stderr.isatty():
        with BarProgress() as bars:
            yield bars
    else:
        yield PlainProgress()
