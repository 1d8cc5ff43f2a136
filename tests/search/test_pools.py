"""Several pools as dimensions of a search, on the real simulator: compared with all of a small space."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import Study, load_study
from hisearch.search.driver import MOST_CANDIDATES
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.candidates import Cluster
from hisearch.search.model.deployments import deployment_of, mixed_order, parameters_of, shape_of
from hisearch.search.model.job import Evaluation, Job
from hisearch.search.model.problem import Problem
from hisearch.search.model.routing_configs import mixed_configs, pd_configs, unified_configs
from hisearch.search.model.trial import Trial
from hisearch.search.select.pareto import front, minimised
from hisearch.search.stages.clusters import role_problem, within_limits
from hisearch.search.stages.execution import groups, search_execution
from hisearch.search.stages.screening import combinations, screen
from hisearch.search.stages.shortlist import deployment, key_of
from hisearch.specs.deployments.deployment import DeploymentSpec, check_pools
from hisearch.specs.errors import SpecError
from hisearch.specs.studies.search_space import TierSpace

MOST_WORKERS = 3
OBJECTIVES = ("ttft_p95", "goodput", "usd_per_hour")
DISAGGREGATED: dict[str, Any] = {"fabrics": ["ib-ndr-400"], "decode_policies": ["power_of_two"]}


def study(folder: Path, pools: dict[str, Any], **spec: Any) -> Study:
    """Llama-3.1-8B with long prompts and little time between tokens, on two accelerators."""
    length = {"distribution": "lognormal", "mean_log": 8.0, "sigma_log": 0.8, "max_tokens": 15000}
    generator = {
        "requests": 150,
        "arrivals": {"process": "poisson", "rate_rps": 6.0},
        "first_input": length,
        "output": {"distribution": "constant", "scale_tokens": 120},
    }
    execution = {
        "accelerators": ["h100-sxm", "l40s"],
        "engines": ["sglang"],
        "tensor_parallel": [1, 2],
        "chunk_tokens": [2048],
        "max_running_requests": [128],
        "max_replicas": MOST_WORKERS,
        "max_accelerators": 12,
    }
    space = {
        "execution": execution | spec.pop("execution", {}),
        "routing": {"policies": ["power_of_two"], "extra_replicas": [0, 1]},
        "cache": {"tiers": [], "memory_fraction": [0.88, 0.88]},
        "pools": pools,
        "profile": "roofline",
    }
    terms = [
        {"metric": "ttft_s", "percentile": 95, "at_most_s": 1.5},
        {"metric": "tpot_s", "percentile": 95, "at_most_s": 0.02},
    ]
    document = {
        "apiVersion": "hisearch/v1",
        "kind": "Study",
        "metadata": {"name": "pools"},
        "spec": {
            "model": "llama-3.1-8b",
            "workload": {"trace": {"generator": generator}},
            "slo": {"terms": terms},
            "space": space,
            "objectives": list(OBJECTIVES),
            "budget": {"simulations": 200},
            "confidence": {"draws": 0, "what_if": 0},
        }
        | spec,
    }
    path = folder / "pools.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_study(path)


def every_deployment(problem: Problem) -> list[DeploymentSpec]:
    """All of the space, whatever stage 1 thinks of it."""
    workers = {
        role: [pool for pools, _ in groups(role_problem(problem, role)) for pool in pools]  # type: ignore[arg-type]
        for role in ("unified", "prefill", "decode")
    }
    counts = range(1, MOST_WORKERS + 1)
    space = problem.space
    deployments = [
        routing_config.of(deployment_of(problem.model, problem.profile, pool, count, routing_config.router))
        for pool, count, routing_config in itertools.product(workers["unified"], counts, unified_configs(space))
        if within_limits(problem, [pool], (count,))
    ]
    pairs: list[tuple[list[Any], list[Any]]] = []
    assert space.pools.disaggregated is not None
    assert space.pools.mixed is not None
    for sides in itertools.product(workers["prefill"], workers["decode"]):
        named = [
            side.model_copy(update={"name": r, "role": r}) for side, r in zip(sides, ("prefill", "decode"), strict=True)
        ]
        pairs.append((named, pd_configs(space, space.pools.disaggregated)))
    for sides in itertools.combinations(workers["unified"], 2):
        named = mixed_order(sides)
        pairs.append((named, mixed_configs(space, space.pools.mixed)))
    for (named, routing_configs), numbers in itertools.product(pairs, itertools.product(counts, counts)):
        if within_limits(problem, named, numbers):
            sized = [p.model_copy(update={"replicas": n}) for p, n in zip(named, numbers, strict=True)]
            deployments += [
                DeploymentSpec(model=problem.model, profile=problem.profile, pools=sized, **routing_config.settings)
                for routing_config in routing_configs
            ]
    return deployments


def as_trial(number: int, spec: DeploymentSpec, evaluation: Evaluation) -> Trial:
    return Trial(number, 2, spec, parameters_of(spec), evaluation.metrics, evaluation.slo, evaluation.feasible)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Study, Problem, list[Trial]]:
    """A study of all three shapes, and every deployment of its space, simulated."""
    mixed = {"policies": ["weighted"], "workers_of_each": 2}
    small_study = study(tmp_path_factory.mktemp("pools"), {"disaggregated": DISAGGREGATED, "mixed": mixed})
    simulation = Simulation(small_study.world())
    problem = small_study.problem(simulation)
    trials = []
    for number, spec in enumerate(every_deployment(problem)):
        trials.append(as_trial(number, spec, simulation.evaluate(Job(2, spec, parameters_of(spec)))))
    return small_study, problem, trials


def test_screening_loses_no_deployment_of_the_exhaustive_front(small: tuple[Study, Problem, list[Trial]]) -> None:
    _, problem, trials = small
    best = front(trials, OBJECTIVES)
    assert {shape_of(trial.deployment) for trial in best} >= {"unified", "disaggregated"}
    kept = {
        _workers(deployment(problem, c, _ones(c), _routing_config(problem)))
        for c in screen(problem, MOST_CANDIDATES).kept
    }
    assert [trial.parameters for trial in best if _workers(trial.deployment) not in kept] == []


def _ones(candidate: Any) -> tuple[int, ...]:
    return (1,) * (len(candidate.sides) if isinstance(candidate, Cluster) else 1)


def _routing_config(problem: Problem) -> Any:
    assert problem.space.pools.disaggregated is not None
    return pd_configs(problem.space, problem.space.pools.disaggregated)[0]


def _workers(spec: DeploymentSpec) -> frozenset[str]:
    """Workers of each role, whichever pool is named first, their numbers left out."""
    pools = [pool.model_copy(update={"name": "main", "replicas": 1}) for pool in spec.pools]
    return frozenset(pool.model_dump_json() for pool in pools)


def test_the_search_finds_the_cheapest_of_all_shapes(small: tuple[Study, Problem, list[Trial]], tmp_path: Path) -> None:
    small_study, _, trials = small
    result = small_study.run(workers=1, run_dir=tmp_path / "run")
    cheapest = min(trial.metrics["usd_per_hour"] for trial in trials if trial.feasible)
    assert result.recommendation is not None
    assert result.recommendation.trial.metrics["usd_per_hour"] == pytest.approx(cheapest)
    assert {shape_of(trial.deployment) for trial in result.trials} == {"unified", "disaggregated", "mixed"}
    _cheapest_of_each_shape(result, trials)
    of_the_space = {trial.deployment.model_dump_json() for trial in trials}
    full_trials = [trial for trial in result.trials if trial.slice_fraction == 1.0]
    assert {trial.deployment.model_dump_json() for trial in full_trials} <= of_the_space
    assert _hypervolume(full_trials, trials) >= 0.995
    _is_written(result)


def _hypervolume(ours: list[Trial], every: list[Trial]) -> float:
    """Share of the exhaustive front's hypervolume, on its own scale."""
    import moocore

    best, mine = (minimised(front(some, OBJECTIVES), OBJECTIVES) for some in (every, ours))
    low, span = best.min(axis=0), np.ptp(best, axis=0)
    reached, total = (float(moocore.hypervolume((points - low) / span, ref=[1.1] * 3)) for points in (mine, best))
    return reached / total


