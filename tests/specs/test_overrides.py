from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.specs.documents.resolve import load_deployment, load_study
from tests.specs.files import refusal


def test_a_setting_replaces_a_value_and_makes_sections_on_the_way(project: Path) -> None:
    study = load_study(
        "mine", ["spec.budget.simulations=7", "spec.objectives=[tpot_p50, goodput]", "spec.objectives.0=e2e_p99"]
    )
    assert study.study.budget.simulations == 7
    assert study.study.objectives == ["e2e_p99", "goodput"]
    assert study.overrides[0] == "spec.budget.simulations=7"


def test_settings_may_come_from_an_iterator(project: Path) -> None:
    study = load_study("mine", iter(["spec.seed=3"]))
    assert study.study.seed == 3
    assert study.overrides == ("spec.seed=3",)


def test_a_setting_reaches_into_lists() -> None:
    deployment = load_deployment("qwen3-32b-h100-tp2", ["spec.pools.0.engine.chunk_tokens=4096"])
    assert deployment.deployment.pool.engine.chunk_tokens == 4096


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("spec.seed", "(--set spec.seed): expected KEY=VALUE, for example spec.budget.simulations=500"),
        ("=3", "expected KEY=VALUE"),
        ("spec..seed=3", "expected KEY=VALUE"),
        ("spec.seed=[1", "not YAML"),
        (
            "spec.budget.simulatons=5",
            "spec.budget.simulatons: spec.budget has no key 'simulatons'; did you mean 'simulations'? "
            "known: simulations, seconds",
        ),
        ("sepc.seed=5", "the document has no key 'sepc'; did you mean 'spec'? known: apiVersion, kind, metadata, spec"),
        ("spec.slo.terms=5", "spec.slo is text 'interactive-chat', which has no key 'terms'"),
        ("spec.seed=1.5", "studies/mine.yaml (--set spec.seed=1.5): spec.seed: expected an integer, got 1.5"),
        ("spec.seed=-1", "spec.seed: must be at least 0, got -1"),
        ("spec.slo=foo", "studies/mine.yaml (--set spec.slo=foo): spec.slo: no SLO named 'foo'; known: "),
        (
            "spec.budget={simulations: x}",
            "(--set spec.budget={simulations: x}): spec.budget.simulations: expected an integer",
        ),
    ],
)
def test_a_setting_that_cannot_be_applied_is_refused(project: Path, setting: str, message: str) -> None:
    assert message in refusal("studies/mine.yaml", setting)


def test_an_index_beyond_a_list_is_refused(project: Path) -> None:
    settings = "spec.objectives=[goodput, ttft_p50]", "spec.objectives.2=e2e_p50"
    message = "spec.objectives is a list and has no entry '2'; expected an index from 0 to 1"
    assert message in refusal("studies/mine.yaml", *settings)


def test_the_file_is_left_alone(project: Path) -> None:
    before = (project / "studies/mine.yaml").read_bytes()
    load_study("mine", ["spec.seed=3"])
    assert (project / "studies/mine.yaml").read_bytes() == before
    assert load_study("mine").study.seed == 0
