"""``hisearch verify`` of any deployment, of measurements of other requests, and of a run that is measured again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hisearch.api.deployments.workload import load_trace
from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.api.verify import verify_deployment, verify_run
from hisearch.simulate.engine import simulate_fleet
from hisearch.simulate.results.tables import RequestTable
from hisearch.specs.machines.profile import CorrectionSpec
from hisearch.traces.changes.replay import Replay, replay_of
from hisearch.traces.importers.measurement import Measurement
from hisearch.verify.prediction import Correction
from hisearch.verify.requests import MeasurementError, requests_of
from tests.cli.conftest import Hisearch
from tests.verify.documents import (
    STUDY,
    measure,
    random_requests,
    served,
    write_guidellm,
    write_sglang,
    write_vllm,
)

pytestmark = pytest.mark.slow

DEPLOYMENT = """\
apiVersion: hisearch/v1
kind: Deployment
metadata: {name: mine}
spec:
  model: llama-3.1-8b
  pools:
    - {name: all, replicas: 1, accelerator: l40s, engine: {name: vllm, max_running_requests: 64}}
"""


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("deployment") / "my.yaml"
    path.write_text(DEPLOYMENT)
    return path


Write = Callable[[Path, RequestTable], Path]


@pytest.mark.parametrize("write", [write_guidellm, lambda path, table: write_vllm(path, table, rate=2.0)])
def test_an_operator_s_own_benchmark_is_simulated_as_it_was_sent(
    deployment: Path, tmp_path: Path, write: Write
) -> None:
    table = served(deployment, random_requests(), Correction(decode=1.4))
    verification = verify_deployment(deployment, [write(tmp_path / "m.json", table)])
    assert verification.diagnosis.terms == ("decode",)
    assert verification.diagnosis.correction.decode == pytest.approx(1.4, rel=0.01)
    assert verification.unexplained is None
    (compared,) = verification.measurements
    assert compared.notes[0] == "requests as in the file: their prompts are taken to share nothing"
    assert (verification.run_dir, verification.trial, verification.standing) == (None, None, None)
    assert verification.write_profile(tmp_path / "p.yaml") == [tmp_path / "p.yaml"]
    again = verify_deployment(deployment, [tmp_path / "m.json"], overrides=[f"spec.profile={tmp_path / 'p.yaml'}"])
    assert again.agrees
    assert again.diagnosis.terms == ()
    assert again.diagnosis.error_before < 0.01


def test_a_closed_loop_is_simulated_as_one(deployment: Path, tmp_path: Path) -> None:
    """Without times too: a request is sent when another one ends, and sooner to a faster deployment."""
    table = served(deployment, random_requests(), Correction(decode=1.4), in_flight=16)
    path = write_sglang(tmp_path / "s.jsonl", table, rate="inf", detailed=True)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_concurrency": 16}))
    verification = verify_deployment(deployment, [path])
    assert verification.measurements[0].pacing == "closed loop, at most 16 requests in flight"
    assert verification.diagnosis.terms == ("decode",)
    assert verification.diagnosis.correction.decode == pytest.approx(1.4, rel=0.02)
    detailed = write_vllm(tmp_path / "v.json", table, rate="inf")
    detailed.write_text(json.dumps(json.loads(detailed.read_text()) | {"max_concurrency": 16}))
    timed = verify_deployment(deployment, [detailed])
    assert timed.diagnosis.correction.decode == pytest.approx(1.4, rel=0.01)
    assert timed.diagnosis.steps_after is not None
    assert timed.diagnosis.steps_after < 0.01


def test_overlap_and_the_front_end_are_as_the_deployment_states(deployment: Path, tmp_path: Path) -> None:
    key = "spec.pools.0.engine.overlap"
    table = served(deployment, random_requests(), **{key: "false"})
    assert (table.front_end_s > 0.004).all()
    path = write_guidellm(tmp_path / "m.json", table)
    stated = verify_deployment(deployment, [path], overrides=[f"{key}=false"])
    assert stated.diagnosis.error_before < 1e-6
    assert verify_deployment(deployment, [path]).diagnosis.error_before > 0.02


def test_a_trace_says_what_prompts_share(deployment: Path, tmp_path: Path) -> None:
    trace = load_trace("chat-multiturn", limit=120)
    replay = replay_of(trace, 3.0 * np.arange(len(trace)) / 4)
    path = write_guidellm(tmp_path / "m.json", served(deployment, replay))
    known = verify_deployment(deployment, [path], trace="chat-multiturn")
    assert known.measurements[0].notes == ("requests of chat-multiturn",)
    assert known.diagnosis.error_before < 0.02
    assert known.measurements[0].hit_rate > 0.1
    unknown = verify_deployment(deployment, [path])
    assert unknown.measurements[0].hit_rate == 0.0
    other = write_guidellm(tmp_path / "o.json", served(deployment, random_requests(60)))
    with pytest.raises(MeasurementError, match="prompts have the lengths of chat-multiturn: these are other requests"):
        verify_deployment(deployment, [other], trace="chat-multiturn")


def test_prompts_that_begin_alike_are_named(deployment: Path, tmp_path: Path) -> None:
    """A system prompt that the file does not tell: no step is faster than the profile says."""
    sent = random_requests()
    alike = sent.beginning_alike(400)
    path = write_guidellm(tmp_path / "m.json", served(deployment, alike))
    verification = verify_deployment(deployment, [path])
    assert verification.diagnosis.terms == ("shared",)
    assert verification.diagnosis.correction.shared == pytest.approx(400 / sent.input_tokens.mean(), rel=0.1)
    assert "Prompts begin alike" in verification.findings[0]
    assert "--trace" in verification.findings[0]
    assert verification.profiles == ()
    fast = write_guidellm(tmp_path / "f.json", served(deployment, sent, Correction(prefill=0.7)))
    other = verify_deployment(deployment, [fast]).diagnosis
    assert other.terms == ("prefill",)
    assert other.correction.prefill == pytest.approx(0.7, rel=0.02)


def test_a_summary_needs_the_trace(deployment: Path, tmp_path: Path) -> None:
    table = served(deployment, random_requests())
    path = write_vllm(tmp_path / "v.json", table, rate=2.0, detailed=False)
    with pytest.raises(MeasurementError, match=r"Give the trace that was sent with --trace, or .* --save-detailed"):
        verify_deployment(deployment, [path])
    with pytest.raises(ValueError, match="no measurement is given"):
        verify_deployment(deployment, [])


def test_a_gap_that_no_term_explains_is_said(deployment: Path, tmp_path: Path, hisearch: Hisearch) -> None:
    """Every request is late or early at random: nothing in the model does that."""
    table = served(deployment, random_requests(60))
    odd = np.exp(np.random.default_rng(2).normal(0.0, 2.0, len(table.arrival_s)))
    first, gap = table.first_token_s - table.arrival_s, table.finish_s - table.first_token_s
    late = replace(
        table, first_token_s=table.arrival_s + first * odd, finish_s=table.arrival_s + first * odd + gap / odd
    )
    path = write_guidellm(tmp_path / "m.json", late)
    verification = verify_deployment(deployment, [path])
    assert verification.diagnosis.error_after > 0.3
    assert verification.unexplained is not None
    assert "settings of the server other than the deployment states" in verification.unexplained
    ran = hisearch("verify", deployment, "--measured", path, "-q")
    assert ran.code == 98
    assert verification.unexplained[:40] in ran.out
    assert "nothing that a latency profile holds is off" not in ran.out


class TestRequests:
    """Which requests are simulated."""

    @staticmethod
    def run_of(replay: Replay, kept: slice = slice(None)) -> Measurement:
        path = Path("m.json")
        tokens = int(replay.input_tokens[kept].sum())
        return Measurement("a tool", path, None, "", len(replay.arrival_s[kept]), 0, None, None, tokens, {}, None)

    def test_the_first_known_ones_where_no_more_were_sent(self) -> None:
        known = random_requests(50)
        sent = requests_of(self.run_of(known, slice(20)), known, "the run's benchmark")
        assert len(sent.replay) == 20
        assert sent.note == "requests of the run's benchmark"

    def test_others_are_refused_where_nobody_knows_them(self) -> None:
        known = random_requests(50)
        with pytest.raises(MeasurementError, match="50 requests were sent, the run's benchmark has 20"):
            requests_of(self.run_of(known), random_requests(20), "the run's benchmark")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("measured again")
    (folder / "study.yaml").write_text(STUDY)
    return load_study(folder / "study.yaml").run(workers=2, run_dir=folder / "run")


def test_other_requests_than_the_run_s_are_taken_from_the_file(result: StudyResult, tmp_path: Path) -> None:
    assert result.recommendation is not None
    replay = random_requests(60, rate_rps=1.0)
    fleet = result.simulation.fleet(result.recommendation.trial.deployment)
    table = simulate_fleet(fleet, replay.compile("random"), seed=result.resolved.study.seed).requests
    verification = verify_run(result, [write_vllm(tmp_path / "v.json", table, rate=1.0)])
    assert "requests as in the file" in verification.measurements[0].notes[0]
    assert verification.diagnosis.error_before < 1e-6


def test_measured_again_the_profile_and_the_recommendation_hold_or_not(
    result: StudyResult, tmp_path: Path, hisearch: Hisearch
) -> None:
    _, _, table = measure(result)
    same = write_guidellm(tmp_path / "same.json", table)
    ran = hisearch("verify", result.run_dir, "--measured", same, "--json", "-q")
    assert ran.code == 0
    assert ran.json["agrees"] is True
    assert ran.json["standing"]["stands"] is True
    assert ran.json["standing"]["terms"][0].keys() >= {"label", "value_s", "bound_s", "holds"}
    # A week later every step takes three times as long: calm enough to be measured, too slow for the study's load.
    calm = np.arange(len(table.arrival_s)) * 3.0
    _, _, slow = measure(result, factors=CorrectionSpec(decode=3.0, prefill=3.0, host=3.0), arrival_s=calm)
    week = write_guidellm(tmp_path / "week.json", slow)
    profile = tmp_path / "corrected.yaml"
    ran = hisearch("verify", result.run_dir, "--measured", week, "--profile", profile, "-q")
    assert ran.code == 97
    assert "The latency profile auto does not hold" in ran.out
    assert "does not stand" in ran.out
    assert "it misses the SLO: " in ran.out
    # Predicted with the corrected profile the measurement is explained, and the recommendation is still too slow.
    again = verify_run(result, [week], profile=profile)
    assert again.agrees
    assert again.profile == "auto-measured"
    assert again.standing is not None
    assert again.standing.stands is False


def test_options_belong_to_a_run_or_to_a_deployment(deployment: Path, tmp_path: Path, hisearch: Hisearch) -> None:
    for words, reason in (
        ((tmp_path, "--trace", "t"), "a run has its own workload"),
        ((tmp_path, "--set", "a=1"), "settings are for a deployment"),
        ((deployment, "--trial", "3"), "a deployment has no trials"),
    ):
        ran = hisearch("verify", *words, "--measured", "x.json", "-q")
        assert ran.code == 2
        assert reason in ran.err
