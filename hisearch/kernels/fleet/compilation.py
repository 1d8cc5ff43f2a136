"""Compile engines and the event loop ahead of their first use, one per core at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from numba import config

from hisearch.base.kernel_cache import is_cached
from hisearch.kernels.core.handle import HandleType
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.fleet import cluster
from hisearch.kernels.layout import fleet as fleet_layout
from hisearch.kernels.layout import sim as la

#: The event loop among the units to be compiled; the others are engines.
_EVENT_LOOP = -1


def event_loop_is_compiled() -> bool:
    """Whether this version of the event loop is in the on-disk cache."""
    return is_cached(cluster.__name__, "run")


def missing_of(engines: Collection[int]) -> list[int]:
    """Those of ``engines`` that are not in the on-disk cache; none with the jit off."""
    return [] if config.DISABLE_JIT else [engine for engine in engines if not engine_calls.is_compiled(engine)]


def prepare(engines: Collection[int]) -> None:
    """Compile those of the event loop and ``engines`` that are not in the on-disk cache, one per core at a time."""
    if config.DISABLE_JIT:
        return
    missing = [*missing_of(engines), *([] if event_loop_is_compiled() else [_EVENT_LOOP])]
    # SGLang takes as long as three of the others, so it goes first.
    waiting = SimpleQueue[int]()
    for unit in sorted(missing, key=lambda unit: unit != la.SGLANG):
        waiting.put(unit)
    command = f"import sys; from {__name__} import compile_part; compile_part(int(sys.argv[1]))"

    def units() -> Iterator[int]:
        with suppress(Empty):
            while True:
                yield waiting.get_nowait()

    def worker() -> None:
        for unit in units():
            # If it fails, the caller compiles that unit when it needs it, and reports the error.
            subprocess.run([sys.executable, "-c", command, str(unit)], check=False, stderr=subprocess.DEVNULL)

    helpers = [threading.Thread(target=worker, daemon=True) for _ in range(min(os.cpu_count() or 1, len(missing)) - 1)]
    for helper in helpers:
        helper.start()
    for unit in units():
        compile_part(unit)
    for helper in helpers:
        helper.join()


def compile_part(unit: int) -> None:
    """Compile an engine, or the event loop, into the on-disk cache."""
    if unit != _EVENT_LOOP:
        engine_calls.address(unit)
        return
    cluster.run.compile((HandleType(fleet_layout.Fleet),))
