"""A benchmark's own process: ``python -m hisearch.api.bench.process NAME REPEAT [TRACE]``.

The measurement goes to standard output as JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hisearch.api.bench import COMPILE, IMPORT, STUDIES, TRACE
from hisearch.api.bench.cases import CASES, compiling, simulation_of
from hisearch.api.bench.comparisons import COMPARISONS, Comparison, Point, time_in_turns
from hisearch.api.bench.latency import SCREEN, STEP_COST, screening, step_cost
from hisearch.specs.documents.catalogue import Catalogue

#: Runs of a command before the timed ones.
WARM_UP = 1

#: Threads of a study.
STUDY_WORKERS = 2

#: The program timed by ``compile``: kernels of all engines, and a first simulation.
_FIRST_SIMULATION = (
    "from hisearch.api.bench import simulation_of; from hisearch.simulate.engine import prepare; "
    "prepare([('sglang', None), ('vllm', None), ('trtllm', None)]); simulation_of('chat-multiturn', limit=100)()"
)

#: The workload that ``million-trace`` generates.
_TRACE_WORKLOAD = "million"

#: Linux counts ``ru_maxrss`` in kibibytes, macOS in bytes.
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


def _figures(point: Point) -> dict[str, Any]:
    return {
        "requests": point.requests,
        "steps": point.steps,
        "wall_s": point.wall_s,
        "peak_rss_bytes": _own_peak_rss_bytes(),
    }


def _time_runs(
    run: Callable[[], tuple[int, int | None]], repeat: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Times of ``run``, which returns (requests, steps), after warming up; by ``clock``, wall time by default."""
    (point,) = time_in_turns({"": run}, repeat, clock)
    return _figures(point)


def _time_comparison(comparison: Comparison) -> dict[str, Any]:
    """The last point's figures, and the comparison."""
    return _figures(comparison.points[-1]) | {"comparison": comparison.to_dict()}


def _time_study(name: str) -> dict[str, Any]:
    """Run a shipped study once, with kernels and trace compiled beforehand.

    Returns:
        requests (that all simulations replayed together), wall_s, simulations, front_points.

    Raises:
        ValueError: the study ran out of seconds or dollars, so that its time is meaningless.
    """
    from hisearch.api.studies.study import load_study
    from hisearch.simulate.engine import prepare

    study = load_study(name)
    prepare(study.variants)
    requests = len(study.trace)
    with tempfile.TemporaryDirectory(prefix="hisearch-bench-") as folder:
        started = time.perf_counter()
        result = study.run(STUDY_WORKERS, Path(folder) / "run")
        wall_s = time.perf_counter() - started
    used = result.simulations
    if result.stopped in {"seconds", "usd"}:
        raise ValueError(f"study {name} ran out of its budget of seconds after {used:,} simulations")
    return {
        "requests": round(sum(trial.slice_fraction for trial in result.trials) * requests),
        "steps": None,
        "wall_s": [wall_s],
        "simulations": used,
        "front_points": len(result.front),
        "peak_rss_bytes": _own_peak_rss_bytes(),
    }


def _own_peak_rss_bytes() -> int:
    """Peak memory of this process. Linux's ``ru_maxrss`` would include that of the process that started it."""
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT


def _time_commands(command: list[str], repeat: int, warm_up: int, environment: dict[str, str]) -> dict[str, Any]:
    """Wall times and peak memory of processes."""
    runs = [_time_command(command, environment) for _ in range(warm_up + repeat)][warm_up:]
    wall_s, peaks = [wall for wall, _ in runs], [peak for _, peak in runs]
    return {"requests": None, "steps": None, "wall_s": wall_s, "peak_rss_bytes": max(peaks)}


def _time_command(command: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """Seconds and peak bytes of one process, from its start to its end.

    Raises:
        CalledProcessError: it failed; its message went to standard error.
    """
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return wall_s, usage.ru_maxrss * _MAXRSS_UNIT


def _measured(name: str, repeat: int, trace: str | None) -> dict[str, Any]:
    if name in CASES:
        return _time_runs(simulation_of(name, trace), repeat)
    if name == SCREEN:
        return _time_runs(screening(), repeat, time.process_time)
    if name == STEP_COST:
        return _time_comparison(step_cost(repeat))
    if name in COMPARISONS:
        compare, case = COMPARISONS[name]
        return _time_comparison(compare(case, repeat))
    if name in STUDIES:
        return _time_study(STUDIES[name])
    if name == TRACE:
        return _time_runs(lambda: (len(compiling(_TRACE_WORKLOAD, Catalogue())()), None), repeat)
    if name == IMPORT:
        return _time_commands([sys.executable, "-m", "hisearch", "--help"], repeat, WARM_UP, dict(os.environ))
    if name == COMPILE:
        with tempfile.TemporaryDirectory(prefix="hisearch-bench-") as folder:
            environment = {**os.environ, "HISEARCH_CACHE_DIR": folder}
            return _time_commands([sys.executable, "-c", _FIRST_SIMULATION], 1, 0, environment)
    raise ValueError(f"no benchmark '{name}'")


def _main(arguments: list[str]) -> None:
    name, repeat, *trace = arguments
    print(json.dumps(_measured(name, int(repeat), trace[0] if trace else None)))


if __name__ == "__main__":
    try:
        _main(sys.argv[1:])
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(str(error))
