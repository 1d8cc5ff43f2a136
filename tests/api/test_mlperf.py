"""Tuned submissions beside searched rates: files, answers' lengths, what is skipped, and one small cell."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from hisearch.api.mlperf import BRIEF_ROUNDS, _queries_of_worker, _study, read_results, validate_mlperf
from hisearch.api.mlperf_protocol import BENCHMARKS, read_lengths
from hisearch.search.rate.entrants import Entrant
from hisearch.specs.deployments.deployment import DeploymentSpec

HEAD = "round,id,submitter,system,accelerator,accelerators,model,scenario,tokens_per_s\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [
        "5.1,a,x,1xL40S vLLM,NVIDIA L40S,1,llama3.1-8b,Server,1200",
        "5.1,b,y,8xL40S vLLM,NVIDIA L40S,1,llama3.1-8b,Server,1000",
        "5.1,c,y,8xL40S TensorRT,NVIDIA L40S,8,llama2-70b,Server,3200",
        "5.1,d,y,box,Some GPU,8,llama3.1-8b,Offline,8000",
        "5.1,e,y,box,NVIDIA L40S,8,gpt-j,Offline,8000",
    ]
    (tmp_path / "results.csv").write_text(HEAD + "\n".join(rows) + "\n")
    (tmp_path / "datasets").mkdir()
    rng = np.random.default_rng(0)
    for name in ("llama3.1-8b", "llama2-70b"):
        lengths = zip(rng.integers(200, 1500, 500), rng.integers(1, 600, 500), strict=True)
        text = "input_length,output_length\n" + "".join(f"{inputs},{outputs}\n" for inputs, outputs in lengths)
        with gzip.open(tmp_path / "datasets" / f"{name}.csv.gz", "wt") as file:
            file.write(text)
    return tmp_path


def test_results_are_cells_per_accelerator(folder: Path) -> None:
    cells = {(cell.model, cell.accelerator): cell for cell in read_results(folder / "results.csv")}
    assert cells["llama3.1-8b", "l40s"].tokens_per_s == (1200.0, 1000.0)
    assert cells["llama3.1-8b", "l40s"].engine == "vllm"
    assert cells["llama2-70b", "l40s"].tokens_per_s == (400.0,)
    assert cells["llama2-70b", "l40s"].engine == "trtllm"
    assert cells["llama3.1-8b", "l40s"].version == "0.10.0"
    assert cells["llama2-70b", "l40s"].version == "0.21.0"
    (folder / "results.csv").write_text(HEAD + "5.1,a,x,s,NVIDIA L40S,many,llama2-70b,Server,1\n")
    with pytest.raises(ValueError, match=r"results\.csv:2"):
        read_results(folder / "results.csv")


@pytest.mark.parametrize("model", ["llama3.1-8b", "llama2-70b"])
def test_answers_have_the_mean_and_the_limit_of_the_submissions(folder: Path, model: str) -> None:
    benchmark = BENCHMARKS[model]
    lengths = read_lengths(folder / "datasets" / f"{model}.csv.gz", benchmark)
    assert lengths.mean_output == pytest.approx(benchmark.mean_tokens, rel=0.02)
    assert lengths.output_tokens.max() <= benchmark.most_tokens


@pytest.mark.parametrize(("scenario", "drafts"), [("Interactive", [None, 3]), ("Server", [None]), ("Offline", [None])])
def test_only_where_rules_allow_it_tokens_are_drafted(folder: Path, scenario: str, drafts: list[int | None]) -> None:
    benchmark = BENCHMARKS["deepseek-r1"]
    (folder / "results.csv").write_text(f"{HEAD}6.0,a,x,s,NVIDIA B200,8,deepseek-r1,{scenario},5000\n")
    [group] = read_results(folder / "results.csv")
    lengths = read_lengths(folder / "datasets" / "llama2-70b.csv.gz", benchmark)
    tried = _study(group, benchmark, lengths).resolved.space.spec.execution.speculation
    assert [None if spec is None else spec.draft_tokens for spec in tried] == drafts


@pytest.mark.parametrize(("estimate_rps", "expected"), [(0.5, 2 * 256 * BRIEF_ROUNDS), (100.0, 5000)])
def test_a_brief_run_has_several_rounds_of_a_worker(estimate_rps: float, expected: int) -> None:
    # At 0.5 a second, 100 seconds would see a tenth of one batch.
    engine = {"name": "trtllm", "max_running_requests": 256}
    pool = {"accelerator": "b200", "replicas": 2, "attention_data_parallel": 2, "engine": engine}
    deployment = DeploymentSpec.model_validate({"model": "deepseek-r1", "profile": "auto", "pools": [pool]})
    assert _queries_of_worker(Entrant(deployment, (), estimate_rps), 100.0) == expected


def test_a_cell_is_searched_and_others_are_skipped_with_a_reason(folder: Path) -> None:
    reasons = {cell.model: cell.skipped for cell in validate_mlperf(folder, only={"scenario": "Offline"})}
    assert "Some GPU" in reasons["llama3.1-8b"]
    assert "gpt-j" in reasons["gpt-j"]
    [cell] = validate_mlperf(folder, only={"model": "llama3.1-8b", "scenario": "Server"}, workers=2, seconds=30)
    assert cell.best_tokens_per_s == 1200.0
    assert cell.median_tokens_per_s == 1100.0
    assert cell.simulated_tokens_per_s is not None
    assert 300 < cell.simulated_tokens_per_s < 5000
    document = json.loads(json.dumps(cell.to_dict()))
    assert document["ratio"] == pytest.approx(cell.simulated_tokens_per_s / 1200.0)
