"""Several models, each held to the SLO of its own requests."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hisearch.api.compare import compare_deployments
from hisearch.api.deployments.deployment import SimulatedDeployment, simulate_deployment
from hisearch.score.evaluate import evaluate
from hisearch.score.quantities import notes
from hisearch.score.terms import Check, RejectionCheck, TermCheck, check_from_json, name_of
from hisearch.specs.errors import SpecError
from hisearch.specs.studies.slo import SloSpec
from hisearch.specs.workloads.workload import WorkloadSpec
from hisearch.traces.changes.merging import asking_for, merged, side_by_side
from hisearch.traces.changes.ordering import in_arrival_order
from hisearch.traces.compiled import CompiledTrace
from hisearch.traces.generate import generate_trace
from hisearch.traces.reading.canonical import write_trace
from tests.kernels.systems import compiled
from tests.reference.random_traces import TraceShape, random_trace

DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: two}
spec:
  model: qwen3-32b
  pools:
    - {name: large, accelerator: h100-sxm, tensor_parallel: 2, replicas: 2, engine: {name: sglang}}
    - {name: small, accelerator: l40s, model: llama-3.1-8b, replicas: REPLICAS, engine: {name: vllm}}
"""
TTFT = {"metric": "ttft_s", "percentile": 90, "at_most_s": 0.2}
E2E = {"metric": "e2e_s", "percentile": 50, "at_most_s": 1e-3}


@pytest.fixture(scope="module")
def trace() -> CompiledTrace:
    shape = TraceShape(requests=60, rate_rps=12.0, prompt_tokens=400, output_tokens=30)
    return side_by_side([compiled(random_trace(seed, shape)) for seed in (1, 2)], ["qwen3-32b", "llama-3.1-8b"])


def deployment(folder: Path, replicas: int = 1) -> Path:
    path = folder / f"two-{replicas}.yaml"
    path.write_text(DEPLOYMENT.replace("REPLICAS", str(replicas)))
    return path


def simulated(folder: Path, trace: CompiledTrace, slo: dict[str, object]) -> SimulatedDeployment:
    return simulate_deployment(deployment(folder), trace, slo=SloSpec.model_validate(slo))


def without_window(check: Check) -> Check:
    """Without what a share knows of its model and a result does not."""
    return replace(check, window_tokens=0) if isinstance(check, RejectionCheck) else check


@pytest.mark.parametrize("name", ["llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"])
def test_each_model_is_held_to_its_own_slo(tmp_path: Path, trace: CompiledTrace, name: str) -> None:
    scored = simulated(
        tmp_path, trace, {"terms": [TTFT], "models": {name: {"terms": [E2E], "max_rejected_fraction": 0.5}}}
    )
    large, small = scored.models
    for share, terms, most in ((large, [TTFT], 0.0), (small, [E2E], 0.5)):
        own_slo = SloSpec.model_validate({"terms": terms, "max_rejected_fraction": most})
        expected = evaluate(share.result, own_slo, usd_per_hour=share.cost.total, accelerators=share.cost.accelerators)
        assert [without_window(check) for check in share.score.slo] == list(expected.slo)
        assert share.score.metrics["attainment"] == expected.metrics["attainment"]
    assert [name_of(check) for check in scored.score.slo] == [
        "ttft_p90 of qwen3-32b", "rejected_fraction of qwen3-32b", "e2e_p50 of llama-3.1-8b",
        "rejected_fraction of llama-3.1-8b",
    ]  # fmt: skip
    assert not scored.feasible
    assert not small.score.feasible


def test_goodput_counts_requests_that_are_good_by_their_own_models_terms(tmp_path: Path, trace: CompiledTrace) -> None:
    scored = simulated(tmp_path, trace, {"terms": [TTFT], "models": {"llama-3.1-8b": {"terms": [E2E]}}})
    requests, bound = scored.result.requests, np.where(scored.asked == 0, TTFT["at_most_s"], E2E["at_most_s"])
    value = np.where(scored.asked == 0, requests.ttft_s, requests.e2e_s)
    good = int((value[requests.finished] <= bound[requests.finished]).sum())
    assert 0 < good < len(trace)
    assert scored.metrics["attainment"] == pytest.approx(good / len(trace))
    assert scored.metrics["goodput_rps"] == pytest.approx(good / scored.result.makespan_s)


