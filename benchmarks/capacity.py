"""What a capacity costs and whether it lasts: ``python -m benchmarks.capacity``.

For each case the capacity of a trace and of one four times longer: by replaying the trace as it is, and in a steady
state. Seconds depend on the machine and what else runs on it; the ratio of the two columns hardly does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hisearch.api.studies.study import Study
from hisearch.score.capacity import Capacity, capacity
from hisearch.score.evaluate import Score
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.job import Evaluation
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.from_question import study_from_question
from hisearch.specs.documents.question import Question

#: Case -> the question, and the deployment on H200.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen3-32b, 8 × H200": ({"rate": 20.0, "slo": "ttft p99 < 2s, tpot p99 < 200ms"}, {"replicas": 8}),
    "llama-3.1-8b, 8 × H200": (
        {
            "model": "llama-3.1-8b",
            "rate": 20.0,
            "input": "500",
            "output": "150",
            "slo": "ttft p99 < 2s, tpot p99 < 100ms",
        },
        {"replicas": 8},
    ),
    "conversations, 8 × H200": (
        {"rate": 10.0, "turns": 5, "slo": "ttft p99 < 2s, tpot p99 < 80ms"},
        {"replicas": 4, "tensor_parallel": 2},
    ),
    "e2e alone, 2 × H200": ({"rate": 5.0, "slo": "e2e p95 < 30s"}, {"replicas": 2}),
}


def study_of(requests: int, asked: dict[str, Any]) -> Study:
    """The question as a study with so many requests."""
    question = Question(**{"model": "qwen3-32b", "input": "1500", "output": "250", "gpu": ("h200",), **asked})
    return Study(
        study_from_question(question, overrides=[f"spec.workload.trace.generator.requests={requests}"]).resolved
    )


def deployment_of(study: Study, pool: dict[str, Any]) -> DeploymentSpec:
    """Workers of vLLM on H200."""
    engine = {"name": "vllm", "chunk_tokens": 8192, "max_running_requests": 256}
    return DeploymentSpec.model_validate(
        {
            "model": study.resolved.model_name,
            "profile": study.resolved.profile.name,
            "router": {"policy": "power_of_two"},
            "pools": [{"accelerator": "h200", "engine": engine, **pool}],
        }
    )


def searched(evaluate: Callable[[float], Evaluation], tolerance: float) -> tuple[Capacity, float]:
    """A capacity, and the seconds that it took."""

    def score_at(load: float) -> Score:
        evaluation = evaluate(load)
        return Score(evaluation.metrics, evaluation.slo, evaluation.feasible)

    began = time.monotonic()
    largest = capacity(score_at, relative_tolerance=tolerance)
    return largest, time.monotonic() - began


def main() -> None:
    """Print a row per case and length."""
    print("case | requests | as it is: capacity, loads, s | steady: capacity, loads, s | queue grows by")
    for name, (asked, pool) in CASES.items():
        for times in (1, 4):
            requests = int(400 * asked["rate"]) * times
            study = study_of(requests, asked)
            simulation, deployment = Simulation(study.world()), deployment_of(study, pool)
            as_it_is = Simulation(replace(simulation.world, continuation=None))
            for each in (simulation, as_it_is):
                each.evaluate_at(deployment, 1.0)  # compiles
            plain, plain_s = searched(partial(as_it_is.evaluate_at, deployment), 0.05)
            steady, steady_s = searched(partial(simulation.evaluate_at, deployment), 0.02)
            print(
                f"{name} | {requests:,} | {plain.load:.3f}, {plain.simulations}, {plain_s:.1f} | {steady.load:.3f}, "
                f"{steady.simulations}, {steady_s:.1f} | {steady.queue_growth_rps:.2f} requests/s"
            )


if __name__ == "__main__":
    main()
