"""The largest rate of given accelerators: held against every deployment of a small space, one by one."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from hisearch.api.studies import largest
from hisearch.api.studies.largest import largest_rate, run_notes
from hisearch.api.studies.largest_answer import AssuredRate, LargestRate
from hisearch.api.studies.study import Study
from hisearch.cli.main import app
from hisearch.cli.views.largest import _binds, _chances, _searched, show
from hisearch.score.capacity import capacity
from hisearch.score.evaluate import Score
from hisearch.score.metrics import front_end_note
from hisearch.score.quantities import significant
from hisearch.score.terms import LimitCheck
from hisearch.search.confidence.uncertainty import factors_of, normal_draws, with_factors
from hisearch.search.evaluate import sustained
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.job import TRIAL_ERRORS, Evaluation
from hisearch.search.rate.entrants import entrants_of
from hisearch.search.stages.screening import screen
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.from_question import study_from_question
from hisearch.specs.documents.question import Question, QuestionError, parse_have

SPACES = {
    "one pool": ("llama-3.1-8b", "h200", 2, "ttft p95 < 1s, tpot p95 < 40ms", "vllm"),
    "tpot binds": ("llama-3.1-8b", "l40s", 2, "ttft p95 < 2s, tpot p95 < 45ms", "vllm"),
    "split": ("qwen3-32b", "h200", 4, "ttft p95 < 1s, tpot p95 < 30ms", "vllm"),
    "policies": ("llama-2-70b", "h200", 2, "ttft p95 < 2s, tpot p95 < 80ms", "trtllm"),
    "experts": ("qwen3-30b-a3b", "h100-sxm", 2, "ttft p95 < 1s, tpot p95 < 50ms", "sglang"),
}
CHUNKS, RUNNING = [1024, 8192], [64, 256]
SMALL = [
    f"spec.space.execution.chunk_tokens={CHUNKS}",
    f"spec.space.execution.max_running_requests={RUNNING}",
    "spec.space.execution.pipeline_parallel=[1]",
    "spec.space.routing.policies=[power_of_two]",
    "spec.space.cache.memory_fraction=[0.9,0.9]",
]


FEW_DRAWS = ("spec.space.pools.disaggregated=null", "spec.confidence.draws=8")


def study_of(case: str, *more: str) -> Study:
    model, gpu, count, slo, engine = SPACES[case]
    question = Question(
        model=model, slo=slo, input="800", output="120", rate=1.0, gpu=(gpu,), engine=(engine,), have=(gpu, count)
    )  # fmt: skip
    return Study(study_from_question(question, overrides=[*SMALL, *more]).resolved)


def variants(deployment: DeploymentSpec) -> Iterator[DeploymentSpec]:
    """The deployment; one with prefill and decode apart with every batch limit on either side."""
    if len(deployment.pools) == 1:
        yield deployment
        return
    limits = itertools.product(CHUNKS, RUNNING)
    for sides in itertools.product(list(limits), repeat=2):
        pools = [
            pool.model_copy(
                update={
                    "engine": pool.engine.model_copy(update={"chunk_tokens": chunk, "max_running_requests": running})
                }
            )
            for pool, (chunk, running) in zip(deployment.pools, sides, strict=True)
        ]
        yield deployment.model_copy(update={"pools": pools})


def enumerated(study: Study) -> float:
    """The largest load of any deployment of the space, each searched on its own."""
    simulation = Simulation(study.world())
    problem = study.problem(simulation)
    best = 0.0
    entrants = entrants_of(problem, screen(problem, 10_000))
    for variant in itertools.chain.from_iterable(variants(entrant.deployment) for entrant in entrants):

        def score_at(load: float, deployment: DeploymentSpec = variant) -> Score:
            evaluation = simulation.evaluate_at(deployment, load)
            return Score(evaluation.metrics, evaluation.slo, evaluation.feasible)

        try:
            best = max(best, capacity(score_at, relative_tolerance=0.01, growth=2.0, min_load=1e-3, max_load=1e5).load)
        except TRIAL_ERRORS:
            continue
    return best


@pytest.mark.slow
@pytest.mark.parametrize("case", SPACES)
def test_the_winner_is_the_best_of_all_within_two_percent(case: str) -> None:
    study = study_of(case)
    answer = largest_rate(study, workers=2, seconds=600, around=False)
    assert answer.trial is not None
    assert answer.trial.load == pytest.approx(enumerated(study), rel=0.02)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> LargestRate:
    """That of one pool with all that is asked around it."""
    folder = tmp_path_factory.mktemp("largest") / "run"
    return largest_rate(study_of("one pool", *FEW_DRAWS), workers=1, run_dir=folder)


def test_an_answer_says_what_binds_and_what_more_would_bring(answer: LargestRate) -> None:
    assert answer.trial is not None
    assert answer.run_dir is not None
    assert answer.binds is not None
    assert answer.missed_rps == pytest.approx(answer.rate_rps, rel=0.011)
    verdicts = [point.feasible for point in answer.curve]
    assert verdicts == sorted(verdicts, reverse=True)
    assert (verdicts[0], verdicts[-1]) == (True, False)
    assert answer.more[0].rate_rps > 1.3 * answer.rate_rps
    values = [value for point in answer.curve for value in point.values.values()]
    assert all(math.isfinite(value) for value in values), "missed loads are simulated to their end"
    sure = answer.assured
    assert sure is not None
    assert 0.0 < sure.rate_rps < answer.rate_rps
    assert sure.at_edge < 0.9 <= sure.probability
    assert sure.rate_rps in [point.rate_rps for point in answer.curve]
    assert all(other.rate_rps <= 1.02 * answer.rate_rps for other in answer.simpler)
    stored = json.loads((answer.run_dir / "largest.json").read_text())
    assert stored["rate_rps"] == answer.rate_rps
    assert (answer.run_dir / "recommended" / "vllm" / "run.sh").is_file()


def test_an_answer_says_what_it_rests_on(answer: LargestRate, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer.to_dict()
    assert data["profile"] == {"name": "vllm-h200 (auto)", "evidence": "fitted", "relative_error": 0.0663}
    assert [(price["item"], price["evidence"], price["as_of"]) for price in data["prices"]] == [
        ("h200", "assumed", "2026-11-01")
    ]
    assert (data["warnings"], data["overload_confidence"]) == ([], 0.99)
    show([answer])
    said = " ".join(capsys.readouterr().out.split())
    assert "fitted step times of profile vllm-h200 (auto): error of a step about 6.6 %" in said
    assert "Prices: h200 $3.50 per hour, assumed, as of 2026-11-01" in said
    assert "Growth of the queue: by Wilcoxon's signed-rank test, 99 % confidence." in said
    grows = replace(answer, binds=LimitCheck("queue_growth", 3.14, 0.5))
    assert "the queue grows by 3.1 requests a second (Wilcoxon's signed-rank test, 99 % confidence)" in _binds(grows)


#: One worker of one setting, and no draws.
SINGLE = (
    "spec.space.execution.chunk_tokens=[1024]",
    "spec.space.execution.max_running_requests=[64]",
    "spec.space.routing.policies=[round_robin]",
    "spec.space.cache.memory_fraction=[0.9,0.9]",
    "spec.confidence.draws=0",
)


def single(gpu: str, tokens: tuple[str, str], slo: str, turns: int = 1) -> Study:
    question = Question(
        model="llama-3.1-8b", slo=slo, input=tokens[0], output=tokens[1], rate=1.0, gpu=(gpu,), have=(gpu, 1),
        turns=turns, think_s=60.0,
    )  # fmt: skip
    return Study(study_from_question(question, overrides=SINGLE).resolved)


def test_the_roofline_of_an_unmeasured_accelerator_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    answer = largest_rate(single("trainium2", ("800", "120"), "ttft p95 < 1s"), workers=2, around=False)
    assert answer.profile.evidence == "assumed"
    assert answer.to_dict()["warnings"] == ["no profile of vllm on this accelerator: the roofline prices its steps"]
    show([answer])
    said = " ".join(capsys.readouterr().out.split())
    assert said.index("No profile of vllm on this accelerator: the roofline prices its steps.") < said.index("settings")


def test_a_run_that_is_cut_short_is_said_at_the_headline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sustained, "MOST_REQUESTS", 3000)
    answer = largest_rate(single("h200", ("800", "120"), "ttft p95 < 1s"), workers=2, around=False)
    assert len(answer.warnings) == 1
    assert "the workload was carried on for" in answer.warnings[0]
    assert answer.to_dict()["warnings"] == list(answer.warnings)
    show([answer])
    said = " ".join(capsys.readouterr().out.split())
    assert said.index("of the 600 s that show a steady state") < said.index("settings")


def test_host_memory_is_taken_where_conversations_return_to_it() -> None:
    answer = largest_rate(single("h200", ("4000", "50"), "ttft p95 < 1s", turns=3), workers=2, around=False)
    assert answer.trial is not None
    pool = answer.trial.deployment.pool
    assert [tier.medium for tier in pool.tiers] == ["ddr5"]
    bare = answer.trial.deployment.model_copy(update={"pools": [pool.model_copy(update={"tiers": []})]})
    assert not answer.simulation.evaluate_at(bare, answer.trial.load / 1.1).feasible


def test_weights_that_the_engine_does_not_run_are_left_out_with_a_note() -> None:
    question = Question(
        model="llama-3.1-8b", slo="ttft p95 < 1s", input="800", output="120", rate=1.0, gpu=("h100-sxm",),
        engine=("trtllm",), weights=("nvfp4", "fp8"), have=("h100-sxm", 1),
    )  # fmt: skip
    answer = largest_rate(Study(study_from_question(question, overrides=SINGLE).resolved), workers=2, around=False)
    assert answer.trial is not None
    assert answer.trial.deployment.pool.weight_dtype == "fp8"
    assert answer.warnings[0].startswith("left out: TensorRT-LLM has no kernels that multiply nvfp4 weights on h100-sx")


@pytest.mark.parametrize(
    ("tokens", "slo", "resource"),
    [
        (("200", "400"), "ttft p95 < 10s, tpot p95 < 30ms", "decode bandwidth"),
        (("4000", "10"), "ttft p95 < 2s, tpot p95 < 500ms", "prefill compute"),
    ],
)
def test_the_resource_that_binds_is_the_one_whose_relief_carries_most(
    tokens: tuple[str, str], slo: str, resource: str
) -> None:
    answer = largest_rate(single("l40s", tokens, slo), workers=2)
    assert answer.limit is not None
    assert answer.limit.what == resource
    assert answer.limit.rate_rps > 1.05 * answer.rate_rps
    assert answer.to_dict()["limit"] == resource
    assert resource in _binds(answer)
    assert {relief.what for relief in answer.relieved} == {
        "prefill compute", "decode bandwidth", "host speed", "KV memory",
    }  # fmt: skip


def test_the_assured_rate_is_what_enough_draws_hold_one_by_one(answer: LargestRate) -> None:
    study = study_of("one pool", *FEW_DRAWS)
    sure = answer.assured
    assert sure is not None
    assert answer.trial is not None
    assert largest_rate(study, workers=2).assured == sure
    simulation, settings = answer.simulation, study.resolved.study.confidence
    normal = normal_draws(8, study.resolved.study.seed)

    def holding(rate_rps: float) -> int:
        load = rate_rps / answer.rate_rps * answer.trial.load
        return sum(
            simulation.evaluate_at(
                answer.trial.deployment,
                load,
                simulation.disturbed(
                    answer.trial.deployment,
                    lambda costs, draw=draw: with_factors(costs, factors_of(costs, draw, settings.correlation)),
                ),
                least=largest.DRAW_OF_SINGLE,
            ).feasible
            for draw in normal
        )

    assert holding(sure.rate_rps) == round(8 * sure.probability) == 8
    assert holding(1.03 * sure.rate_rps) < 8
    assert holding(answer.rate_rps) == round(8 * sure.at_edge)


@pytest.mark.parametrize("limit", ["work", "seconds", ""])
def test_the_limit_that_ended_a_race_is_said(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is counted in events, so that it ends the race at the same entrant on any machine; see law L6."""
    study = study_of("one pool", "spec.space.pools.disaggregated=null")
    if limit == "work":
        monkeypatch.setattr(largest, "MOST_EVENTS", 100_000)
    seconds = 1e-9 if limit == "seconds" else None
    answers = [largest_rate(study, workers=workers, seconds=seconds, around=False) for workers in (1, 2)]
    assert {answer.assured for answer in answers} == {None}  # not asked for
    assert {answer.ended for answer in answers} == {limit}
    assert (answers[0].trial, answers[0].tried) == (answers[1].trial, answers[1].tried)
    assert ("reached before all" in _searched(answers[0]), "a less busy" in _searched(answers[0])) == (
        limit == "work", limit == "seconds",
    )  # fmt: skip
    if limit == "work":
        assert 0 < answers[0].tried < answers[0].entrants


