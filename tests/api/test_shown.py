"""What results look like at a prompt and in a notebook: short, and free of markup from names."""

from __future__ import annotations

from dataclasses import replace

import hisearch as hs
from hisearch.api.deployments.deployment import SimulatedDeployment
from hisearch.api.studies.result import StudyResult
from hisearch.base.shown import Shown


def test_text_and_table_hold_the_same_facts_without_markup() -> None:
    class Example(Shown):
        def facts(self) -> dict[str, str]:
            return {"name": "<b>mine</b>", "price": "$1 & more"}

    assert repr(Example()) == "Example(name: <b>mine</b>, price: $1 & more)"
    table = Example()._repr_html_()
    assert "<b>" not in table
    assert "&lt;b&gt;mine&lt;/b&gt;" in table
    assert "$1 &amp; more" in table


def test_a_simulation_and_its_trace_are_short() -> None:
    simulated = hs.simulate_deployment("qwen3-32b-h100-tp2", "chat-multiturn", slo="interactive-chat")
    text = repr(simulated)
    assert text.startswith("SimulatedDeployment(deployment: ")
    assert f"{simulated.metrics['ttft_p99_s']:.3g} s" in text
    assert f"SLO: {'met' if simulated.feasible else 'missed'}" in text
    assert len(text) < 400
    assert len(repr(simulated.trace)) < 200
    assert isinstance(simulated, SimulatedDeployment)


def test_a_study_and_its_result_say_what_is_recommended(result: StudyResult) -> None:
    assert result.recommendation is not None
    trial = result.recommendation.trial
    for shown in (result, result.recommendation, trial):
        assert f"${trial.metrics['usd_per_hour']:,.2f} per hour" in repr(shown)
        assert len(repr(shown)) < 1200
        assert "<table>" in shown._repr_html_()
    assert f"{len(result.trials):,}," in repr(result)
    missed = replace(result, outcome=replace(result.outcome, recommendation=None))
    assert "recommendation: none: " in repr(missed)
