"""``hisearch`` as a process of its own, to be killed and interrupted."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 180.0

#: Imports and compiles once, then forks a process for each line of arguments. Reports its id and, later, its exit code.
_FORKING = """
import json, os, sys
from hisearch.cli.main import main
import hisearch.api.studies.study, hisearch.report.pages.html, hisearch.search.driver, hisearch.search.records.storage
import moocore, optuna, pandas
from hisearch.simulate.engine import prepare
prepare(hisearch.api.studies.study.load_study("small.yaml").variants)
for line in sys.stdin:
    arguments, out, err = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT), 2)
        try:
            main(arguments)
        except SystemExit as stop:
            os._exit(stop.code or 0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forking:
    """Starts ``hisearch`` processes, one at a time, without the seconds that imports take. A context manager."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self._folder = folder
        self._mother = subprocess.Popen(
            [sys.executable, "-c", _FORKING],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )

    def __enter__(self) -> Forking:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        self._mother.stdin.close()
        self._mother.wait(LIMIT_S)
        self._mother.stdout.close()

    def run_until(self, condition: Callable[[], bool], moment_s: float, *arguments: object) -> int:
        """Run ``hisearch ARGUMENTS`` and kill -9 it a moment after ``condition`` holds.

        Its exit code: -9, or its own where it had ended before.
        """
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        call = [[str(argument) for argument in arguments], str(self._folder / ".out"), str(self._folder / ".err")]
        self._mother.stdin.write(json.dumps(call) + "\n")
        self._mother.stdin.flush()
        process = int(self._mother.stdout.readline())
        until(lambda: condition() or _is_zombie(process))
        time.sleep(moment_s)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        return int(self._mother.stdout.readline())


def _is_zombie(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class Started:
    """``hisearch ARGUMENTS`` in ``folder``, leading a process group of its own as a shell's job does."""

    def __init__(self, folder: Path, *arguments: object, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "hisearch", *map(str, arguments)]
        self._out, self._err = (folder / f".{os.urandom(4).hex()}.{name}" for name in ("out", "err"))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                stdout=out,
                stderr=err,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self) -> int:
        """The exit code, once it ends."""
        return self.process.wait(LIMIT_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until ``condition`` holds or the process has ended."""
        until(lambda: self.ended or condition())

    def kill(self) -> None:
        """``kill -9``, of the process alone; waits for its end."""
        self.process.kill()
        self.process.wait()

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Signal the whole group, as Ctrl-C in a terminal does."""
        os.killpg(self.process.pid, number)

    def survivors(self) -> list[int]:
        """Processes of its group that still run; zombies do not count."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                except OSError:
                    continue
                if int(group) == self.process.pid and state not in "ZX":
                    pids.append(int(entry.name))
        return pids


def until(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
    """Wait for ``condition``."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def lines(path: Path) -> int:
    """Complete lines of a file that may not exist yet."""
    return path.read_bytes().count(b"\n") if path.is_file() else 0