def test_accelerators_are_read_by_kind_and_number() -> None:
    assert parse_have("h100-sxm:16, h200:8") == (("h100-sxm", 16), ("h200", 8))
    for wrong in ("h200", "h200:0", "h200:x", ":8", "", "h200:1,h200:2"):
        with pytest.raises(QuestionError):
            parse_have(wrong)


def test_a_rate_is_no_part_of_the_question() -> None:
    asked = ["size", "--model", "llama-3.1-8b", "--slo", "ttft p95 < 1s", "--input", "500", "--output", "50"]
    result = CliRunner().invoke(app, [*asked, "--have", "h200:1", "--rate", "3"])
    assert result.exit_code == 2
    assert "--rate" in result.output


@pytest.mark.parametrize("have", [None, ("h200", 2)])
def test_routers_that_are_tried_know_something_before_every_engine(have: tuple[str, int] | None) -> None:
    """power_of_two is random before vLLM and TensorRT-LLM: searched alone, it buys a fifth more."""
    question = Question(model="llama-3.1-8b", slo="ttft p95 < 1s", input="800", output="120", rate=1.0, have=have)
    assert study_from_question(question).resolved.space.spec.routing.policies == ["cache_aware", "round_robin"]


def test_a_rate_of_no_sufficient_probability_is_not_the_headline(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = largest_rate(study_of("one pool", "spec.space.pools.disaggregated=null"), workers=2, around=False)
    assert not answer.nothing_assured
    unsure = replace(answer, assured=AssuredRate(0.0, 0.9, 0.0, 0.25, 32, 40, ""))
    assert unsure.nothing_assured
    show([unsure])
    said = " ".join(capsys.readouterr().out.split())
    assert "no rate of meta-llama/Llama-3.1-8B-Instruct was found that holds the SLO with 90 %" in said
    assert f"{significant(answer.rate_rps)} requests/s; 8 of 32 draws of step times hold that" in said
    monkeypatch.setattr(largest, "largest_rate", lambda *args, **more: unsure)
    asked = ["size", "--model", "llama-3.1-8b", "--slo", "ttft p95 < 1s", "--input", "500", "--output", "50"]
    assert CliRunner().invoke(app, [*asked, "--have", "h200:2", "-q"]).exit_code == 99


@pytest.mark.parametrize(
    ("sure", "words"),
    [
        (AssuredRate(4.0, 0.9, 0.906, 0.34, 32, 90, ""), "11 of 32 draws of step times hold that, 29 of 32 hold"),
        (AssuredRate(4.0, 0.9, 0.906, None, 32, 90, "work"), "29 of 32 hold the headline's rate (not refined"),
        (AssuredRate(0.0, 0.9, 0.0, 0.0, 32, 90, ""), "0 of 32 draws of step times hold that, 90 % hold no rate"),
        (AssuredRate(0.0, 0.9, 0.0, 0.1, 32, 90, "seconds"), "which rate 90 % hold was not found: the seconds were up"),
    ],
)
def test_the_chances_of_both_rates_are_said(sure: AssuredRate, words: str) -> None:
    assert words in _chances(sure)


def test_of_runs_with_busy_front_ends_the_first_is_named() -> None:
    def run(busy: float, *notes: str) -> Evaluation:
        metrics = {"front_end_busy": busy}
        return Evaluation(metrics, (), True, warnings=(*notes, *filter(None, [front_end_note(metrics)])))

    first, second, idle = run(1.1, "a"), run(1.3, "b"), run(0.5, "c")
    assert run_notes([first, second]) == ["a", front_end_note(first.metrics), "b"]
    assert run_notes([idle, second]) == ["c", "b", front_end_note(second.metrics)]
    assert run_notes([first, first]) == [*first.warnings, *first.warnings]
    assert run_notes([idle]) == ["c"]
