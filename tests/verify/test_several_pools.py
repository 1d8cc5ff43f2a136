"""``hisearch verify`` of deployments of several pools: disaggregated, and unequal workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hisearch.api.studies.result import StudyResult
from hisearch.api.studies.study import load_study
from hisearch.api.verify import verify_run
from hisearch.search.evaluate.simulation import Simulation
from hisearch.specs.machines.profile import CorrectionSpec
from tests.verify.documents import STUDY, measure, write_guidellm

pytestmark = pytest.mark.slow

DISAGGREGATED = """\
    pools:
      unified: false
      disaggregated: {fabrics: [roce-200], decode_policies: [power_of_two]}
"""


MIXED = """\
    pools:
      unified: false
      mixed: {policies: [power_of_two]}
"""


def run(tmp_path_factory: pytest.TempPathFactory, accelerators: str, pools: str) -> StudyResult:
    folder = tmp_path_factory.mktemp("several")
    text = (
        STUDY.replace("simulations: 20", "simulations: 40")
        .replace("[l40s]", accelerators)
        .replace("    cache: {tiers: []}\n", "    cache: {tiers: []}\n" + pools)
    )
    (folder / "study.yaml").write_text(text)
    return load_study(folder / "study.yaml").run(workers=2, run_dir=folder / "run")


@pytest.fixture(scope="module")
def disaggregated(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    result = run(tmp_path_factory, "[h100-sxm]", DISAGGREGATED)
    assert result.recommendation is not None
    assert [pool.role for pool in result.recommendation.trial.deployment.pools] == ["prefill", "decode"]
    return result


def test_the_model_s_own_figures_need_no_correction(disaggregated: StudyResult, tmp_path: Path) -> None:
    _, _, table = measure(disaggregated)
    verification = verify_run(disaggregated, [write_guidellm(tmp_path / "g.json", table)])
    assert verification.diagnosis.terms == ()
    assert verification.diagnosis.error_before < 1e-6


@pytest.mark.parametrize(
    ("term", "value", "perturbed"),
    [
        ("prefill", 1.4, {"factors": CorrectionSpec(prefill=1.4)}),
        ("decode", 1.5, {"factors": CorrectionSpec(decode=1.5)}),
        ("hand_over", 6.0, {"hand_over": 6.0}),
        ("front_end_s", 0.06, {"front_end_s": 0.06}),
    ],
)
def test_every_term_is_recovered(
    disaggregated: StudyResult, tmp_path: Path, term: str, value: float, perturbed: dict[str, Any]
) -> None:
    _, _, table = measure(disaggregated, **perturbed)
    verification = verify_run(disaggregated, [write_guidellm(tmp_path / "g.json", table)])
    assert verification.diagnosis.terms == (term,)
    assert verification.diagnosis.correction.value(term) == pytest.approx(value, rel=0.02)
    assert len(verification.profiles) == (term != "hand_over")
    assert len(verification.findings) == 1


def test_an_unequal_pool_that_is_slow_is_named_and_has_its_own_profile(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    result = run(tmp_path_factory, "[l40s, h100-sxm]", MIXED)
    mixed = [trial for trial in result.trials if len(trial.deployment.pools) > 1 and trial.feasible]
    # The trial in which most requests come to the slow pool: next to many others its factor is accurate to 10 % only.
    trial = min(
        mixed, key=lambda candidate: sum(p.replicas for p in candidate.deployment.pools if p.accelerator == "h100-sxm")
    )
    slow = next(pool for pool in trial.deployment.pools if pool.accelerator == "l40s")
    factors = {slow.name: CorrectionSpec(host=1.25, prefill=1.25, decode=1.25)}
    _, _, table = measure(result, by_pool=factors, number=trial.number)
    path = write_guidellm(tmp_path / "g.json", table)
    verification = verify_run(result, [path], trial=trial.number)
    assert verification.diagnosis.terms == (f"pool:{slow.name}",)
    factor = verification.diagnosis.correction.value(f"pool:{slow.name}")
    assert factor == pytest.approx(1.25, rel=0.02)
    assert verification.findings == [f"Steps of pool {slow.name} take {factor:.3g} times what the profile says"]
    files = verification.write_profile(tmp_path / "mine.yaml")
    assert {file.name for file in files} == {"mine.yaml", "mine-vllm-l40s.yaml", "mine-vllm-h100-sxm.yaml"}
    chosen = {entry.accelerator: entry.profile for entry in verification.profiles}
    assert chosen["h100-sxm"].corrections == CorrectionSpec()
    again = Simulation(load_study(result.run_dir.parent / "study.yaml", [f"spec.space.profile={files[0]}"]).world())
    for pool in trial.deployment.pools:
        before, after = (simulation.plan(pool).costs.seconds.token_s[1] for simulation in (result.simulation, again))
        assert after == pytest.approx(before * (1.25 if pool is slow else 1.0), rel=0.02)
