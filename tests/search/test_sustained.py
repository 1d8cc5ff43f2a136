"""Capacity in a steady state: what a longer trace changes, what limits it, and what a closed loop has instead."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from hisearch.api.studies.study import Study
from hisearch.score.capacity import Capacity, capacity
from hisearch.score.evaluate import Score
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.evaluate.sustained import steady_run, sustained
from hisearch.simulate.plans.fleet import GiveUp
from hisearch.simulate.results.result import Result
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.from_question import study_from_question
from hisearch.specs.documents.question import Question
from hisearch.traces.compiled import CompiledTrace

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "eight": ({"rate": 20.0, "slo": "ttft p99 < 2s, tpot p99 < 200ms"}, {"replicas": 8}),
    "conversations": ({"rate": 10.0, "turns": 5, "slo": "ttft p99 < 2s, tpot p99 < 80ms"}, {"replicas": 4, "tp": 2}),
    "sglang": ({"rate": 20.0, "slo": "ttft p99 < 3s, tpot p99 < 200ms"}, {"replicas": 8, "engine": "sglang"}),
    "tpot alone": ({"rate": 5.0, "slo": "tpot p99 < 80ms"}, {"replicas": 2, "sequences": 64}),
    "e2e alone": ({"rate": 5.0, "slo": "e2e p95 < 30s"}, {"replicas": 2}),
}


def study_of(requests: int, **asked: Any) -> Study:
    question = Question(model="qwen3-32b", input="1500", output="250", gpu=("h200",), **asked)
    return Study(
        study_from_question(question, overrides=[f"spec.workload.trace.generator.requests={requests}"]).resolved
    )


def deployment_of(
    study: Study, replicas: int, tp: int = 1, engine: str = "vllm", sequences: int = 256
) -> DeploymentSpec:
    pool = {
        "accelerator": "h200", "replicas": replicas, "tensor_parallel": tp,
        "engine": {"name": engine, "chunk_tokens": 8192, "max_running_requests": sequences},
    }  # fmt: skip
    return DeploymentSpec.model_validate(
        {
            "model": study.resolved.model_name,
            "profile": study.resolved.profile.name,
            "router": {"policy": "round_robin"},
            "pools": [pool],
        }
    )


@cache
def simulation_of(case: str, requests: int) -> tuple[Simulation, DeploymentSpec]:
    asked, deployed = CASES[case]
    study = study_of(requests, **asked)
    return Simulation(study.world()), deployment_of(study, **deployed)


def capacity_of(simulation: Simulation, deployment: DeploymentSpec) -> Capacity:
    def score_at(load: float) -> Score:
        evaluation = simulation.evaluate_at(deployment, load)
        return Score(evaluation.metrics, evaluation.slo, evaluation.feasible)

    return capacity(score_at, relative_tolerance=0.01)


#: Samples of 20,000 requests carry loads that differ by 1.9 % (one standard deviation), of 80,000 by 1.5 %. And two
#: loads cross this bound: once the limit on running requests is always full, p99 TPOT falls below 80 ms again.
SAMPLING = {"tpot alone": 0.07}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_capacity_hardly_moves_where_the_trace_is_four_times_longer(case: str) -> None:
    requests = int(400 * CASES[case][0]["rate"])
    short, long = (capacity_of(*simulation_of(case, count)) for count in (requests, 4 * requests))
    assert long.load == pytest.approx(short.load, rel=SAMPLING.get(case, 0.03))


def test_a_load_that_a_short_trace_hides_is_an_overload() -> None:
    """Of a patient service: within 2,000 requests the queue does not grow long enough to break its SLO."""
    study = study_of(2000, rate=20.0, slo="ttft p99 < 20s, tpot p99 < 500ms")
    simulation, deployment = Simulation(study.world()), deployment_of(study, replicas=8)
    best = capacity_of(simulation, deployment)
    own = simulation._scored(deployment, simulation.fleet(deployment), simulation.world.trace, 1.2 * best.load)
    lasting = simulation.evaluate_at(deployment, 1.2 * best.load)
    assert own.feasible
    assert not lasting.feasible
    assert lasting.metrics["queue_growth_rps"] > 0
    assert any(check.label == "queue_growth" and not check.holds for check in lasting.slo)


def test_the_same_load_is_judged_alike_whatever_was_simulated_before() -> None:
    simulation, deployment = simulation_of("eight", 2000)
    fresh = Simulation(simulation.world)
    simulation.evaluate_at(deployment, 3.0)
    assert simulation.evaluate_at(deployment, 1.3) == fresh.evaluate_at(deployment, 1.3)


def test_verdicts_turn_once_as_the_load_rises() -> None:
    simulation, deployment = simulation_of("eight", 2000)
    verdicts = [simulation.evaluate_at(deployment, load).feasible for load in (0.5, 1.0, 1.4, 2.2, 3.0, 6.0)]
    assert verdicts == sorted(verdicts, reverse=True)
    assert (verdicts[0], verdicts[-1]) == (True, False)


def test_a_simulation_of_a_load_lasts_as_long_as_the_searchs() -> None:
    """So that ``hisearch simulate --load`` bears out the headroom that a study tells."""
    simulation, deployment = simulation_of("eight", 2000)
    world, fleet = simulation.world, simulation.fleet(deployment)
    assert world.continuation is not None
    lengths, terms = [], world.slo.terms

    def run(trace: CompiledTrace, give_up: GiveUp) -> Result:
        lengths.append(len(trace))
        return simulation._run(fleet, trace, load, give_up)

    def score_of(trace: CompiledTrace, result: Result, kept: np.ndarray | None) -> Score:
        return simulation._score(deployment, fleet, trace, result, kept)

    load = 1.05
    assert sustained(world.continuation, load, terms, run, score_of).feasible
    brief, whole = lengths
    assert brief < whole == len(steady_run(world.continuation, load, terms)[0])


def test_a_load_is_judged_alike_where_it_is_shown_and_a_missed_one_simulated_to_the_end() -> None:
    simulation, deployment = simulation_of("eight", 2000)
    held = simulation.evaluate_at(deployment, 1.3)
    assert held.feasible
    assert simulation.evaluate_at(deployment, 1.3, to_the_end=True) == held
    given_up = simulation.evaluate_at(deployment, 6.0)
    shown = simulation.evaluate_at(deployment, 6.0, to_the_end=True)
    assert not given_up.feasible
    assert not shown.feasible
    assert shown.metrics["queue_growth_rps"] > 0
    assert shown.metrics["makespan_s"] > given_up.metrics["makespan_s"]


def test_throughput_under_overload_is_what_is_served_not_what_is_offered() -> None:
    simulation, deployment = simulation_of("eight", 2000)
    held, twice, more = (simulation.evaluate_at(deployment, load, to_the_end=True) for load in (1.0, 6.0, 12.0))
    rates = [evaluation.metrics["throughput_rps"] for evaluation in (held, twice, more)]
    assert rates[0] == pytest.approx(20.0, rel=0.03)
    assert 20.0 < rates[1] < 0.8 * 6.0 * 20.0
    assert rates[2] == pytest.approx(rates[1], rel=0.1)  # a server that is full does no more for being asked for more
    tokens = [evaluation.metrics["output_tokens_per_s"] for evaluation in (held, twice, more)]
    assert tokens[2] == pytest.approx(tokens[1], rel=0.1)


def test_a_closed_loop_has_no_load_to_raise() -> None:
    study = study_of(600, concurrency=8, slo="tpot p99 < 100ms")
    assert study.world().continuation is None
