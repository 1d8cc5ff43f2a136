"""Benchmarks: how fast the simulator, the command and a cold start are.

Each benchmark runs in a process of its own, so that its peak memory is its own. Simulations run on one thread, with the
trace and the kernels compiled beforehand.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hisearch.specs.wording import unknown

#: Simulations that warm up before any is timed.
WARM_UP = 1


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
    if name == IMPORT:
        runs = [_child([sys.executable, "-m", "hisearch", "--help"]) for _ in range(repeat + WARM_UP)][WARM_UP:]
        return Measurement(name, None, None, tuple(run.wall_s for run in runs), max(run.peak_rss_bytes for run in runs))
    if name == COMPILE:
        return _measure_compilation()
    run = _child([sys.executable, "-m", "hisearch.bench", name, str(repeat), *([trace] if trace else [])])
    found = json.loads(run.stdout)
    return Measurement(name, found["requests"], found["steps"], tuple(found["wall_s"]), run.peak_rss_bytes)


def _measure_compilation() -> Measurement:
    """One small simulation in an empty cache folder: what the first run on a machine waits for."""
    with tempfile.TemporaryDirectory(prefix="hisearch-bench-") as folder:
        run = _child([sys.executable, "-m", "hisearch.bench", COMPILE], {**os.environ, "HISEARCH_CACHE_DIR": folder})
    return Measurement(COMPILE, None, None, (run.wall_s,), run.peak_rss_bytes)


@dataclass(frozen=True)
class _Run:
    stdout: str
    wall_s: float
    peak_rss_bytes: int


def _child(command: list[str], environment: Mapping[str, str] | None = None) -> _Run:
    """Run a command, and measure it from its start to its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, complaint = out.read().decode(), err.read().decode().strip()
    if process.returncode != 0:
        last = complaint.splitlines()[-1] if complaint else f"exit code {process.returncode}"
        raise ValueError(f"benchmark failed: {last}")
    # Linux counts kibibytes, macOS bytes.
    return _Run(text, wall_s, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def simulation_of(name: str, trace: str | None = None, limit: int | None = None) -> Callable[[], tuple[int, int]]:
    """A benchmark's simulation, everything it needs being compiled; returns (requests, steps) of a run.

    Args:
        name: one of ``CASES``.
        trace: a workload or trace file in place of its own.
        limit: keep the first requests only.

    Raises:
        SpecError, TraceError: the workload cannot be used.
    """
    from hisearch.simulate import plan_worker, simulate
    from hisearch.specs.catalogue import Catalogue
    from hisearch.specs.deployment import EngineSpec, PoolSpec, RouterSpec
    from hisearch.workload import load_trace

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


def _first_simulation() -> None:
    """A small simulation. One is enough: the event loop is compiled for both engines and all routers at once."""
    simulation_of("chat-multiturn", limit=100)()


def _time(name: str, repeat: int, trace: str | None) -> dict[str, Any]:
    run = simulation_of(name, trace)
    for _ in range(WARM_UP):
        run()
    wall_s, requests, steps = [], 0, 0
    for _ in range(repeat):
        started = time.perf_counter()
        requests, steps = run()
        wall_s.append(time.perf_counter() - started)
    return {"requests": requests, "steps": steps, "wall_s": wall_s}


def _main(arguments: list[str]) -> None:
    """The benchmark's own process: ``NAME [REPEAT [TRACE]]``; what was measured goes to standard output as JSON."""
    name = arguments[0]
    if name == COMPILE:
        _first_simulation()
        return
    trace = arguments[2] if len(arguments) > 2 else None
    print(json.dumps(_time(name, int(arguments[1]), trace)))


if __name__ == "__main__":
    _main(sys.argv[1:])
