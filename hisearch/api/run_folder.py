"""The folder of a run.

==================  ==========================================================================================
``study.yaml``      the study, what is the user's own written out, what is named pinned by digest
``inputs/``         the documents that it names, as they were; the folder is read with these
``trace.npz``       of a run that read a trace file: the compiled trace
``provenance.json`` versions, seeds, digests of inputs, cores, wall time, budget used
``journal.jsonl``   every finished simulation, appended as it ended; a killed run resumes from it, and the report of a
                    live run is drawn from it
``study.db``        Optuna studies for optuna-dashboard, unless they are written to a PostgreSQL database
``storage.json``    with PostgreSQL only: the database's address, without a password, and the run's name in it
``trials.parquet``  every simulation, in order
``candidates.csv``  stage 1's estimates
``front.csv``       the Pareto front
``closeup.json``    simulated details of the recommended deployment for the report
``report.html``     the report
``recommended/``    the recommendation as launch scripts, manifests and benchmarks; an older one, if changed or of
                    another deployment, is kept as ``recommended.1/``. Where no command line can express it,
                    ``recommended.txt`` says why
``report.1.html``   of a run that was resumed and then recommended something else: its earlier report
``models/``         of a run of several models only: the folder of each model's own run
``run.lock``        held by the process that writes, as long as it does; see ``run_lock``
``ended/``          of a run that ended and was resumed: its documents, which are read until it ends again
==================  ==========================================================================================

Every file is written under a temporary name and renamed, so that readers never see a partial one. Nothing is written
outside the folder.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.run_lock import LOCK
from hisearch.base.json_file import read_json
from hisearch.report.data.stored import CONFIDENCE
from hisearch.specs.storage_url import without_secrets

if TYPE_CHECKING:
    from hisearch.search.model.problem import Problem
    from hisearch.search.records.storage import StudyDatabase

JOURNAL = "journal.jsonl"
#: Journal of the simulations behind ``confidence.json``.
CONFIDENCE_JOURNAL = "confidence.jsonl"
PROVENANCE = "provenance.json"
DATABASE = "study.db"
#: Names the run's studies in a PostgreSQL database.
STORAGE = "storage.json"
CLOSEUP = "closeup.json"
#: Of a run of several models: the folder with each model's run.
MODELS = "models"
REPORT = "report.html"
#: Why the recommendation was not exported.
NOT_EXPORTED = "recommended.txt"
#: Documents of a run that ended before it was resumed; see ``keep_ended``.
ENDED = "ended"

#: Suffix of a folder that is being filled.
_TREE_PART = ".parts"


def default_run_dir(study: str) -> Path:
    """``runs/<study>-<UTC time>``, in the working directory."""
    now = datetime.datetime.now(datetime.UTC)
    return Path("runs") / f"{study}-{now:%Y%m%dT%H%M%SZ}"


#: Files that a run writes when it ends.
_END_FILES = (PROVENANCE, "trials.parquet")
#: Files that load a finished run, together with its journal, which only grows.
_READ_BACK = ("study.yaml", *_END_FILES, CONFIDENCE, CLOSEUP)


def has_ended(folder: Path) -> bool:
    """True where a run has written its documents, also after an interrupt or an exhausted budget."""
    return all((folder / name).is_file() for name in _END_FILES)


def keep_ended(folder: Path) -> None:
    """Before a finished run is resumed: keep its documents, in case the resumed run is killed."""
    if not has_ended(folder):
        return
    temporary = Path(tempfile.mkdtemp(prefix=f".{ENDED}.", suffix=_TREE_PART, dir=folder))
    temporary.chmod(0o755)
    for name in _READ_BACK:
        if (folder / name).is_file():
            shutil.copy2(folder / name, temporary / name)
    shutil.rmtree(folder / ENDED, ignore_errors=True)
    temporary.replace(folder / ENDED)


def ended_in(folder: Path) -> Path | None:
    """The folder with the documents of a finished run, or those kept when it was resumed; None without any."""
    return next((place for place in (folder, folder / ENDED) if has_ended(place)), None)


def check_resumable(folder: Path) -> None:
    """Refuse to resume where nothing was begun.

    Raises:
        JournalError: the folder has no journal.
    """
    from hisearch.search.records.journal import JournalError

    if not (folder / JOURNAL).is_file():
        raise JournalError(
            f"{folder}: expected the folder of a run to go on with, found no {JOURNAL}. A run goes on from its folder, "
            "also where its trials went to a database: bring the folder here, or make a new run without --resume"
        )


def check_unused(folder: Path) -> None:
    """Refuse a folder that holds something other than a run: a run's files would stand among them.

    Raises:
        FileExistsError: it does.
    """
    entries = sorted(path.name for path in folder.iterdir() if path.name != LOCK) if folder.is_dir() else []
    if entries and not any((folder / name).is_file() for name in (JOURNAL, "study.yaml")):
        raise FileExistsError(
            f"{folder}: expected a new or an empty folder for the run, found {entries[0]}"
            + (f" and {len(entries) - 1:,} more" if len(entries) > 1 else "")
        )


def check_writable(folder: Path) -> None:
    """Refuse a folder that cannot be made or written; make nothing.

    Raises:
        OSError: the path, or its nearest existing parent, is not a folder or is not writable.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise NotADirectoryError(f"{folder}: {existing} is a file; expected a folder for the run")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder}: {existing} may not be written to")


