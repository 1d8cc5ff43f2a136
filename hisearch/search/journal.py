"""The crash-safe record of finished simulations: one JSON object per line, appended and flushed as each one ends.

The first line names the inputs (``{"journal": 1, "inputs": DIGEST}``), every other one a finished simulation (``{"key":
DIGEST, "evaluation": {…}}``). A process that is killed leaves at worst a torn last line, which is dropped when the
journal is read. Lines stand in the order in which simulations ended, which differs from run to run; readers look them
up by key.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from hisearch.search.job import Evaluation

JOURNAL_VERSION = 1


class JournalError(ValueError):
    """A journal that is not one, is damaged before its last line, or belongs to other inputs."""


class Journal:
    """Finished simulations by key, on disk. Use it as a context manager."""

    def __init__(self, path: Path, inputs: str, *, resume: bool = False) -> None:
        """Open the journal of a run.

        Args:
            path: the file; its folder must exist.
            inputs: digest of everything that decides outcomes beside the jobs themselves.
            resume: read what an earlier run has finished; without it the file must not exist.

        Raises:
            JournalError: see the class; or the file exists although ``resume`` is not asked for.
        """
        self._path = path
        self._finished: dict[str, Evaluation] = {}
        self._lock = threading.Lock()
        if path.exists():
            if not resume:
                raise JournalError(f"{path}: a run was already made in this folder; resume it or choose another folder")
            self._finished = _read(path, inputs)
        new = not path.exists() or path.stat().st_size == 0
        self._stream: TextIO = path.open("a", encoding="utf-8")
        if new:
            self._append({"journal": JOURNAL_VERSION, "inputs": inputs})

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._stream.close()

    def __len__(self) -> int:
        return len(self._finished)

    def get(self, key: str) -> Evaluation | None:
        """What an earlier run found for ``key``."""
        return self._finished.get(key)

    def record(self, key: str, evaluation: Evaluation) -> None:
        """Append a finished simulation and hand it to the operating system at once. Safe from any thread.

        Does nothing once the journal is closed: after an interrupt, threads still finish what they were at.
        """
        with self._lock:
            if not self._stream.closed:
                self._append({"key": key, "evaluation": evaluation.to_json()})

    def _append(self, row: dict[str, Any]) -> None:
        self._stream.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._stream.flush()


def _read(path: Path, inputs: str) -> dict[str, Evaluation]:
    """Read all whole lines and cut a torn last one off the file."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as stream:
            stream.truncate(whole)
    lines = content[:whole].decode("utf-8").splitlines()
    if not lines:
        return {}
    _check_header(path, lines[0], inputs)
    finished = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            row = json.loads(line)
            finished[row["key"]] = Evaluation.from_json(row["evaluation"])
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{path}:{number}: not a finished simulation ({error})") from error
    return finished


def _check_header(path: Path, line: str, inputs: str) -> None:
    try:
        header = json.loads(line)
        version, digest = header["journal"], header["inputs"]
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{path}:1: not a journal of finished simulations ({error})") from error
    if version != JOURNAL_VERSION:
        raise JournalError(f"{path}:1: journal version {version}, this program reads {JOURNAL_VERSION}")
    if digest != inputs:
        raise JournalError(
            f"{path}:1: the run was made for another model, workload, SLO, hardware, profile, seed or program version; "
            "choose another folder"
        )
