"""A search limited to exportable deployments tries nothing else, and reports an empty space."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hisearch
from hisearch.api.studies.exporting import benchmark_of, launch_of, reach_of, slots_of
from hisearch.api.studies.result import StudyResult
from hisearch.export.engines.launch import ExportError
from hisearch.export.expressible import check_deployment
from hisearch.search.evaluate.simulation import Simulation
from hisearch.simulate.plans.agent_memory import adapter_elements
from hisearch.specs.deployments.agent_memory import AdaptersSpec
from hisearch.specs.errors import SpecError
from tests.cli.documents import STUDY, WORKLOAD

#: A router that sglang-router has, and one that it lacks; an eviction that SGLang's command line has, and one it lacks.
ROUTING = "spec.space.routing={policies: [least_outstanding_tokens, round_robin], extra_replicas: [0, 1]}"
EVICTIONS = "spec.space.cache={eviction: [fifo, lru], tiers: [{media: [ddr5], gib: [0, 256]}]}"
SGLANG = "spec.space.execution.engines=[sglang]"
SHORT = "spec.confidence={draws: 0, what_if: 0}"


def refused(result: Any) -> list[str]:
    """Why deployments of a result's trials cannot be exported."""
    reasons, resolved = [], result.resolved
    for trial in result.trials:
        pools = trial.deployment.pools
        launches = [launch_of(resolved, pool, result.simulation.kv_capacity_tokens(pool)) for pool in pools]
        try:
            slots, reaches = ([of(resolved, pool) for pool in pools] for of in (slots_of, reach_of))
            check_deployment(trial.deployment, launches, slots, reaches)
        except ExportError as error:
            reasons.append(str(error))
    return reasons


def run(folder: Path, *settings: str) -> Any:
    (folder / "small.yaml").write_text(STUDY)
    return hisearch.load_study(folder / "small.yaml", [ROUTING, SHORT, *settings]).run(workers=2, run_dir=folder / "r")


def test_pods_have_memory_for_the_adapters_of_the_workload_s_agents(tmp_path: Path) -> None:
    lengths = (
        "new_input: {distribution: constant, scale_tokens: 60}, output: {distribution: constant, scale_tokens: 20}"
    )
    agents = f"spec.workload.trace={{agents: {{kind: independent, agents: 300, calls: 400, {lengths}}}}}"
    space = "spec.space.cache={tiers: [], agents: {slots: [8], policies: [lru], adapters: {rank: 64}}}"
    result = run(tmp_path, agents, space, SGLANG, "spec.slo.terms.0.at_most_s=100", "spec.slo.terms.1.at_most_s=10")
    assert result.recommendation is not None
    whole = adapter_elements(result.resolved.model.spec, AdaptersSpec(rank=64), 1) * 2
    stated = (tmp_path / "r/recommended/kubernetes/manifests.yaml").read_text()
    gib = math.ceil(300 * whole / 2**30)
    assert gib > 10
    assert f"memory: {gib + 32 + 8 + 16}Gi" in stated  # the engine's own, and shared memory


def test_without_it_the_search_tries_what_cannot_be_exported(tmp_path: Path) -> None:
    reasons = refused(run(tmp_path, EVICTIONS, SGLANG))
    assert any("no policy least_outstanding_tokens" in reason for reason in reasons)
    assert any("no --radix-eviction-policy fifo" in reason for reason in reasons)


def test_with_it_every_trial_can_be_exported(tmp_path: Path) -> None:
    result = run(tmp_path, "spec.space.exportable=true", EVICTIONS, SGLANG)
    assert result.recommendation is not None
    assert refused(result) == []
    assert any(pool.tiers for trial in result.trials for pool in trial.deployment.pools)
    assert (tmp_path / "r/recommended/README.md").is_file()
    assert not (tmp_path / "r/recommended.txt").exists()
    assert hisearch.load_run(tmp_path / "r").recommendation == result.recommendation


@pytest.mark.parametrize(
    ("setting", "key"),
    [
        ("spec.space.routing={policies: [least_outstanding_tokens]}", "spec.routing.policies"),
        ("spec.space.pools={mixed: {}}", "spec.pools.mixed.policies"),
    ],
)
def test_where_nothing_is_left_the_key_is_named(tmp_path: Path, setting: str, key: str) -> None:
    with pytest.raises(SpecError, match="no router that is exported has") as error:
        run(tmp_path, "spec.space.exportable=true", setting)
    assert key.removeprefix("spec.") in str(error.value)
    assert not (tmp_path / "r").exists()


def test_a_benchmark_is_what_arrives_first(result: StudyResult, tmp_path: Path) -> None:
    """Follow-ups wait for answers: cut by the order of the trace, the last ones would come long after first turns."""
    (tmp_path / "visits.yaml").write_text(WORKLOAD)
    trace = hisearch.load_trace(tmp_path / "visits.yaml")
    simulation, trial = Simulation(replace(result.simulation.world, trace=trace)), result.trials[0]
    assert (trace.arrays.previous >= 0).any()
    arrival_s = np.sort(simulation.replay(trial.deployment, trace, trial.load).requests.arrival_s)
    benchmark = benchmark_of(simulation, trial, limit=40)
    np.testing.assert_allclose(benchmark.replay.arrival_s, arrival_s[:40] - arrival_s[0])
    assert benchmark.replay.rate_rps == pytest.approx(39 / (arrival_s[39] - arrival_s[0]))
    assert benchmark.mean_rps == pytest.approx((len(trace) - 1) / (arrival_s[-1] - arrival_s[0]))
    assert benchmark.simulated == benchmark.about
    few = benchmark_of(simulation, trial, limit=2)
    assert few.simulated == f"the first 64 requests of {few.about}"
