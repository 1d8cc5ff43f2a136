"""Benchmarks of step costs: of one step in the kernels, and of stage 1's screening of a thousand workers.

Both run on one thread and are timed in processor time, which other work on the machine does not affect.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hisearch.api.bench.comparisons import Comparison, Point
from hisearch.specs.documents.catalogue import Catalogue

if TYPE_CHECKING:
    from hisearch.latency.costs import StepCosts

STEP_COST, SCREEN = "step-cost", "stage1-screen"
#: ``step-cost``: evaluations of a run, and the batch: one prompt chunk after cached tokens, and decodes.
EVALUATIONS, CHUNK, CACHED, DECODES, CONTEXT = 1_000_000, 1500, 3000, 64, 2000
#: Most nanoseconds of one evaluation.
STEP_COST_GOAL_NS = 100.0
#: ``stage1-screen``: the study, and settings that extend its space beyond a thousand combinations.
SCREENED_STUDY = "quickstart"
SCREENED: dict[str, Any] = {
    "accelerators": ["h100-sxm", "h200", "b200", "l40s"],
    "engines": ["sglang", "vllm", "trtllm"],
    "tensor_parallel": [1, 2, 4, 8],
    "weight_dtypes": ["bf16", "fp8"],
    "kv_dtypes": ["bf16", "fp8"],
    "chunk_tokens": [2048, 8192, 16384],
    "max_running_requests": [64, 256],
}
SCREENED_PROFILE = "auto"


def step_cost(rounds: int) -> Comparison:
    """Nanoseconds per evaluation of a step's cost: by the plain tables, and by tables with mixed steps."""
    import numba

    from hisearch.kernels.engine import cost
    from hisearch.kernels.layout import sim as la
    from hisearch.simulate.arrays.costs import kernel_costs

    @numba.njit
    def often(costs: Any, requests: Any, batch: Any, times: int, decodes: tuple[int, int, int, int]) -> float:
        total = 0.0
        for _ in range(times):
            device_s, host_s = cost.batch_cost(costs, requests, batch, batch.shape[0], *decodes)
            total += max(device_s, host_s)
        return total

    requests = np.zeros(1, la.REQUEST)
    requests["chunk"], requests["computed"], requests["chunk_kind"] = CHUNK, CACHED, la.PROMPT_ENDS
    batches = {"decodes alone": np.zeros(0, np.int32), "with a prompt": np.zeros(1, np.int32)}
    points = []
    for name, tables in _tables().items():
        costs = kernel_costs(tables)
        for batch_name, batch in batches.items():
            arguments = (costs, requests.view(np.recarray), batch)
            sizes = (DECODES, DECODES * CONTEXT, 6 * CONTEXT, DECODES * CONTEXT**2 * 2)
            often(*arguments, 1, sizes)
            spent_s = []
            for _ in range(rounds):
                started = time.process_time()
                often(*arguments, EVALUATIONS, sizes)
                spent_s.append(time.process_time() - started)
            points.append(Point(f"{name}, {batch_name}", EVALUATIONS, EVALUATIONS, tuple(spent_s)))
    slowest = max(1e9 * point.request_s for point in points)
    return Comparison("nanoseconds of a step, the slowest", tuple(points), slowest, STEP_COST_GOAL_NS)


def _tables() -> dict[str, StepCosts]:
    """A worker's costs as estimators compile them, and with every optional table."""
    from hisearch.latency.costs import LateCosts
    from hisearch.latency.estimator import build_estimator
    from hisearch.latency.knots import octaves
    from hisearch.latency.priced import PricedWorker
    from hisearch.latency.sharding import Parallelism
    from hisearch.specs.deployments.deployment import EngineSpec

    catalogue = Catalogue()
    worker = PricedWorker(
        catalogue.get("Model", "qwen3-32b").spec, catalogue.get("Accelerator", "h100-sxm").spec, Parallelism(2), None,
        "bf16", EngineSpec(name="vllm"), 8192, 256, 500_000,
    )  # fmt: skip
    compiled = {
        name: build_estimator(name, catalogue.get("LatencyProfile", name).spec).compile(worker).seconds
        for name in ("roofline", "vllm-h100-sxm")
    }
    shape = tuple(len(octaves(axis, count)) for axis, count in enumerate((19, 23, 9, 23)))
    context = np.full(shape, 1e-3)
    full = compiled["roofline"]._replace(
        mixed_decode_s=context, skew_s=np.full(257, 1e-9), late=LateCosts(np.full((9, 13, 27), 0.5), 4.0)
    )
    return {"roofline": compiled["roofline"], "scaled": compiled["vllm-h100-sxm"], "tables": full}


def screening() -> Callable[[], tuple[int, int | None]]:
    """Stage 1 of a study with more than a thousand combinations; a call returns (combinations, None)."""
    from hisearch.api.studies.study import load_study
    from hisearch.latency.estimator import forget
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.stages.execution import search_execution

    space = load_study(SCREENED_STUDY).resolved.space.spec.model_dump(mode="json", exclude_none=True)
    larger = space | {"execution": space["execution"] | SCREENED, "profile": SCREENED_PROFILE}
    study = load_study(SCREENED_STUDY, [f"spec.space={json.dumps(larger)}"])
    problem = study.problem(Simulation(study.world()))

    def run() -> tuple[int, int | None]:
        forget()
        return search_execution(problem, keep=8).combinations, None

    return run
