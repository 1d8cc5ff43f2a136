"""``hisearch verify`` of deployments whose prompts and outputs are made apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hisearch.api.study import StudyResult, load_study
from hisearch.api.verify import verify_run
from hisearch.specs.profile import CorrectionSpec
from tests.verify.documents import STUDY, measure, write_guidellm

APART = """\
    pools:
      unified: false
      apart: {fabrics: [roce-200], decode_policies: [power_of_two]}
"""


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    folder = tmp_path_factory.mktemp("apart")
    text = STUDY.replace("[l40s]", "[h100-sxm]").replace("    cache: {tiers: []}\n", "    cache: {tiers: []}\n" + APART)
    (folder / "study.yaml").write_text(text)
    result = load_study(folder / "study.yaml").run(workers=2, run_dir=folder / "run")
    assert result.recommendation is not None
    assert [pool.role for pool in result.recommendation.trial.deployment.pools] == ["prefill", "decode"]
    return result


def test_the_model_s_own_figures_need_no_correction(apart: StudyResult, tmp_path: Path) -> None:
    _, _, table = measure(apart)
    found = verify_run(apart, [write_guidellm(tmp_path / "g.json", table)])
    assert found.diagnosis.terms == ()
    assert found.diagnosis.error_before < 1e-6


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
    apart: StudyResult, tmp_path: Path, term: str, value: float, perturbed: dict[str, Any]
) -> None:
    _, _, table = measure(apart, **perturbed)
    found = verify_run(apart, [write_guidellm(tmp_path / "g.json", table)])
    assert found.diagnosis.terms == (term,)
    assert found.diagnosis.correction.value(term) == pytest.approx(value, rel=0.02)
    assert len(found.profiles) == (term != "hand_over")
    assert len(found.findings) == 1
