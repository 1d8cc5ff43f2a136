"""The backend of a study's simulations, and the database of its trials outside the run folder."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from hisearch.api.runs.run_folder import DATABASE, write_text
from hisearch.specs.storage_url import without_secrets

if TYPE_CHECKING:
    from hisearch.search.evaluate.backends import Backend
    from hisearch.search.model.job import Evaluate
    from hisearch.search.model.problem import Problem
    from hisearch.search.records.storage import StudyDatabase

BackendName = Literal["threads", "loky", "dask"]
BACKENDS: tuple[str, ...] = get_args(BackendName)

#: File that names the run's studies in a PostgreSQL database.
STORAGE = "storage.json"


def make_backend(name: str, evaluate: Evaluate, workers: int | None = None, scheduler: str | None = None) -> Backend:
    """A backend by its name; see ``hisearch.search.evaluate.backends``.

    Raises:
        ValueError: no such backend, workers below 1, or a scheduler with another backend than dask, or none with it.
    """
    if name not in BACKENDS:
        raise ValueError(f"no backend '{name}'; known: {', '.join(BACKENDS)}")
    if (scheduler is not None) != (name == "dask"):
        raise ValueError("the backend dask, and it alone, needs a scheduler's address: tcp://HOST:PORT")
    if scheduler is not None:
        from hisearch.search.evaluate.dask_cluster import DaskCluster

        return DaskCluster(evaluate, scheduler, workers)
    from hisearch.search.evaluate.backends import Processes, Threads

    return Threads(evaluate, workers) if name == "threads" else Processes(evaluate, workers)


def open_database(folder: Path, study: str, problem: Problem, storage: str | None) -> StudyDatabase:
    """The run's database: ``study.db`` in its folder, or studies of its own in the one at ``storage``.

    Raises:
        StorageError: it cannot be reached.
    """
    from hisearch.search.records.storage import StudyDatabase

    if storage is None:
        return StudyDatabase(folder / DATABASE, study, problem)
    name = _name_of_run(folder, study)
    write_text(folder / STORAGE, json.dumps({"storage": without_secrets(storage), "study": name}, indent=2) + "\n")
    return StudyDatabase(storage, name, problem)


def _name_of_run(folder: Path, study: str) -> str:
    """The stored name of the run in ``folder``, or a new unique one."""
    record = folder / STORAGE
    if record.is_file():
        return str(json.loads(record.read_text(encoding="utf-8"))["study"])
    return f"{study} {folder.absolute().name} {uuid.uuid4().hex[:8]}"
