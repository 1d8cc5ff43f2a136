"""``hisearch verify`` finds the perturbation that a measurement was made under."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.api.verification import Verification
from hisearch.api.verify import verify_run
from hisearch.calibrate.writing import profile_yaml
from hisearch.latency.corrections import corrected, read_seconds
from hisearch.search.evaluate.simulation import Simulation
from hisearch.simulate.engine import simulate_fleet
from hisearch.specs.deployments.routing import RouterSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.profile import CorrectionSpec, LatencyProfileSpec
from hisearch.traces.importers import read_measurements
from hisearch.verify.cases import Case
from hisearch.verify.correction_search import CorrectionSearch
from hisearch.verify.prediction import JITTER_S, Correction, Predictor
from tests.cli.conftest import Hisearch
from tests.verify.documents import STUDY, measure, write_guidellm, write_sglang, write_vllm

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("verify")
    (folder / "study.yaml").write_text(STUDY)
    return load_study(folder / "study.yaml").run(workers=2, run_dir=folder / "run")


@pytest.fixture(scope="module")
def slow_decode(result: StudyResult, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Verification]:
    """A measurement with decode at 1.5 times the model's, and its verification."""
    _, _, table = measure(result, factors=CorrectionSpec(decode=1.5))
    path = write_guidellm(tmp_path_factory.mktemp("decode") / "g.json", table)
    return path, verify_run(result, [path])


def test_the_model_s_own_figures_need_no_correction(result: StudyResult, tmp_path: Path) -> None:
    _, _, table = measure(result)
    verification = verify_run(result, [write_guidellm(tmp_path / "g.json", table)])
    assert verification.diagnosis.terms == ()
    assert verification.diagnosis.error_before < 1e-6
    assert verification.agrees
    assert verification.profiles == ()
    (comparison,) = verification.measurements
    assert {row.figure for row in comparison.rows} >= {"ttft_p99_s", "tpot_mean_s", "e2e_p50_s", "output_tokens_per_s"}
    assert all(abs(row.error) < 1e-6 for row in comparison.rows)
    with pytest.raises(ValueError, match="there is no profile to write"):
        verification.write_profile(tmp_path / "p.yaml")


def test_slow_decode_is_found_and_cross_checked(slow_decode: tuple[Path, Verification]) -> None:
    _, verification = slow_decode
    # The slowed deployment is near saturation, where a little queueing looks like a slow front end.
    assert verification.diagnosis.terms[0] == "decode"
    assert set(verification.diagnosis.terms) <= {"decode", "front_end_s"}
    assert verification.diagnosis.correction.front_end_s < 0.05
    assert verification.diagnosis.correction.decode == pytest.approx(1.5, rel=0.02)
    assert not verification.agrees
    assert verification.diagnosis.error_before > 0.3
    assert verification.diagnosis.error_after < 0.03
    assert verification.cross_check is not None
    assert verification.cross_check.error_after < 0.25 * verification.cross_check.error_before
    assert verification.diagnosis.alone[0].name == "decode"
    factor = verification.diagnosis.correction.decode
    assert f"Decode (reading weights and KV) takes {factor:.3g} times" in verification.findings[0]


def test_beyond_the_limit_values_come_with_a_warning(slow_decode: tuple[Path, Verification]) -> None:
    _, verification = slow_decode
    assert verification.overloads == []
    beyond = replace(verification, measurements=[replace(verification.measurements[0], growing_wait=(0.2, 9.1))])
    (said,) = beyond.overloads
    assert "median TTFT 0.2 s in the first quarter, 9.1 s in the last" in said
    assert "as a direction, not as a value, and measure at a lower load" in said
    assert beyond.to_dict()["overloads"] == [said]


@pytest.mark.parametrize(
    ("terms", "perturbed", "rel"),
    [
        (("prefill",), {"factors": CorrectionSpec(prefill=1.6)}, 0.03),
        (("front_end_s",), {"front_end_s": 0.06}, 0.05),
        (("hits_lost",), {"hits_lost": 0.6}, 0.2),
    ],
)
def test_every_term_is_recovered(
    result: StudyResult, tmp_path: Path, terms: tuple[str, ...], perturbed: dict[str, Any], rel: float
) -> None:
    _, _, table = measure(result, **perturbed)
    diagnosis = verify_run(result, [write_vllm(tmp_path / "v.json", table, rate="inf")]).diagnosis
    assert set(diagnosis.terms) == set(terms)
    factors = perturbed.get("factors", CorrectionSpec())
    expected = {
        "prefill": factors.prefill, "decode": factors.decode,
        "front_end_s": perturbed.get("front_end_s"), "hits_lost": perturbed.get("hits_lost"),
    }  # fmt: skip
    for term in terms:
        assert getattr(diagnosis.correction, term) == pytest.approx(expected[term], rel=rel)


