"""Begin to compile the event loop before this process has loaded a compiler, where nothing was ever compiled.

A first run imports libraries for seconds, on one core. Meanwhile a helper of ``compilation`` compiles what every
simulation needs. ``compilation.prepare`` takes it over; if it is never called, the helper ends with this process.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys

from hisearch.base.folders import COMPILED_KERNELS
from hisearch.base.prebuilt import FOLDER as PREBUILT

#: The event loop among the units to be compiled; the others are engines.
EVENT_LOOP = -1

_helpers: list[subprocess.Popen[str]] = []


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def helper() -> subprocess.Popen[str]:
    """A process that compiles the units that its standard input names, one a line, and answers each with a line."""
    command = [sys.executable, "-c", "from hisearch.kernels.fleet.compilation import compile_parts; compile_parts()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, text=True, bufsize=1, **pipes)  # type: ignore[call-overload,no-any-return]


def begin() -> None:
    """Begin, unless kernels of any version are there, there is one core alone, or the jit is off."""
    compiled = any(any(folder.glob("kernels.fleet.cluster-*")) for folder in (COMPILED_KERNELS, PREBUILT))
    if _helpers or compiled or cores() < 2 or os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        return
    process = helper()
    _helpers.append(process)
    atexit.register(stop)
    assert process.stdin is not None
    process.stdin.write(f"{EVENT_LOOP}\n")


def take() -> subprocess.Popen[str] | None:
    """The helper that compiles the event loop, from now on the caller's; None where there is none."""
    return _helpers.pop() if _helpers else None


def stop() -> None:
    """End a helper that nobody has taken."""
    while _helpers:
        with _helpers.pop() as process:
            process.kill()
