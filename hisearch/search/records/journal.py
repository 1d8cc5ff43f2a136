"""The crash-safe record of finished simulations: one JSON object per line, appended and flushed as each one ends.

The first line names the inputs (``{"journal": 1, "inputs": DIGEST}``), every other one a finished simulation (``{"key":
DIGEST, "evaluation": {…}, "number": N, "job": {…}}``; the last two are the trial's number and what was simulated, and
are left out where there is no trial). A process that is killed leaves at worst a torn last line, which is dropped when
the journal is read. Lines stand in the order in which simulations ended, which differs from run to run; a run that goes
on looks them up by key.
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
            inputs: digest of everything that decides outcomes beside the jobs themselves.
            resume: read what an earlier run has finished; without it the file must not exist.

        Raises:
            JournalError: see the class; or the file exists although ``resume`` is not asked for.
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
        """What an earlier run found for ``key``."""
        return self._finished.get(key)

    def record(self, key: str, evaluation: Evaluation, number: int | None = None, job: Job | None = None) -> None:
        """Append a finished simulation and hand it to the operating system at once. Safe from any thread.

        Does nothing once the journal is closed: after an interrupt, threads still finish what they were at.

        Args:
            key: the job's digest.
            evaluation: what came of it.
            number: of its trial in the study, for those who look at a run that has not ended.
            job: what was simulated, likewise.
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
    """What a journal has finished, by key; nothing of one that does not exist. Nothing is changed.

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
    if (whole := sum(map(len, _whole_lines(content)))) < len(content):
        with path.open("r+b") as stream:
            stream.truncate(whole)


class SoFar(NamedTuple):
    """What a journal knows of a run that may be going on.

    trials: by number. unknown: evaluations of which it does not say what was simulated: an earlier version's. latest:
    the trial that ended last.
    """

    trials: tuple[Trial, ...]
    unknown: tuple[Evaluation, ...]
    latest: Trial | None

    @property
    def simulations(self) -> int:
        """Simulations that all of it took."""
        return sum(t.simulations for t in self.trials) + sum(e.simulations for e in self.unknown)


def read_so_far(path: Path) -> SoFar:
    """The trials in a journal that another process may be writing: nothing is locked, and nothing is changed.

    Trials have the numbers that the run has given them, with gaps where simulations have not ended. Where a run that
    went on with another budget has given a number again, the earlier trial is numbered behind all others.

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
    every = numbered | {after + place: one for place, one in enumerate(displaced)}
    trials = {number: evaluation.trial(number, job) for number, (job, evaluation) in sorted(every.items())}
    return SoFar(tuple(trials.values()), tuple(unknown), None if latest is None else trials[latest])


def _whole_lines(content: bytes) -> list[bytes]:
    """The lines that end, with their ends."""
    return content[: content.rfind(b"\n") + 1].splitlines(keepends=True)


def _finished(path: Path, lines: Sequence[bytes]) -> Iterator[tuple[dict[str, Any], Evaluation]]:
    """Every line behind the head, and its evaluation."""
    for number, line in enumerate(lines[1:], start=2):
        try:
            row = json.loads(line)
            found = row["key"], Evaluation.from_json(row["evaluation"])
        except (ValueError, KeyError, TypeError) as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else f"{type(error).__name__}: {error}"
            raise JournalError(
                f"{path}:{number}: damaged: no finished simulation stands in this line ({why}). What stands before it "
                f"is sound: to go on with that alone, copy the folder, then sed -i '{number},$d' "
                f"{shlex.quote(str(path))} and resume; what was cut off is simulated again"
            ) from error
        yield row, found[1]


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