def test_near_saturation_a_slow_decode_is_no_lost_hits(result: StudyResult, tmp_path: Path) -> None:
    """Times in the file are a client's, up to 5 ms from those at which requests arrived: queues then differ by luck."""
    replay, _, _ = measure(result)
    late_s = np.random.default_rng(11).uniform(0.0, 0.005, len(replay))
    _, _, table = measure(result, factors=CorrectionSpec(decode=1.25), arrival_s=replay.arrival_s + late_s)
    shown = replace(table, arrival_s=replay.arrival_s + table.front_end_s)
    diagnosis = verify_run(result, [write_guidellm(tmp_path / "g.json", shown)]).diagnosis
    assert diagnosis.terms[0] == "decode"
    assert diagnosis.correction.decode == pytest.approx(1.25, rel=0.05)
    assert diagnosis.correction.hits_lost == 0.0
    assert diagnosis.steps_before is not None
    assert diagnosis.steps_after is not None
    assert diagnosis.steps_after < 0.4 * diagnosis.steps_before


def test_which_worker_serves_a_request_is_luck(result: StudyResult, tmp_path: Path) -> None:
    """With several workers behind a router, a shift of a few milliseconds changes which requests share a step."""
    replay, _, table = measure(result)
    assert result.recommendation is not None
    (measurement,) = read_measurements(write_guidellm(tmp_path / "g.json", table))
    deployment = result.recommendation.trial.deployment
    router, predictors = RouterSpec(policy="least_outstanding_tokens"), {}
    for workers in (1, 3):
        pools = [pool.model_copy(update={"replicas": workers}) for pool in deployment.pools]
        fleet = result.simulation.fleet(deployment.model_copy(update={"pools": pools, "router": router}))
        predictors[workers] = Predictor(measurement, replay, fleet, partial(simulate_fleet, seed=1))
    assert predictors[1].placing().steps == (0.0, 0.0)
    assert predictors[1].placing().figures == predictors[1](Correction()).figures
    middle, spread = predictors[3].placing().steps
    assert 0.0 <= middle < 0.02 < spread
    # What the other placing would have measured is explained, whichever worker the model says.
    late_s = np.random.default_rng(3).uniform(0.0, JITTER_S, len(replay))
    placed = simulate_fleet(predictors[3]._plan, replay.compile("late", replay.arrival_s + late_s), seed=1).requests
    (late,) = read_measurements(write_guidellm(tmp_path / "late.json", placed))
    case = Case(late, Predictor(late, replay, predictors[3]._plan, partial(simulate_fleet, seed=1)))
    counted, left = (case.steps_error(Correction(), but_for_luck=on) for on in (False, True))
    assert counted is not None
    assert left is not None
    assert left < 0.5 * counted


def test_requests_that_were_never_sent_take_no_place(result: StudyResult, tmp_path: Path) -> None:
    path = write_guidellm(tmp_path / "g.json", measure(result)[2])
    document = json.loads(path.read_text())
    document["benchmarks"][0]["requests"]["incomplete"] = [{"request_start_time": None, "request_latency": None}]
    path.write_text(json.dumps(document))
    (measurement,) = read_measurements(path)
    assert (measurement.sent, measurement.failed) == (400, 0)


class _Left(CorrectionSearch):
    """Leaves the given errors."""

    def __init__(self, lefts: dict[tuple[str, ...], tuple[float, float]]) -> None:
        self._lefts = lefts

    def left(self, variables: Mapping[str, float], choice: int = 0) -> tuple[float, float]:
        return self._lefts[tuple(variables)]

    def luck(self, variables: Mapping[str, float]) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("before", "after", "worth"),
    [
        ((0.08, 0.11), (0.02, 0.11), True),  # a front end's wait, with noise between tokens
        ((0.08, 0.11), (0.05, 0.11), False),  # neither half of the figures nor a fifth of all
        ((0.08, 0.11), (0.02, 0.13), False),  # the step times pay for it
        ((0.025, 0.11), (0.01, 0.11), False),  # the figures were explained
        ((0.08, 0.0), (0.05, 0.0), True),
    ],
)
def test_noise_in_step_times_says_nothing_against_a_term_of_the_figures(
    before: tuple[float, float], after: tuple[float, float], worth: bool
) -> None:
    assert _Left({(): before, ("front_end_s",): after}).is_worth({}, {"front_end_s": 0.3}) == worth