def _cheapest_of_each_shape(result: StudyResult, trials: list[Trial]) -> None:
    """The cheapest deployment of each shape is found, so shapes are compared at their best."""
    for shape in ("unified", "disaggregated"):
        ours, theirs = (
            min(
                t.metrics["usd_per_hour"]
                for t in some
                if t.feasible and t.comparable and shape_of(t.deployment) == shape
            )
            for some in (result.trials, trials)
        )
        assert ours == pytest.approx(theirs), shape


def _is_written(result: StudyResult) -> None:
    text = (result.run_dir / "report.html").read_text()
    assert "disaggregated prefill and decode" in text
    stored = hisearch_load(result.run_dir)
    assert [trial.deployment for trial in stored.trials] == [trial.deployment for trial in result.trials]
    columns = result.to_pandas().columns
    assert {"decode.replicas", "shape", "fabric"} <= {str(name).removeprefix("param_") for name in columns}


def hisearch_load(folder: Path) -> StudyResult:
    from hisearch.api.studies.stored_run import load_run

    return load_run(folder)


def test_a_space_without_pools_is_screened_as_ever(tmp_path: Path) -> None:
    loaded = study(tmp_path, {})
    problem = loaded.problem(Simulation(loaded.world()))
    assert screen(problem, 10) == search_execution(problem, 10)
    assert combinations(problem) == 4


def test_only_several_pools(tmp_path: Path) -> None:
    loaded = study(tmp_path, {"unified": False, "disaggregated": DISAGGREGATED}, budget={"simulations": 30})
    result = loaded.run(workers=1, run_dir=tmp_path / "run")
    assert {shape_of(trial.deployment) for trial in result.trials} == {"disaggregated"}
    for trial in result.trials:
        check_pools(trial.deployment)
    assert result.recommendation is not None


