"""``hisearch.size``: what it answers for questions whose answers are known, and how answers move with the question."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hisearch
from hisearch.api.studies.limiting import LEAST_EFFECT, limiting
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.size import next_cheaper
from hisearch.api.studies.study import Study
from hisearch.score.terms import TermCheck
from hisearch.search.driver import SearchOutcome, search
from hisearch.search.evaluate.runner import TrialRunner
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.trial import price_of
from hisearch.specs.documents.from_question import study_from_question
from hisearch.specs.documents.question import Question
from hisearch.specs.errors import SpecError

#: A search of a second.
TINY = (
    "spec.budget.simulations=16", "spec.confidence={draws: 0, what_if: 0}",
    "spec.workload.trace.generator.requests=300",
)  # fmt: skip
#: Each is two searches.
EXAMPLES = 6 if os.environ.get("HISEARCH_FULL") else 3

#: With few checks, of requests enough to judge a steady load by.
SMALL = (
    "spec.budget.simulations=24", "spec.confidence={draws: 16, what_if: 0}",
    "spec.workload.trace.generator.requests=600",
)  # fmt: skip


def answer(slo: str = "ttft p90 < 1s, tpot p90 < 50ms", **changes: Any) -> SearchOutcome:
    """Of a search alone, without a run folder."""
    parts: dict[str, Any] = {
        "model": "llama-3.1-8b", "input": "1000", "output": "100", "rate": 10.0, "gpu": ("h100-sxm",),
    }  # fmt: skip
    study = Study(study_from_question(Question(**parts | {"slo": slo} | changes), overrides=TINY).resolved)
    simulation = Simulation(study.world())
    problem = study.problem(simulation)
    return search(problem, TrialRunner(simulation.evaluate, problem.budget, workers=1))


def usd(outcome: SearchOutcome) -> float:
    return price_of(outcome.recommendation.trial) if outcome.recommendation is not None else math.inf


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return hisearch.size(
        "llama-3.1-8b", "ttft p95 < 1s, tpot p95 < 50ms", input=1000, output=200, rate=2, gpu="h100-sxm",
        overrides=SMALL, workers=2, run_dir=tmp_path_factory.mktemp("size") / "run",
    )  # fmt: skip


def test_a_small_model_at_a_low_rate_takes_one_accelerator(result: StudyResult) -> None:
    assert result.recommendation is not None
    pool = result.recommendation.trial.deployment.pool
    assert (pool.accelerator, pool.replicas, pool.parallelism.ranks) == ("h100-sxm", 1, 1)
    assert result.confidence is not None
    assert result.confidence.chance is not None
    assert result.confidence.chance > 0.95
    assert result.outcome.headroom is not None
    assert result.outcome.headroom.load > 2
    assert next_cheaper(result) is None
    assert result.recommendation.trial.metrics["tpot_p50_s"] == pytest.approx(0.0055, rel=0.5), "16 GB at 3.35 TB/s"


def test_the_study_in_its_folder_gives_the_same_answer(result: StudyResult, tmp_path: Path) -> None:
    again = hisearch.load_study(result.run_dir / "study.yaml").run(workers=1, run_dir=tmp_path / "again")
    assert again.trials == result.trials
    assert again.recommendation == result.recommendation
    assert again.confidence == result.confidence


def test_decodes_of_a_lone_request_wait_for_memory(result: StudyResult) -> None:
    held_back = limiting(result)
    assert held_back is not None
    assert held_back.check.label == "tpot_p95"
    assert held_back.resource == "decode bandwidth"
    assert held_back.check.value_s is not None
    assert held_back.relieved_s["decode bandwidth"] < held_back.check.value_s * (1 - LEAST_EFFECT)
    assert held_back.relieved_s["KV memory"] == pytest.approx(held_back.check.value_s, rel=1e-6)


def test_long_prompts_wait_for_prefill(tmp_path: Path) -> None:
    result = hisearch.size(
        "llama-3.1-8b", "ttft p95 < 2s", input="8000 exactly", output="20 exactly", rate=1, gpu="h100-sxm",
        overrides=TINY, run_dir=tmp_path / "run",
    )  # fmt: skip
    held_back = limiting(result)
    assert held_back is not None
    assert held_back.resource == "prefill compute"


def test_a_wrong_question_is_refused() -> None:
    with pytest.raises(SpecError, match="slo: expected a unit"):
        hisearch.size("llama-3.1-8b", "ttft p95 < 1", input=100, output=10, rate=1)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.floats(2.0, 60.0), st.floats(1.3, 4.0))
def test_more_requests_never_cost_less(rate: float, factor: float) -> None:
    assert usd(answer(rate=rate)) <= usd(answer(rate=rate * factor))


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.floats(0.05, 1.0), st.floats(8.0, 60.0), st.floats(1.1, 3.0))
def test_a_tighter_slo_never_costs_less(ttft_s: float, tpot_ms: float, factor: float) -> None:
    loose = answer(f"ttft p90 < {ttft_s * factor:.6f}s, tpot p90 < {tpot_ms * factor:.6f}ms", rate=20.0)
    tight = answer(f"ttft p90 < {ttft_s:.6f}s, tpot p90 < {tpot_ms:.6f}ms", rate=20.0)
    assert usd(loose) <= usd(tight)


def test_a_budget_that_nothing_keeps_to_leaves_a_nearest_miss() -> None:
    outcome = answer(budget_usd=0.5)
    assert outcome.recommendation is None
    assert outcome.nearest_miss is not None
    assert any(not isinstance(check, TermCheck) and not check.holds for check in outcome.nearest_miss.slo)