def test_host_work_that_looks_like_decode_is_named_as_an_alternative(result: StudyResult, tmp_path: Path) -> None:
    _, _, table = measure(result, factors=CorrectionSpec(host=6.0))
    diagnosis = verify_run(result, [write_guidellm(tmp_path / "g.json", table)]).diagnosis
    assert "host" in {*diagnosis.terms, *(other.name for other in diagnosis.alternatives)}


def test_a_summary_alone_is_enough(result: StudyResult, tmp_path: Path) -> None:
    """sglang.bench_serving without details: arrivals are another draw of the same Poisson process."""
    replay, _, _ = measure(result)
    # From half of the load on, decode as slow as this saturates the workers, and lost hits are diagnosed instead.
    rate = 0.45 * replay.rate_rps
    times = np.cumsum(np.random.default_rng(3).exponential(1 / rate, len(replay)))
    _, _, table = measure(result, factors=CorrectionSpec(decode=1.6), arrival_s=times - times[0])
    path = write_sglang(tmp_path / "s.jsonl", table, rate=rate)
    verification = verify_run(result, [path])
    assert verification.diagnosis.terms[0] == "decode"
    assert verification.diagnosis.correction.decode == pytest.approx(1.6, rel=0.1)
    assert verification.cross_check is None


def test_two_measurements_check_each_other(result: StudyResult, tmp_path: Path) -> None:
    _, _, table = measure(result, factors=CorrectionSpec(prefill=1.3))
    half = np.arange(len(table.arrival_s)) / 3.0
    _, _, calmer = measure(result, factors=CorrectionSpec(prefill=1.3), arrival_s=half)
    files = [write_guidellm(tmp_path / "g.json", table), write_vllm(tmp_path / "v.json", calmer, rate=3.0)]
    verification = verify_run(result, files)
    assert [measurement.tool for measurement in verification.measurements] == ["guidellm", "vllm bench serve"]
    assert verification.diagnosis.correction.prefill == pytest.approx(1.3, rel=0.05)
    assert verification.cross_check is not None
    assert verification.cross_check.how.startswith("each of 2 measurements")
    assert verification.cross_check.error_after < 0.05


def test_the_recalibrated_profile_predicts_what_was_measured(
    result: StudyResult, slow_decode: tuple[Path, Verification], tmp_path: Path
) -> None:
    _, verification = slow_decode
    assert verification.write_profile(tmp_path / "p.yaml") == [tmp_path / "p.yaml"]
    document = Catalogue().get("LatencyProfile", str(tmp_path / "p.yaml"))
    profile = document.spec
    assert isinstance(profile, LatencyProfileSpec)
    assert profile.evidence == "fitted"
    assert profile.corrections is not None
    assert verification.cross_check is not None
    assert profile.relative_error == pytest.approx(max(verification.cross_check.error_after, 0.01), abs=1e-3)
    assert "g.json" in profile.provenance.source
    settings = [f"spec.space.profile={tmp_path / 'p.yaml'}"]
    again = Simulation(load_study(result.run_dir.parent / "study.yaml", settings).world())
    assert result.recommendation is not None
    deployment = result.recommendation.trial.deployment
    plans = [simulation.plan(deployment.pool).costs.seconds for simulation in (result.simulation, again)]
    expected = corrected(result.simulation.plan(deployment.pool).costs, profile.corrections).seconds
    np.testing.assert_array_equal(plans[1].token_s, expected.token_s)
    assert plans[1].token_s[1] == pytest.approx(1.5 * plans[0].token_s[1], rel=0.02)


def test_corrections_are_the_stated_formula(result: StudyResult) -> None:
    assert result.recommendation is not None
    costs = result.simulation.plan(result.recommendation.trial.deployment.pool).costs
    assert corrected(costs, None) is costs
    assert corrected(costs, CorrectionSpec()) is costs
    before = costs.seconds
    after = corrected(costs, CorrectionSpec(host=2.0, prefill=3.0, decode=5.0)).seconds
    assert after.host_s == 2 * before.host_s
    assert after.token_s[0] == before.token_s[0] == 0
    assert after.token_s[1] == 5 * before.token_s[1]
    read_s = read_seconds(before.token_s)
    np.testing.assert_allclose(after.token_s[1:], 5 * read_s + 3 * (before.token_s[1:] - read_s))
    assert before.token_s[1] == read_s[0] <= read_s[99] < 1.05 * read_s[0]
    np.testing.assert_allclose(after.chunk_rate, 3 * before.chunk_rate)
    np.testing.assert_allclose(after.decode_s, 5 * before.decode_s)
    np.testing.assert_allclose(after.sequence_s, 5 * before.sequence_s)


