"""Benchmarks of the simulator, the command line and a cold start.

Each benchmark runs in its own process, so that its peak memory is measured alone. Simulations run on one thread
(except ``threads``), with the trace and the kernels compiled beforehand.

Imports ``deployments`` and ``studies``; ``cli`` imports ``bench`` itself.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hisearch.api.bench.cases import CASES, Case, simulation_of
from hisearch.api.bench.comparisons import COMPARISONS, THREADS, enough_cores, spread
from hisearch.api.bench.latency import SCREEN, STEP_COST
from hisearch.specs.wording import unknown

__all__ = ["CASES", "COMPARISONS", "COMPILE", "IMPORT", "ONCE", "SCREEN", "STEP_COST", "STUDIES", "TRACE", "Case",
           "Measurement",
           "default_names", "machine", "measure", "names", "simulation_of"]  # fmt: skip

#: Benchmarks that simulate nothing: generating and compiling a million requests, the start of ``hisearch --help``,
#: compiling every kernel.
TRACE, IMPORT, COMPILE = "million-trace", "import", "compile"

#: Benchmark -> the shipped study that it runs on two threads.
STUDIES = {"study-coder-6h": "coder-6h"}

#: Benchmarks that run once, without a warm-up, and only when named.
ONCE = frozenset({COMPILE, *STUDIES})

#: Packages whose versions ``machine`` states.
_PACKAGES = ("hisearch", "numba", "numpy")


@dataclass(frozen=True)
class Measurement:
    """Outcome of one benchmark.

    requests, steps: of one run; None where there are none, like requests_per_s (by the median). ``step-cost`` counts
    evaluations as both, ``stage1-screen`` combinations as requests. wall_s: of each run, seconds; processor time for
    these two. peak_rss_bytes: of the benchmark's process. comparison: see ``Comparison.to_dict``; the other figures are
    then its last point's. simulations, front_points: of a study.
    """

    name: str
    requests: int | None
    steps: int | None
    wall_s: Sequence[float]
    peak_rss_bytes: int
    comparison: dict[str, Any] | None = None
    simulations: int | None = None
    front_points: int | None = None

    @property
    def requests_per_s(self) -> float | None:
        """Requests per second of wall time, by the median run."""
        return None if self.requests is None else self.requests / statistics.median(self.wall_s)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        row: dict[str, Any] = {
            "name": self.name,
            "requests": self.requests,
            "steps": self.steps,
            "wall_s": spread(self.wall_s),
            "requests_per_s": self.requests_per_s,
            "peak_rss_bytes": self.peak_rss_bytes,
            "repeat": len(self.wall_s),
        }
        if self.comparison is not None:
            row["comparison"] = self.comparison
        if self.simulations is not None:
            row |= {"simulations": self.simulations, "front_points": self.front_points}
        return row


def names() -> list[str]:
    """Every benchmark."""
    return [*CASES, TRACE, *COMPARISONS, *STUDIES, STEP_COST, SCREEN, IMPORT, COMPILE]


def default_names(trace: str | None = None) -> list[str]:
    """Default benchmarks: all but ``ONCE`` whose trace and cores are available.

    Args:
        trace: the trace file of ``mooncake-conversation``.
    """
    absent = {name for name, case in CASES.items() if not (case.shipped or _at_hand(case))}
    if trace:
        absent.discard("mooncake-conversation")
    if not enough_cores():
        absent.add(THREADS)
    return [name for name in names() if name not in absent | ONCE]


def _at_hand(case: Case) -> bool:
    from hisearch.specs.documents.catalogue import Catalogue
    from hisearch.traces.load import find_trace_file
    from hisearch.traces.reading.errors import TraceError

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
        repeat: timed runs, after one that warms up; those of ``ONCE`` run once.
        trace: a trace file to use in place of a simulation's own workload.

    Raises:
        ValueError: no such benchmark, ``repeat`` is below 1, or the benchmark failed (with its message).
    """
    if name not in names():
        raise ValueError(f"no benchmark '{name}'{unknown(name, names())}")
    if repeat < 1:
        raise ValueError(f"repeat must be at least 1, not {repeat}")
    command = [sys.executable, "-m", "hisearch.api.bench.process", name, str(repeat), *([trace] if trace else [])]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        last = finished.stderr.strip().splitlines()[-1:] or [f"exit code {finished.returncode}"]
        raise ValueError(f"benchmark {name} failed: {last[0]}")
    return Measurement(name, **json.loads(finished.stdout))


def machine() -> dict[str, Any]:
    """CPU model, cores, memory (None where unknown), versions, date and current load; for JSON."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load_average_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _cpu_model() -> str:
    """The CPU's name from Linux, else from ``platform``."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        lines = [line.partition(":") for line in facts.read_text().splitlines()]
        fields = {key.strip(): value.strip() for key, colon, value in lines if colon}
        family, model = fields.get("cpu family"), fields.get("model")
        name = fields.get("model name", "unknown")
        return f"{name} (family {family}, model {model})" if family and model else name
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):
        return None
