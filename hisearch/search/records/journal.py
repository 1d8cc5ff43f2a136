"""The crash-safe record of finished simulations: one JSON object per line, appended and flushed as each one ends.

The first line names the inputs (``{"journal": 1, "inputs": DIGEST}``). Every other line is a finished simulation
(``{"key": DIGEST, "evaluation": {…}, "number": N, "job": {…}}``). The last two are the trial's number and its job; they
are left out if there is no trial. A killed process leaves at worst a torn last line, which is dropped when the journal
is read. Lines are in the order in which simulations ended, which differs from run to run; a resumed run looks them up
by key.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, TextIO

from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.trial import Trial

JOURNAL_VERSION = 1


class JournalError(ValueError):
    """A journal that is not one, is damaged before its last line, or belongs to other inputs."""


class OtherInputsError(JournalError):
    """A journal that was made with other inputs."""


class Journal:
    """Finished simulations by key, on disk. Use it as a context manager."""

    def __init__(self, path: Path, inputs: str, *, resume: bool = False) -> None:
        """Open the journal of a run.

        Args:
            path: the file; its folder must exist.
            inputs: digest of everything besides the jobs that decides outcomes.
            resume: read the finished simulations of an earlier run; without it the file must not exist.

        Raises:
            JournalError: see the class; or the file exists without ``resume``.
        """
        self._path = path
        self._lock = threading.Lock()
        self._finished = check_journal(path, inputs, resume=resume)
        _cut_torn_line(path)
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
        """The evaluation that an earlier run recorded for ``key``."""
        return self._finished.get(key)

    def record(self, key: str, evaluation: Evaluation, number: int | None = None, job: Job | None = None) -> None:
        """Append a finished simulation and flush it to the operating system at once. Safe from any thread.

        Does nothing once the journal is closed: after an interrupt, threads still finish their simulations.

        Args:
            key: the job's digest.
            evaluation: its outcome.
            number: number of its trial in the study, for readers of a running study.
            job: the simulated job, for the same readers.
        """
        row: dict[str, Any] = {"key": key, "evaluation": evaluation.to_json()}
        if job is not None:
            row |= {"number": number, "job": job.to_json()}
        with self._lock:
            if not self._stream.closed:
                self._append(row)

    def _append(self, row: dict[str, Any]) -> None:
        self._stream.write(json.dumps(row, separators=(",", ":")) + "\n")
        self._stream.flush()


def check_journal(path: Path, inputs: str, *, resume: bool) -> dict[str, Evaluation]:
    """Finished simulations of a journal, by key; empty if it does not exist. Nothing is changed.

    Raises:
        JournalError: see ``Journal``.
    """
    if not path.exists():
        return {}
    if not resume:
        raise JournalError(f"{path}: a run was already made in this folder; resume it or choose another folder")
    lines = _whole_lines(path.read_bytes())
    if lines:
        _check_inputs(path, lines[0], inputs)
    return {row["key"]: evaluation for row, evaluation in _finished(path, lines)}


def _cut_torn_line(path: Path) -> None:
    """Cut a torn last line off the file, should there be one."""
    content = path.read_bytes() if path.exists() else b""
    if (complete_bytes := sum(map(len, _whole_lines(content)))) < len(content):
        with path.open("r+b") as stream:
            stream.truncate(complete_bytes)


class SoFar(NamedTuple):
    """Content of a journal whose run may still be going on.

    trials: by number. unknown: evaluations without a recorded job, from an earlier version. latest: the trial that
    ended last.
    """

    trials: tuple[Trial, ...]
    unknown: tuple[Evaluation, ...]
    latest: Trial | None

    @property
    def simulations(self) -> int:
        """Simulations of all entries."""
        return sum(t.simulations for t in self.trials) + sum(e.simulations for e in self.unknown)


def read_so_far(path: Path) -> SoFar:
    """The trials in a journal that another process may be writing: nothing is locked, and nothing is changed.

    Trials keep the numbers of the run, with gaps for simulations that have not ended. If a run resumed with another
    budget reused a number, the earlier trial is numbered after all others.

    Raises:
        JournalError: it is not a journal, or is damaged before its last line.
        OSError: it cannot be read.
    """
    lines = _whole_lines(path.read_bytes())
    if lines:
        _header(path, lines[0])
    numbered: dict[int, tuple[Job, Evaluation]] = {}
    displaced: list[tuple[Job, Evaluation]] = []
    unknown: list[Evaluation] = []
    latest: int | None = None
    for place, (row, evaluation) in enumerate(_finished(path, lines), start=2):
        if "job" not in row:
            unknown.append(evaluation)
            continue
        try:
            latest, job = int(row["number"]), Job.from_json(row["job"])
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"{path}:{place}: not a trial ({error})") from error
        if latest in numbered:
            displaced.append(numbered[latest])
        numbered[latest] = job, evaluation
    after = max(numbered, default=-1) + 1
    every = numbered | {after + place: displaced_trial for place, displaced_trial in enumerate(displaced)}
    trials = {number: evaluation.trial(number, job) for number, (job, evaluation) in sorted(every.items())}
    return SoFar(tuple(trials.values()), tuple(unknown), None if latest is None else trials[latest])


def _whole_lines(content: bytes) -> list[bytes]:
    """The complete lines, with their line ends."""
    return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def _finished(path: Path, lines: Sequence[bytes]) -> Iterator[tuple[dict[str, Any], Evaluation]]:
    """Every line after the header, and its evaluation."""
    for number, line in enumerate(lines[1:], start=2):
        try:
            row = json.loads(line)
            entry = row["key"], Evaluation.from_json(row["evaluation"])
        except (ValueError, KeyError, TypeError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else f"{type(error).__name__}: {error}"
            raise JournalError(
                f"{path}:{number}: damaged: no finished simulation stands in this line ({why}). What stands before it "
                f"is sound: to go on with that alone, copy the folder, then sed -i '{number},$d' "
                f"{shlex.quote(str(path))} and resume; what was cut off is simulated again"
            ) from error
        yield row, entry[1]


def _header(path: Path, line: bytes) -> str:
    """The digest of the inputs that a journal's first line names."""
    try:
        header = json.loads(line)
        version, digest = header["journal"], header["inputs"]
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"{path}:1: not a journal of finished simulations ({error})") from error
    if version != JOURNAL_VERSION:
        raise JournalError(f"{path}:1: journal version {version}, this program reads {JOURNAL_VERSION}")
    return str(digest)


def _check_inputs(path: Path, line: bytes, inputs: str) -> None:
    if _header(path, line) != inputs:
        raise OtherInputsError(
            f"{path}:1: the run was made for another model, workload, SLO, hardware, profile, seed or program version"
        )
