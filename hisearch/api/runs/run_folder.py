"""The folder that a run leaves behind.

==================  ==========================================================================================
``study.yaml``      the study with everything it names
``provenance.json`` versions, seeds, digests of inputs, cores, wall time, budget used
``journal.jsonl``   every finished simulation, appended as it ended; what a killed run resumes from, and what the report
                    of a run that goes on is drawn from
``study.db``        Optuna studies for optuna-dashboard; not where they are written to a PostgreSQL database, then
``storage.json``    that database's address, without a password, and the run's name in it
``trials.parquet``  every simulation, in order
``candidates.csv``  stage 1's estimates
``front.csv``       the Pareto front
``closeup.json``    what the report shows of the recommended deployment beside its trial
``report.html``     the report
``recommended/``    the recommendation as launch scripts, manifests and benchmarks; an older one, if changed or of
                    another deployment, is kept as ``recommended.1/``. Where no command line can express it,
                    ``recommended.txt`` says why
``report.1.html``   of a run that was gone on with and then recommended something else: its report before that
``models/``         of a run of several models alone: the folder of each model's own run
``ended/``          of a run that had ended and is gone on with: what it had come to, which is read until it ends anew
==================  ==========================================================================================

Every file is written beside its place and renamed into it, so that no reader ever sees half of one. Nothing is written
outside the folder.
"""

from __future__ import annotations

import datetime
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hisearch.report.data.confidence import CONFIDENCE

JOURNAL = "journal.jsonl"
PROVENANCE = "provenance.json"
DATABASE = "study.db"
CLOSEUP = "closeup.json"
#: Of a run of several models: where the folder of each one's run is.
MODELS = "models"
REPORT = "report.html"
#: What a run that is gone on with had come to; see ``keep_ended``.
ENDED = "ended"

#: End of the name of a folder that is being filled.
_TREE_PART = ".parts"


def default_run_dir(study: str) -> Path:
    """``runs/<study>-<UTC time>``, in the working directory."""
    now = datetime.datetime.now(datetime.UTC)
    return Path("runs") / f"{study}-{now:%Y%m%dT%H%M%SZ}"


#: Files that a run has written once it has ended.
_OF_THE_END = (PROVENANCE, "trials.parquet")
#: Files of a run that has ended that are needed to read it back, beside its journal, which only grows.
_READ_BACK = ("study.yaml", *_OF_THE_END, CONFIDENCE, CLOSEUP)


def has_ended(folder: Path) -> bool:
    """True where a run has written its documents, also if an interrupt or the budget ended it."""
    return all((folder / name).is_file() for name in _OF_THE_END)


def keep_ended(folder: Path) -> None:
    """Before a run that has ended is gone on with: keep what it came to, should this one be killed."""
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
    """Where the documents are of a run that has ended, or had before it was gone on with; None where there are none."""
    return next((place for place in (folder, folder / ENDED) if has_ended(place)), None)


def check_resumable(folder: Path) -> None:
    """Refuse to go on where nothing was begun.

    Raises:
        JournalError: the folder has no journal.
    """
    from hisearch.search.records.journal import JournalError

    if not (folder / JOURNAL).is_file():
        raise JournalError(
            f"{folder}: expected the folder of a run to go on with, found no {JOURNAL}. A run goes on from its folder, "
            "also where its trials went to a database: bring the folder here, or make a new run without --resume"
        )


def check_one_of_several(folder: Path) -> None:
    """Refuse to go on where no run of several models was begun.

    Raises:
        JournalError: the folder has no study.
    """
    from hisearch.search.records.journal import JournalError

    if not (folder / "study.yaml").is_file():
        raise JournalError(f"{folder}: expected the folder of a run to go on with, found no study.yaml")


def check_writable(folder: Path) -> None:
    """Refuse a folder that could not be made or written, and make nothing.

    Raises:
        OSError: it, or what stands where it belongs, is no folder, or may not be written to.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{folder}: {there} is a file; expected a folder for the run")
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder}: {there} may not be written to")


def check_place(path: Path) -> None:
    """Refuse a file that could not be written for want of its folder.

    Raises:
        OSError: there is no such folder.
    """
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: no folder {path.parent}")


def check_one_model(folder: Path) -> None:
    """Refuse the folder of a run of several models where that of a study is needed.

    Raises:
        FileNotFoundError: the folder holds no run.
        SpecError: its study cannot be read.
        ValueError: its study is one of several models; says where the run of each is.
    """
    from hisearch.specs.source import read_source

    path = folder / "study.yaml"
    if not path.is_file():
        raise FileNotFoundError(f"{folder}: not a run folder (no study.yaml)")
    study = read_source(path).data
    if isinstance(study, dict) and study.get("kind") == "FleetStudy":
        own = ", ".join(str(folder / MODELS / name) for name in study["spec"]["models"])
        raise ValueError(f"{folder}: a run of several models; name the run of one of them: {own}")


def keep_former(folder: Path, recommended: int | None) -> tuple[Path, ...]:
    """Where a run that had ended comes to another answer: keep report and scripts of the former; what is kept."""
    path = folder / ENDED / CONFIDENCE
    if not path.is_file():
        return ()
    former = json.loads(path.read_text(encoding="utf-8")).get("recommendation")
    if former is None or former["trial"] == recommended:
        return ()
    found = [folder / name for name in (REPORT, "recommended") if (folder / name).exists()]
    return tuple(one.rename(_free_name(one)) for one in found)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    replace_with(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def replace_with(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` make a file beside ``path``, then rename it into place; on an error nothing is left behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove what a killed run was writing when it died: parts of files and of trees, see below and above."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)
    for part in folder.glob(f".*{_TREE_PART}"):
        shutil.rmtree(part, ignore_errors=True)


def write_tree(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a folder beside ``path``, then put it in the place of ``path``.

    A folder that is there already and holds more than an export's own files, or changed ones, is kept as ``path.1``,
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
    """``recommended.1``, ``report.1.html``: the first such name that is not taken."""
    names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))
