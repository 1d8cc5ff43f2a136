"""Whole studies on the real simulator whose spaces or workloads are awkward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hisearch.api.studies import conclude
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.report.pages.page import answer_heading
from tests.search.fakes import tier_gib

ROOT = Path(__file__).parents[2]


def run(folder: Path, execution: dict[str, Any], workload: dict[str, Any] | None = None, **parts: Any) -> StudyResult:
    """A small study of Llama-3.1-8B in ``folder``; ``parts``: the space's other sections, and ``slo``."""
    space = {"execution": {"tensor_parallel": [1], "engines": ["vllm"], **execution}}
    space |= {key: value for key, value in parts.items() if key in ("routing", "cache")}
    space.setdefault("cache", {"tiers": []})
    study = {
        "apiVersion": "hisearch/v1",
        "kind": "Study",
        "metadata": {"name": "awkward"},
        "spec": {
            "model": "llama-3.1-8b",
            "workload": {"trace": workload or "chat-multiturn", "limit": 200},
            "slo": parts.get("slo", "interactive-chat"),
            "space": space,
            "objectives": ["ttft_p99", "usd_per_hour"],
            "budget": {"simulations": 40},
            "confidence": {"draws": 0, "what_if": 0},
        },
    }
    path = folder / "awkward.yaml"
    path.write_text(yaml.safe_dump(study))
    return load_study(path).run(workers=1, run_dir=folder / "run")


def generator(arrivals: dict[str, Any], output_tokens: float = 1.0) -> dict[str, Any]:
    length = {"distribution": "constant", "scale_tokens": output_tokens}
    prompt = {"distribution": "constant", "scale_tokens": 4000}
    return {"generator": {"requests": 120, "arrivals": arrivals, "first_input": prompt, "output": length}}


def test_accelerators_that_cost_nothing_end_the_search(tmp_path: Path) -> None:
    text = (ROOT / "profiles/accelerators/l40s.yaml").read_text()
    owned = yaml.safe_load(text)
    owned["metadata"]["name"] = "owned"
    owned["spec"]["price"]["usd_per_hour"] = 0
    (tmp_path / "profiles/accelerators").mkdir(parents=True)
    (tmp_path / "profiles/accelerators/owned.yaml").write_text(yaml.safe_dump(owned))
    result = run(tmp_path, {"accelerators": ["owned"]})
    assert result.recommendation is not None
    assert result.recommendation.trial.metrics["usd_per_hour"] == 0


def test_an_interrupt_while_the_answer_is_checked_makes_it_provisional(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(conclude, "conclude_study", interrupted)
    result = run(tmp_path, {"accelerators": ["h100-sxm"]})
    assert result.recommendation is not None
    assert result.stopped == "interrupted"
    assert "the answer is provisional" in result.caution
    assert answer_heading(result.report_input()).startswith("Provisional")
    assert result.status_of(result.recommendation.trial).title.startswith("Provisional")


def test_workers_wider_than_their_host_are_left_out(tmp_path: Path) -> None:
    result = run(tmp_path, {"accelerators": ["a6000"], "tensor_parallel": [1, 8]})
    assert {trial.deployment.pool.tensor_parallel for trial in result.trials} == {1}
    assert result.outcome.execution.skipped


def test_the_smallest_host_tier_that_works_is_the_first(tmp_path: Path) -> None:
    result = run(
        tmp_path,
        {"accelerators": ["h100-sxm"], "engines": ["sglang"]},
        cache={"tiers": [{"media": ["ddr5"], "gib": [32, 128]}]},
    )
    assert {tier_gib(trial.deployment.pool) for trial in result.trials} == {128}


def test_a_host_is_not_given_more_memory_than_it_has(tmp_path: Path) -> None:
    result = run(tmp_path, {"accelerators": ["h100-sxm"]}, cache={"tiers": [{"media": ["ddr5"], "gib": [0, 512]}]})
    assert {tier_gib(trial.deployment.pool) for trial in result.trials} == {0}


@pytest.mark.parametrize("output_tokens", [1, 2])
def test_short_answers_do_not_rule_out_what_would_do(tmp_path: Path, output_tokens: int) -> None:
    workload = generator({"process": "poisson", "rate_rps": 1.0}, output_tokens)
    result = run(tmp_path, {"accelerators": ["l40s", "b200"]}, workload)
    assert result.recommendation is not None
    assert result.recommendation.trial.deployment.pool.accelerator == "l40s"


def test_closed_loops_have_no_headroom_to_report(tmp_path: Path) -> None:
    workload = generator({"process": "closed_loop", "users": 8}, 50)
    result = run(tmp_path, {"accelerators": ["h100-sxm"]}, workload)
    assert result.recommendation is not None
    assert result.outcome.headroom is None


def test_a_format_that_the_engine_lacks_is_not_tried(tmp_path: Path) -> None:
    result = run(tmp_path, {"accelerators": ["h100-sxm"], "kv_dtypes": ["int8", "bf16"]})
    assert {trial.deployment.pool.kv_dtype for trial in result.trials} == {"bf16"}
    assert result.outcome.execution.skipped["engine limits contradict"] > 0