def test_without_slos_of_their_own_each_model_is_held_to_the_same_by_itself(
    tmp_path: Path, trace: CompiledTrace
) -> None:
    scored = simulated(tmp_path, trace, {"terms": [TTFT]})
    assert [(check.label, check.model) for check in scored.score.slo] == [
        (label, model) for model in ("qwen3-32b", "llama-3.1-8b") for label in ("ttft_p90", "rejected_fraction")
    ]
    assert scored.feasible == all(share.score.feasible for share in scored.models)


def test_a_class_that_no_request_for_a_model_has_is_refused_by_its_own_slo(
    tmp_path: Path, trace: CompiledTrace
) -> None:
    """Terms of all models are refused where no request at all is of their class."""
    model = "llama-3.1-8b"
    classed = dict(TTFT, priority=5)
    with pytest.raises(ValueError, match=rf"SLO: models.{model}: .*no request of the workload has priority 5"):
        simulated(tmp_path, trace, {"terms": [TTFT], "models": {model: {"terms": [classed]}}})
    with pytest.raises(ValueError, match=r"SLO: ttft_p\d+@priority=5: no request"):
        simulated(tmp_path, trace, {"terms": [classed], "models": {model: {"terms": [TTFT]}}})
    arrays = trace.arrays
    assert trace.models is not None
    asked = np.array(trace.models.model)
    of_one = replace(trace, arrays=arrays._replace(priority=np.where(asked == asked[0], 0, 5).astype(np.int32)))
    own = trace.models.names[asked[0]]
    simulated(tmp_path, of_one, {"terms": [classed], "models": {own: {"terms": [TTFT]}}})
    with pytest.raises(ValueError, match=rf"SLO: models.{own}: .*has priority 5; it has 0"):
        simulated(tmp_path, of_one, {"terms": [TTFT], "models": {own: {"terms": [classed]}}})


def test_an_slo_of_a_model_that_is_not_served_is_refused_by_key(tmp_path: Path, trace: CompiledTrace) -> None:
    slo = {"terms": [TTFT], "models": {"gpt": {"terms": [TTFT]}}}
    with pytest.raises(ValueError, match=r"models\.gpt: no pool serves it; served: qwen3-32b, llama-3.1-8b"):
        simulated(tmp_path, trace, slo)
    path = tmp_path / "slo.yaml"
    path.write_text(
        "apiVersion: hisearch/v1\nkind: SLO\nmetadata: {name: slo}\nspec:\n"
        f"  terms: [{TTFT}]\n  models:\n    gpt: {{terms: [{TTFT}]}}\n"
    )
    with pytest.raises(SpecError) as refused:
        simulate_deployment(deployment(tmp_path), trace, slo=path)
    assert (refused.value.line, refused.value.key) == (7, "spec.models.gpt")


def test_checks_of_older_journals_are_of_no_model() -> None:
    assert check_from_json({"label": "ttft_p99", "value_s": 1.0, "bound_s": 2.0, "note": ""}) == TermCheck(
        "ttft_p99", 1.0, 2.0
    )
    assert notes([TermCheck("ttft_p99", 1.0, 2.0, "few", "m")]) == ("TTFT p99 of m: few",)


def test_comparisons_say_what_differs_by_model(tmp_path: Path) -> None:
    """A worker more for one model leaves the other's requests as they were."""

    workload = {"requests": 60, "arrivals": {"process": "poisson", "rate_rps": 20.0},
                "first_input": {"distribution": "constant", "scale_tokens": 900},
                "output": {"distribution": "constant", "scale_tokens": 60}}  # fmt: skip
    generator = WorkloadSpec.model_validate({"generator": workload}).generator
    assert generator is not None
    parts = [
        asking_for(generate_trace(generator, seed=k), name) for k, name in enumerate(["qwen3-32b", "llama-3.1-8b"])
    ]
    write_trace(in_arrival_order(merged(parts)), tmp_path / "both.jsonl")
    comparison = compare_deployments(deployment(tmp_path, 1), deployment(tmp_path, 2), tmp_path / "both.jsonl", seeds=1)
    assert [part.model for part in comparison.models] == ["qwen3-32b", "llama-3.1-8b"]
    large, small = ({figure.name: figure for figure in part.figures} for part in comparison.models)
    assert large["e2e_mean_s"].better == "same"
    assert large["usd_per_hour"].difference == 0
    assert small["e2e_mean_s"].better == "B"
    assert small["usd_per_hour"].relative == pytest.approx(1.0)
    assert [part["model"] for part in comparison.to_dict()["models"]] == ["qwen3-32b", "llama-3.1-8b"]
