"""Where the time goes that compiling kernels takes: by phase and by kernel, for each engine and the event loop.

A clean measurement compiles into an empty folder, one part in one process::

    HISEARCH_CACHE_DIR=$(mktemp -d) python -m benchmarks.compile_times vllm sglang loop

Times are processor times of the process (``time.process_time``). Each excludes what runs within it.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

PARTS = ("loop", "vllm", "sglang", "trtllm", "offload", "lmcache", "decode", "agents")


class Clock:
    """Exclusive processor time of nested phases."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._stack: list[str] = ["other"]
        self._since = time.process_time()

    def switch(self) -> None:
        """Book the time since the last switch to the phase that runs."""
        now = time.process_time()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def wrap(self, owner: Any, name: str, phase: str | Callable[..., str]) -> None:
        """Book the time within ``owner.name`` to ``phase``."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self.switch()
            self._stack.append(phase if isinstance(phase, str) else phase(*args, **kwargs))
            self.calls[self._stack[-1]] += 1
            try:
                return inner(*args, **kwargs)
            finally:
                self.switch()
                self._stack.pop()

        setattr(owner, name, timed)


def measured(part: str) -> dict[str, Any]:
    """Seconds of compiling one part in this process, by phase and by numba pass."""
    from numba.core import codegen, compiler_machinery

    from hisearch.kernels.engine import engine_calls
    from hisearch.kernels.fleet import compilation
    from hisearch.kernels.layout import sim as la

    clock = Clock()
    clock.wrap(codegen.CPUCodeLibrary, "_optimize_functions", "LLVM: functions")
    clock.wrap(codegen.CPUCodeLibrary, "_optimize_final_module", "LLVM: module")
    clock.wrap(codegen.JITCodeLibrary, "_finalize_specific", "LLVM: machine code")
    clock.wrap(codegen.CPUCodeLibrary, "finalize", "link")
    clock.wrap(codegen.CPUCodeLibrary, "add_ir_module", "parse")
    original = compiler_machinery.PassManager._runPass

    def run_pass(self: Any, index: int, instance: Any, state: Any) -> Any:
        clock.switch()
        clock._stack.append(f"pass: {instance.name()}")
        clock.calls[clock._stack[-1]] += 1
        try:
            return original(self, index, instance, state)
        finally:
            clock.switch()
            clock._stack.pop()

    compiler_machinery.PassManager._runPass = run_pass
    imported = time.process_time()
    named = dict(zip(PARTS, [compilation._EVENT_LOOP, la.VLLM, la.SGLANG, la.TRTLLM, la.VLLM_OFFLOAD,
                             la.VLLM_LMCACHE, la.DECODE_WORKER, la.AGENTS], strict=True))  # fmt: skip
    wall = time.perf_counter()
    compilation.compile_part(named[part])
    clock.switch()
    assert engine_calls.MODULES
    return {
        "part": part,
        "processor": time.process_time() - imported,
        "wall": time.perf_counter() - wall,
        "seconds": dict(clock.seconds.most_common()),
        "calls": dict(clock.calls),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=PARTS)
    parser.add_argument("--here", action="store_true", help="in this process, as JSON: one part")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measured(given.parts[0])))
        return 0
    for part in given.parts:
        command = [sys.executable, "-m", "benchmarks.compile_times", "--here", part]
        part_times = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        print(f"{part}: {part_times['processor']:.1f} s of processor time, {part_times['wall']:.1f} s in all")
        for phase, seconds in part_times["seconds"].items():
            if seconds >= 0.1:
                print(f"  {phase:40} {seconds:7.2f} {part_times['calls'].get(phase, ''):>6}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