def test_the_command(
    hisearch: Hisearch,
    result: StudyResult,
    slow_decode: tuple[Path, Verification],
    tmp_path: Path,
) -> None:
    path, _ = slow_decode
    target = tmp_path / "p.yaml"
    ran = hisearch("verify", result.run_dir, "--measured", path, "--profile", target, "-q")
    assert ran.code == 98
    for expected in ("What is off", "Decode (reading weights and KV) takes", "Cross-checked", "Each term alone"):
        assert expected in ran.out
    assert yaml.safe_load(target.read_text())["spec"]["corrections"]["decode"] == pytest.approx(1.5, rel=0.02)
    refused = hisearch("verify", result.run_dir, "--measured", path, "--profile", target, "-q")
    assert (refused.code, "p.yaml" in refused.err) == (1, True)
    data = hisearch("verify", result.run_dir, "--measured", path, "--json", "-q")
    assert data.code == 98
    assert data.json["diagnosis"]["terms"][0] == "decode"
    assert data.json["measurements"][0]["rows"][0].keys() == {
        "figure", "measured", "predicted", "error", "corrected", "corrected_error",
    }  # fmt: skip
    assert data.json["recalibrated"] is True
    assert data.json["profile_path"] is None


def test_what_cannot_be_compared_is_refused(result: StudyResult, tmp_path: Path) -> None:
    _, _, table = measure(result)
    path = write_vllm(tmp_path / "v.json", table, rate=2.0, detailed=False)
    data = json.loads(path.read_text())
    for changed, reason in (
        ({"total_input_tokens": 100}, "these are other requests"),
        ({"max_concurrency": 8}, "max_concurrency: the client held requests back"),
        ({"num_prompts": 5000}, "5,000 requests were sent, the run's benchmark has 400"),
        ({"request_throughput": None}, "request_throughput: expected a number of at least 0, got None"),
        ({"completed": 0}, "completed: no request succeeded"),
        ({"mean_ttft_ms": -5.0}, "mean_ttft_ms: expected a number of at least 0, got -5.0"),
    ):
        path.write_text(json.dumps(data | changed))
        with pytest.raises(ValueError, match=reason):
            verify_run(result, [path])
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="no trial 999"):
        verify_run(result, [path], trial=999)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("ttfts", math.nan, r"ttfts\[0\]: expected a number of at least 0, got nan"),
        ("ttfts", None, r"ttfts\[0\]: expected a number of at least 0, got None"),
        ("input_lens", -1, r"input_lens\[0\]: expected a number of at least 0, got -1"),
        ("itls", 3, r"itls\[0\]: expected a list, got 3"),
        ("itls", ["a"], r"itls\[0\]\[0\]: expected a number of at least 0, got 'a'"),
        ("start_times", "now", r"start_times\[0\]: expected a number of at least 0, got 'now'"),
    ],
)
def test_details_that_are_no_numbers_are_refused_where_a_request_succeeded(
    result: StudyResult, tmp_path: Path, key: str, value: Any, reason: str
) -> None:
    _, _, table = measure(result)
    path = write_vllm(tmp_path / "v.json", table, rate="trace")
    data = json.loads(path.read_text())
    if key == "start_times":
        data.setdefault(key, [0.0] * len(data["ttfts"]))
    data[key][0] = value
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match=reason):
        read_measurements(path)
    data["errors"][0], data["output_lens"][0] = "timed out", 0
    path.write_text(json.dumps(data))
    (measured,) = read_measurements(path)
    assert measured.requests is not None
    assert len(measured.requests.ttft_s) == len(data["ttfts"]) - 1


def test_text_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "v.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(ValueError, match=r"v\.json: expected UTF-8 text"):
        read_measurements(tmp_path / "v.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty: the benchmark wrote nothing"),
        ("[1]", "expected a JSON object, got 1"),
        ('{"a": 1}', "expected results of AIPerf, guidellm, .*; its fields are a"),
        ('{"sharegpt_output_len": null, "request_rate": 1}\n{', "x:2: expected a JSON object"),
        ('{"benchmarks": []}', "benchmarks: expected at least one"),
        ('{"benchmarks": [{"requests": {"successful": [{}]}}]}', "request_start_time"),
    ],
)
def test_files_that_are_no_benchmark_s(result: StudyResult, tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(ValueError, match=reason):
        verify_run(result, [tmp_path / "x"])


def test_a_profile_without_corrections_is_written_without_them(result: StudyResult) -> None:
    assert "corrections" not in profile_yaml("n", "d", result.resolved.profile.spec)
