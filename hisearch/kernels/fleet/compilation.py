"""Compile engines and the event loop ahead of their first use, in one process per core.

A kernel that several of them call is read and typed once in each process. So a process goes on with another part as
soon as it has finished one, and parts that share kernels are next to each other in the order.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from numba import config

from hisearch.base.compiler_speed import no_garbage_collection
from hisearch.base.kernel_cache import is_cached
from hisearch.kernels.core.handle import HandleType
from hisearch.kernels.engine import engine_calls
from hisearch.kernels.fleet import cluster, head_start
from hisearch.kernels.fleet.head_start import EVENT_LOOP
from hisearch.kernels.layout import fleet as fl
from hisearch.kernels.layout import sim as la

#: SGLang takes as long as the three next together. This process begins at the left end, the others at the right end.
_ORDER = (
    la.SGLANG, la.AGENTS, la.TRTLLM, la.DECODE_WORKER, la.VLLM, la.VLLM_LMCACHE, la.VLLM_GROUPS, la.VLLM_OFFLOAD,
    la.VLLM_CHUNK_OFFLOAD, la.VLLM_DRAFTS, la.SGLANG_DRAFTS, la.DRAFTS_DECODE_WORKER, la.TRTLLM_DRAFTS,
    EVENT_LOOP,
)  # fmt: skip
#: Memory that a process needs which compiles.
_PROCESS_BYTES = 1 << 30


def event_loop_is_compiled() -> bool:
    """Whether this version of the event loop is in the on-disk cache."""
    return is_cached(cluster.__name__, "run")


def missing_of(engines: Collection[int]) -> list[int]:
    """Those of ``engines`` that are not in the on-disk cache; none with the jit off."""
    return [] if config.DISABLE_JIT else [engine for engine in engines if not engine_calls.is_compiled(engine)]


def prepare(engines: Collection[int]) -> None:
    """Compile those of the event loop and ``engines`` that are not in the on-disk cache, in one process per core."""
    if config.DISABLE_JIT:
        return
    missing = [*missing_of(engines), *([] if event_loop_is_compiled() else [EVENT_LOOP])]
    waiting = deque(sorted(missing, key=_ORDER.index))
    begun = head_start.take()
    if begun is not None and EVENT_LOOP in waiting:
        waiting.remove(EVENT_LOOP)

    def units(take: Callable[[], int]) -> Iterator[int]:
        with suppress(IndexError):
            while True:
                yield take()

    processes: list[subprocess.Popen[str]] = []

    def help_with(started: subprocess.Popen[str] | None) -> None:
        # If it fails, the caller compiles that unit when it needs it, and reports the error.
        with started or head_start.helper() as process, suppress(BrokenPipeError):
            processes.append(process)
            assert process.stdin is not None
            assert process.stdout is not None
            if started is not None and not process.stdout.readline():
                return
            for unit in units(waiting.pop):
                process.stdin.write(f"{unit}\n")
                if not process.stdout.readline():
                    return

    count = min(_processes(), len(missing)) - 1
    started = [begun] if begun is not None else []
    started += [None] * (count - len(started))
    helpers = [threading.Thread(target=help_with, args=(process,), daemon=True) for process in started]
    for thread in helpers:
        thread.start()
    try:
        for unit in units(waiting.popleft):
            compile_part(unit)
    except BaseException:
        # An interrupt, or a kernel that does not compile: nobody would wait for the others.
        for process in processes:
            process.kill()
        raise
    for thread in helpers:
        thread.join()


def _processes() -> int:
    """As many processes as there are cores, and memory for them."""
    cores = head_start.cores()
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        room = int(lines["MemAvailable"].split()[0]) * 1024 // _PROCESS_BYTES
    except (OSError, KeyError):
        room = cores
    return max(1, min(cores, room))


def compile_parts() -> None:
    """Compile the parts that standard input names, one a line; answer each with a line."""
    for line in sys.stdin:
        compile_part(int(line))
        print(line, end="", flush=True)


def compile_part(unit: int) -> None:
    """Compile an engine, or the event loop, into the on-disk cache."""
    with no_garbage_collection():
        if unit == EVENT_LOOP:
            cluster.run.compile((HandleType(fl.Fleet),))
        else:
            engine_calls.address(unit)
