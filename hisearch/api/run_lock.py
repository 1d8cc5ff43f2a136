"""One process at a time in a run folder.

A run holds an exclusive lock on ``run.lock`` for as long as it writes. The operating system releases it when the
process ends, however it ends, so that no lock outlives its run.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

LOCK = "run.lock"

#: How often, and at which interval, a lock is tried that a reader may hold for an instant.
_TRIES, _INSTANT_S = 10, 0.02


class RunInProgressError(ValueError):
    """Another process is writing to the run folder."""


@contextlib.contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Around a run: no other run may begin or be resumed in ``folder``.

    Raises:
        RunInProgressError: one is in progress.
        OSError: the lock's file cannot be written.
    """
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        if not _locked(file):
            raise _in_progress(folder)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def check_not_running(folder: Path) -> None:
    """Refuse a folder that another run writes to.

    Raises:
        RunInProgressError: one is in progress.
    """
    if is_running(folder):
        raise _in_progress(folder)


def _in_progress(folder: Path) -> RunInProgressError:
    holder = (folder / LOCK).read_text(encoding="utf-8").strip()
    return RunInProgressError(
        f"{folder}: a run is in progress here{f' ({holder})' if holder else ''}; wait for it or end it first. "
        f"To look at it meanwhile: hisearch report {folder}, or hisearch dashboard {folder}"
    )


def _locked(file: TextIO) -> bool:
    """Lock a file exclusively; False if another process holds it for more than an instant, as ``is_running`` does."""
    for _ in range(_TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_INSTANT_S)
        else:
            return True
    return False


def is_running(folder: Path) -> bool | None:
    """Whether a run is in progress in ``folder``; nothing is changed.

    None for a run of an earlier version, which took no lock.
    """
    try:
        with (folder / LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return None
    return False