def check_place(path: Path) -> None:
    """Refuse a file whose folder does not exist.

    Raises:
        OSError: the folder does not exist.
    """
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: no folder {path.parent}")


def check_one_model(folder: Path) -> None:
    """Refuse the folder of a run of several models where a study's is needed.

    Raises:
        FileNotFoundError: the folder holds no run.
        SpecError: its study cannot be read.
        ValueError: its study is one of several models; the message names each model's run.
    """
    from hisearch.specs.source import read_source

    path = folder / "study.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: not a run folder (no study.yaml)")
    study = read_source(path).data
    if isinstance(study, dict) and study.get("kind") == "FleetStudy":
        model_runs = ", ".join(str(folder / MODELS / name) for name in study["spec"]["models"])
        raise ValueError(f"{folder}: a run of several models; name the run of one of them: {model_runs}")


def keep_former(folder: Path, recommended: int | None) -> tuple[Path, ...]:
    """Keep report and scripts of an earlier recommendation where the new one differs; return their paths."""
    path = folder / ENDED / CONFIDENCE
    if not path.is_file():
        return ()
    former = read_json(path).get("recommendation")
    if former is None or former["trial"] == recommended:
        return ()
    former_paths = [folder / name for name in (REPORT, "recommended") if (folder / name).exists()]
    return tuple(former_path.rename(_free_name(former_path)) for former_path in former_paths)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    replace_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def replace_with(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` make a file next to ``path``, then rename it into place; an error leaves nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove partial files and trees of a killed run; see ``replace_with`` and ``write_tree``."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)
    for part in folder.glob(f".*{_TREE_PART}"):
        shutil.rmtree(part, ignore_errors=True)


def write_tree(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a folder next to ``path``, then replace ``path`` with it.

    An existing folder with other files than an export's own, or with changed ones, is kept as ``path.1``,
    ``path.2``, …
    """
    from hisearch.export.files import is_untouched

    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=_TREE_PART, dir=path.parent))
    try:
        temporary.chmod(0o755)
        write(temporary)
        if path.exists():
            if is_untouched(path):
                shutil.rmtree(path)
            else:
                path.rename(_free_name(path))
        temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _free_name(path: Path) -> Path:
    """``recommended.1``, ``report.1.html``: the first such free name."""
    names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def open_database(folder: Path, study: str, problem: Problem, storage: str | None) -> StudyDatabase:
    """The run's database: ``study.db`` in its folder, or studies of its own in the one at ``storage``.

    Raises:
        StorageError: it cannot be reached.
    """
    from hisearch.search.records.storage import StudyDatabase

    if storage is None:
        return StudyDatabase(folder / DATABASE, study, problem)
    record = folder / STORAGE
    if record.is_file():
        name = str(read_json(record)["study"])
    else:
        name = f"{study} {folder.absolute().name} {uuid.uuid4().hex[:8]}"
    write_text(record, json.dumps({"storage": without_secrets(storage), "study": name}, indent=2) + "\n")
    return StudyDatabase(storage, name, problem)


def plain(data: Any) -> Any:
    """``data`` in values that JSON knows: dataclasses as objects, paths as text, infinite and missing numbers as null.

    Raises:
        TypeError: a value that has no such form.
    """
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, float):
        return float(data) if math.isfinite(data) else None
    if isinstance(data, Path):
        return str(data)
    if is_dataclass(data) and not isinstance(data, type):
        return plain(asdict(data))
    if isinstance(data, Mapping):
        return {str(key): plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(value) for value in data]
    raise TypeError(f"no JSON form for {type(data).__name__}")