def test_each_side_takes_its_own_lists(tmp_path: Path) -> None:
    sides = {"prefill": {"accelerators": ["h100-sxm"], "chunk_tokens": [4096]}, "decode": {"tensor_parallel": [2]}}
    loaded = study(tmp_path, {"disaggregated": DISAGGREGATED | sides})
    problem = loaded.problem(Simulation(loaded.world()))
    clusters = [cluster for cluster in screen(problem, 20).kept if isinstance(cluster, Cluster)]
    assert clusters
    for cluster in clusters:
        prefill, decode = cluster.pools
        assert (prefill.role, prefill.accelerator, prefill.engine.chunk_tokens) == ("prefill", "h100-sxm", 4096)
        assert (decode.role, decode.tensor_parallel) == ("decode", 2)


def test_both_sides_draft_alike(tmp_path: Path) -> None:
    """The search tries drafted tokens in both pools at once, and what it recommends drafts as it says."""
    drafts = {"method": "eagle3", "draft_tokens": 2, "acceptance": [0.8, 0.7]}
    loaded = study(
        tmp_path,
        {"unified": False, "disaggregated": DISAGGREGATED},
        execution={"speculation": [None, drafts], "accelerators": ["h100-sxm"]},
        budget={"simulations": 30},
    )
    result = loaded.run(workers=1, run_dir=tmp_path / "run")
    tried = {tuple(pool.engine.speculation is not None for pool in trial.deployment.pools) for trial in result.trials}
    assert tried == {(False, False), (True, True)}
    for trial in result.trials:
        check_pools(trial.deployment)


def test_attention_groups_are_tried_on_both_sides(tmp_path: Path) -> None:
    """Of DeepSeek-V3, whose decode workers carry more of them than one group does."""
    execution = {
        "accelerators": ["h200"], "tensor_parallel": [1, 8], "attention_data_parallel": [1, 8],
        "expert_parallel": [8], "max_accelerators": 32,
    }  # fmt: skip
    loaded = study(
        tmp_path, {"unified": False, "disaggregated": DISAGGREGATED}, execution=execution, model="deepseek-v3",
        slo={"terms": [{"metric": "ttft_s", "percentile": 95, "at_most_s": 8.0},
                       {"metric": "tpot_s", "percentile": 95, "at_most_s": 0.08}]},
    )  # fmt: skip
    problem = loaded.problem(Simulation(loaded.world()))
    report = screen(problem, 30)
    groups = {(side.pool.role, side.pool.attention_data_parallel) for side in report.sides}
    assert groups == {("prefill", 1), ("prefill", 8), ("decode", 1), ("decode", 8)}
    best = {side.pool.attention_data_parallel: side.rps_per_usd for side in report.sides if side.pool.role == "decode"}
    assert best[8] > best[1]


def test_prefill_workers_that_draft_may_have_tiers(tmp_path: Path) -> None:
    """Their price is that of a worker without drafts, which are simulated beside tiers in prefill workers alone."""
    drafts = {"method": "eagle3", "draft_tokens": 1, "acceptance": [0.8]}
    loaded = study(
        tmp_path,
        {"unified": False, "disaggregated": DISAGGREGATED},
        execution={"speculation": [drafts], "accelerators": ["h100-sxm"]},
        budget={"simulations": 12},
    )
    space = loaded.resolved.space.spec
    tiers = TierSpace(media=["ddr5"], gib=[64.0])
    cache = space.cache.model_copy(update={"tiers": [tiers]})
    problem = loaded.problem(Simulation(loaded.world()))
    problem = replace(problem, space=space.model_copy(update={"cache": cache}))
    clusters = [cluster for cluster in screen(problem, 20).kept if isinstance(cluster, Cluster)]
    assert clusters
    for cluster in clusters:
        prefill, decode = cluster.pools
        assert prefill.tiers
        assert not decode.tiers


def test_candidates_of_a_shape_are_distinguished_by_their_workers(small: tuple[Study, Problem, list[Trial]]) -> None:
    _, _, trials = small
    shapes: dict[tuple[str, ...], set[str]] = {}
    for trial in trials:
        shapes.setdefault(key_of(trial.deployment.pools), set()).add(shape_of(trial.deployment))
    assert all(len(candidates) == 1 for candidates in shapes.values())


@pytest.mark.parametrize(
    ("pools", "key"),
    [
        ({"unified": False}, "unified"),
        ({"disaggregated": {"fabrics": ["ib-ndr-400"], "decode_policies": ["cache_aware"]}}, "decode_policies.0"),
        ({"disaggregated": {"fabrics": ["ib-ndr-400"], "transfer": {"fabric": "ib-ndr-400"}}}, "transfer.fabric"),
        ({"disaggregated": {}}, "fabrics"),
        ({"disaggregated": {"fabrics": ["no-such-fabric"]}}, "fabrics.0"),
        (
            {"disaggregated": {"fabrics": ["ib-ndr-400"], "decode": {"accelerators": ["no-such-gpu"]}}},
            "decode.accelerators.0",
        ),
    ],
)
def test_what_does_not_go_is_refused_by_its_key(tmp_path: Path, pools: dict[str, Any], key: str) -> None:
    with pytest.raises(SpecError, match=key.replace(".", r"\.")):
        study(tmp_path, pools)
