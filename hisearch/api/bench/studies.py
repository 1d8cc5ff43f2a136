"""Studies as benchmarks: from the compiled trace to the run folder."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

#: Benchmark -> the shipped study that it runs on two threads.
STUDIES = {"study-coder-6h": "coder-6h"}

WORKERS = 2


def time_study(name: str) -> dict[str, Any]:
    """Run a study once, with kernels and trace compiled beforehand.

    Args:
        name: one of ``STUDIES``.

    Returns:
        requests (that all simulations replayed together), wall_s, simulations, front_points.

    Raises:
        ValueError: the study ran out of seconds or dollars, so that its time is meaningless.
    """
    from hisearch.api.studies.study import load_study
    from hisearch.simulate.engine import prepare

    study = load_study(STUDIES[name])
    prepare(study.variants)
    requests = len(study.trace)
    with tempfile.TemporaryDirectory(prefix="hisearch-bench-") as folder:
        started = time.perf_counter()
        result = study.run(WORKERS, Path(folder) / "run")
        wall_s = time.perf_counter() - started
    if result.stopped in {"seconds", "usd"}:
        raise ValueError(
            f"study {STUDIES[name]} ran out of its budget of seconds after {result.outcome.ending.used:,} simulations"
        )
    return {
        "requests": round(sum(trial.slice_fraction for trial in result.trials) * requests),
        "steps": None,
        "wall_s": [wall_s],
        "simulations": result.outcome.ending.used,
        "front_points": len(result.front),
    }
