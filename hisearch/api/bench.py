"""Benchmarks: how fast the simulator, the command and a cold start are.

Each benchmark runs in a process of its own, so that its peak memory is its own. Simulations run on one thread, with the
trace and the kernels compiled beforehand.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisearch.specs.wording import unknown

#: Runs that warm up before any is timed.
WARM_UP = 1

#: What ``compile`` times. One simulation will do: the event loop is compiled for both engines and all routers at once.
_FIRST_SIMULATION = "from hisearch.api.bench import simulation_of; simulation_of('chat-multiturn', limit=100)()"

#: Linux counts ``ru_maxrss`` in kibibytes, macOS in bytes.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Case:
    """A workload on a deployment.

    replicas, tensor_parallel: of ``accelerator``. shipped: the workload needs no download.
    """

    workload: str
    model: str
    accelerator: str
    engine: str
    tensor_parallel: int
    replicas: int
    router: str = "round_robin"
    shipped: bool = True


CASES: dict[str, Case] = {
    "mooncake-like": Case("mooncake-like", "llama-3.1-70b", "h200", "vllm", 2, 8),
    "mooncake-conversation": Case("mooncake-conversation", "llama-3.1-70b", "h200", "vllm", 2, 8, shipped=False),
    "chat-multiturn": Case("chat-multiturn", "qwen3-32b", "h100-sxm", "sglang", 2, 4, "cache_aware"),
    "coder-6h": Case("coder-6h", "qwen3-coder-480b-a35b", "b200", "sglang", 8, 4, "cache_aware"),
}

#: Benchmarks that simulate nothing: of the start of ``hisearch --help``, and of compiling every kernel.
IMPORT, COMPILE = "import", "compile"


@dataclass(frozen=True)
class Measurement:
    """Outcome of one benchmark.

    requests, steps: simulated in one run; None where nothing is simulated, like requests_per_s (by the median).
    wall_s: of each run, seconds. peak_rss_bytes: of the benchmark's process.
    """

    name: str
    requests: int | None
    steps: int | None
    wall_s: tuple[float, ...]
    peak_rss_bytes: int

    @property
    def requests_per_s(self) -> float | None:
        """Simulated requests per second of wall time, by the median run."""
        return None if self.requests is None else self.requests / statistics.median(self.wall_s)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "name": self.name,
            "requests": self.requests,
            "steps": self.steps,
            "wall_s": {"median": statistics.median(self.wall_s), "min": min(self.wall_s), "max": max(self.wall_s)},
            "requests_per_s": self.requests_per_s,
            "peak_rss_bytes": self.peak_rss_bytes,
            "repeat": len(self.wall_s),
        }


def names() -> list[str]:
    """Every benchmark."""
    return [*CASES, IMPORT, COMPILE]


def default_names(trace: str | None = None) -> list[str]:
    """Benchmarks that run where none is named: all but ``compile``, and of those that need a download the ones at hand.

    Args:
        trace: the trace file of ``mooncake-conversation``.
    """
    return [name for name, case in CASES.items() if case.shipped or trace or _at_hand(case)] + [IMPORT]


def _at_hand(case: Case) -> bool:
    from hisearch.specs.catalogue import Catalogue
    from hisearch.traces.errors import TraceError
    from hisearch.traces.load import find_trace_file

    document = Catalogue().get("Workload", case.workload)
    try:
        find_trace_file(document.spec.file.path, document.path.parent)
    except TraceError:
        return False
    return True


def measure(name: str, repeat: int = 7, trace: str | None = None) -> Measurement:
    """Run one benchmark.

    Args:
        name: one of ``names()``.
        repeat: timed runs; ``compile`` runs once.
        trace: a trace file to use in place of the benchmark's own workload.

    Raises:
        ValueError: no such benchmark, ``repeat`` is below 1, or the benchmark failed: with its own message.
    """
    if name not in names():
        raise ValueError(f"no benchmark '{name}'{unknown(name, names())}")
    if repeat < 1:
        raise ValueError(f"repeat must be at least 1, not {repeat}")
    command = [sys.executable, "-m", "hisearch.api.bench", name, str(repeat), *([trace] if trace else [])]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        last = finished.stderr.strip().splitlines()[-1:] or [f"exit code {finished.returncode}"]
        raise ValueError(f"benchmark {name} failed: {last[0]}")
    found = json.loads(finished.stdout)
    return Measurement(name, found["requests"], found["steps"], tuple(found["wall_s"]), found["peak_rss_bytes"])


def simulation_of(name: str, trace: str | None = None, limit: int | None = None) -> Callable[[], tuple[int, int]]:
    """A benchmark's simulation, everything it needs being compiled; returns (requests, steps) of a run.

    Args:
        name: one of ``CASES``.
        trace: a workload or trace file in place of its own.
        limit: keep the first requests only.

    Raises:
        SpecError, TraceError: the workload cannot be used.
    """
    from hisearch.api.workload import load_trace
    from hisearch.simulate import plan_worker, simulate
    from hisearch.specs.catalogue import Catalogue
    from hisearch.specs.deployment import EngineSpec, PoolSpec, RouterSpec

    case, catalogue = CASES[name], Catalogue()
    compiled = load_trace(trace or case.workload, limit=limit, catalogue=catalogue)
    pool = PoolSpec.model_validate(
        {
            "accelerator": case.accelerator,
            "engine": EngineSpec.model_validate(
                {"name": case.engine, "chunk_tokens": 8192, "max_running_requests": 256, "memory_fraction": 0.9}
            ),
            "tensor_parallel": case.tensor_parallel,
            "replicas": case.replicas,
        }
    )
    plan = plan_worker(
        pool,
        model=catalogue.get("Model", case.model).spec,
        accelerator=catalogue.get("Accelerator", case.accelerator).spec,
        medium=None,
        profile=catalogue.get("LatencyProfile", "roofline").spec,
    )
    router = RouterSpec.model_validate({"policy": case.router})

    def run() -> tuple[int, int]:
        result = simulate(plan, compiled, replicas=case.replicas, router=router)
        return len(compiled), int(result.workers.steps.sum())

    return run


def _time_simulation(name: str, repeat: int, trace: str | None) -> dict[str, Any]:
    run = simulation_of(name, trace)
    for _ in range(WARM_UP):
        run()
    wall_s, requests, steps = [], 0, 0
    for _ in range(repeat):
        started = time.perf_counter()
        requests, steps = run()
        wall_s.append(time.perf_counter() - started)
    return {"requests": requests, "steps": steps, "wall_s": wall_s, "peak_rss_bytes": _own_peak_rss_bytes()}


def _own_peak_rss_bytes() -> int:
    """Peak memory of this process. Linux's ``ru_maxrss`` would include that of the process that started it."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def _time_commands(command: list[str], repeat: int, warm_up: int, environment: dict[str, str]) -> dict[str, Any]:
    """Wall times and peak memory of whole processes."""
    runs = [_time_command(command, environment) for _ in range(warm_up + repeat)][warm_up:]
    wall_s, peaks = [wall for wall, _ in runs], [peak for _, peak in runs]
    return {"requests": None, "steps": None, "wall_s": wall_s, "peak_rss_bytes": max(peaks)}


def _time_command(command: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """Seconds and peak bytes of one process, from its start to its end.

    Raises:
        CalledProcessError: it failed; what it complained of has gone to standard error.
    """
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return wall_s, usage.ru_maxrss * _MAXRSS_UNIT


def _main(arguments: list[str]) -> None:
    """The benchmark's own process: ``NAME REPEAT [TRACE]``; what was measured goes to standard output as JSON."""
    name, repeat = arguments[0], int(arguments[1])
    if name == IMPORT:
        found = _time_commands([sys.executable, "-m", "hisearch", "--help"], repeat, WARM_UP, dict(os.environ))
    elif name == COMPILE:
        with tempfile.TemporaryDirectory(prefix="hisearch-bench-") as folder:
            environment = {**os.environ, "HISEARCH_CACHE_DIR": folder}
            found = _time_commands([sys.executable, "-c", _FIRST_SIMULATION], 1, 0, environment)
    else:
        found = _time_simulation(name, repeat, arguments[2] if len(arguments) > 2 else None)
    print(json.dumps(found))


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except (ValueError, OSError) as error:
        sys.exit(str(error))
