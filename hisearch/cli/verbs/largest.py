"""The largest rate of given accelerators, for ``hisearch size --have`` and ``hisearch run``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hisearch.cli.compilation import note_compilation
from hisearch.cli.errors import NOTHING_FEASIBLE

if TYPE_CHECKING:
    from hisearch.api.studies.study import Study


def run_largest(studies: Sequence[Study], out: Path | None, workers: int | None, as_json: bool, quiet: bool) -> None:
    """Search and print the largest rate of each study's accelerators; each has a run folder."""
    from hisearch.api.run_folder import check_unused, check_writable, default_run_dir
    from hisearch.api.studies.largest import largest_rate
    from hisearch.cli.output import result as print_result
    from hisearch.cli.views import largest as view

    note_compilation(quiet)
    answers = []
    for study in studies:
        folder = out if out is not None else default_run_dir(study.name)
        kind = study.resolved.space.spec.execution.accelerators[0]
        folder = folder / Path(kind).stem if len(studies) > 1 else folder
        check_writable(folder)
        check_unused(folder)
        answers.append(largest_rate(study, workers=workers, run_dir=folder))
    print_result(as_json, lambda: view.to_dict(answers), lambda: view.show(answers))
    if all(answer.trial is None or answer.nothing_assured for answer in answers):
        raise typer.Exit(NOTHING_FEASIBLE)
