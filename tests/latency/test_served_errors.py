"""Errors of served runs: laws between and beyond their quantiles, whose they are, and what draws make of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from latency_catalogue import LLAMA_8B
from scipy.special import ndtr, ndtri

from hisearch.latency import served_errors as module
from hisearch.latency.estimator import build_estimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.served_errors import (
    SCORES,
    SHARES,
    EngineErrors,
    ErrorLaw,
    ServedErrors,
    plain_name,
    served_errors,
)
from hisearch.latency.sharding import Parallelism
from hisearch.search.confidence.uncertainty import REGIMES, deviations, factors_of, normal_draws, with_factors
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from tests.kernels.systems import compiled_costs

CATALOGUE = Catalogue(shipped_root())
LOGS = st.lists(st.floats(-2.0, 2.0), min_size=5, max_size=5).map(lambda logs: tuple(sorted(logs)))
LAWS = LOGS.map(lambda logs: ErrorLaw(logs=logs, runs=100))
#: With tails heavier than those of the normal law through its quartiles, and off in the median.
HEAVY = ErrorLaw(logs=(-0.9, -0.1, 0.05, 0.2, 0.6), runs=100)
WIDE = ErrorLaw(logs=(-1.5, -0.4, -0.1, 0.2, 0.7), runs=100)
NARROW = ErrorLaw(logs=(-0.2, -0.08, 0.0, 0.08, 0.2), runs=100)


class TestLaw:
    def test_scores_are_those_of_the_shares(self) -> None:
        assert ndtri(SHARES) == pytest.approx(SCORES, abs=1e-6)

    @given(law=LAWS)
    def test_it_goes_through_its_quantiles(self, law: ErrorLaw) -> None:
        assert [law.at(score) for score in SCORES] == pytest.approx(law.logs)

    @given(law=LAWS, score=st.floats(-6.0, 6.0), more=st.floats(0.0, 6.0))
    def test_it_rises_with_the_score(self, law: ErrorLaw, score: float, more: float) -> None:
        assert law.at(score) <= law.at(score + more) + 1e-12

    @given(law=LAWS, beyond=st.floats(0.0, 5.0))
    def test_beyond_its_quantiles_the_outermost_slopes_go_on(self, law: ErrorLaw, beyond: float) -> None:
        step = SCORES[4] - SCORES[3]
        low, high = (law.logs[1] - law.logs[0]) / step, (law.logs[4] - law.logs[3]) / step
        assert law.at(SCORES[0] - beyond) == pytest.approx(law.logs[0] - beyond * low, abs=1e-9)
        assert law.at(SCORES[4] + beyond) == pytest.approx(law.logs[4] + beyond * high, abs=1e-9)

    @given(law=LAWS, simulated=st.floats(1e-3, 1e3), score=st.floats(-4.0, 4.0))
    def test_what_is_measured_has_the_error_at_the_opposite_score(
        self, law: ErrorLaw, simulated: float, score: float
    ) -> None:
        """The longest times are measured where the simulation was too short by most."""
        measured = law.measured(simulated, score)
        assert math.log(simulated / measured) == pytest.approx(law.at(-score), abs=1e-9)
        assert law.measured(simulated, score + 0.5) >= measured * (1 - 1e-12)

    def test_of_runs_drawn_from_it_as_many_lie_within_as_it_says(self) -> None:
        scores = np.random.default_rng(0).normal(size=4000)
        measured = np.array([HEAVY.measured(2.0, score) for score in scores])
        for share in (*SHARES, 0.005, 0.995):
            below = (measured <= HEAVY.measured(2.0, float(ndtri(share)))).mean()
            assert below == pytest.approx(share, abs=0.03)

    @given(logs=LOGS)
    def test_a_width_is_between_the_outermost(self, logs: tuple[float, ...]) -> None:
        law = ErrorLaw(logs=logs, runs=1)  # type: ignore[arg-type]
        assert law.width == max(logs) - min(logs)

    def test_the_median_error_of_a_normal_law_is_that_of_its_quartiles(self) -> None:
        assert NARROW.median_error == pytest.approx(math.expm1(0.08))
        biased = ErrorLaw(logs=(0.3, 0.45, 0.5, 0.55, 0.6), runs=1)
        assert biased.median_error == pytest.approx(math.expm1(0.5))


def engine_errors(situations: Mapping[str, float], **fields: Sequence[str]) -> EngineErrors:
    """Errors by situation, each the wider the larger its number."""
    none = {"logs": [0.0] * 5, "runs": 20}
    laws = {
        name: {"ttft": {"logs": [-w, -w / 2, 0.0, w / 2, w], "runs": 20}, "step": none, "prompts": none}
        for name, w in situations.items()
    }
    named = {"accelerators": ["h100-sxm"], "models": ["llama-3.1-8b"]} | fields
    return EngineErrors.model_validate(named | {"situations": laws})


class TestSituations:
    ALL: Mapping[str, float] = {"campaign": 0.1, "model": 0.2, "accelerator": 0.3}

    @pytest.mark.parametrize(
        ("accelerator", "model", "situation"),
        [
            ("h100-sxm", "llama-3.1-8b", "campaign"),
            ("h100-sxm", "another", "model"),
            ("b200", "llama-3.1-8b", "accelerator"),
            (None, "llama-3.1-8b", "accelerator"),
            ("b200", "another", "accelerator"),
        ],
    )
    def test_what_is_new_about_a_deployment_says_which(
        self, monkeypatch: pytest.MonkeyPatch, accelerator: str | None, model: str, situation: str
    ) -> None:
        monkeypatch.setattr(module, "_read", lambda: {"vllm": engine_errors(self.ALL)})
        errors = served_errors("vllm", accelerator, model)
        assert errors is not None
        assert errors.situation == situation
        assert errors.ttft.logs[-1] == self.ALL[situation]

    def test_of_two_that_are_new_the_wider_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wider = engine_errors({**self.ALL, "model": 0.9})
        monkeypatch.setattr(module, "_read", lambda: {"vllm": wider})
        errors = served_errors("vllm", "b200", "another")
        assert errors is not None
        assert errors.situation == "model"

    @pytest.mark.parametrize(
        ("tried", "situation", "expected"),
        [
            (("campaign",), "model", "campaign"),
            (("campaign", "model"), "model", "model"),
            (("model",), "accelerator", "model"),
            (("accelerator",), "campaign", "accelerator"),
        ],
    )
    def test_one_that_was_not_tried_takes_the_one_next_to_it(
        self, tried: Sequence[str], situation: module.Situation, expected: str
    ) -> None:
        assert engine_errors(dict.fromkeys(tried, 0.1)).of(situation).situation == expected

    def test_of_an_engine_that_nobody_measured_nothing_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "_read", lambda: {"vllm": engine_errors(self.ALL)})
        assert served_errors("trtllm", "h100-sxm", "llama-3.1-8b") is None

    def test_of_an_engine_with_too_few_runs_nothing_is_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As ``report.error_laws`` writes it."""
        monkeypatch.setattr(module, "_read", lambda: {"vllm": engine_errors({})})
        assert served_errors("vllm", "h100-sxm", "llama-3.1-8b") is None

    def test_without_a_file_nothing_is_known(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name, laws in (
            ("none.yaml", None),
            ("one.yaml", {"vllm": engine_errors(self.ALL).model_dump(mode="json")}),
        ):
            if laws is not None:
                (tmp_path / name).write_text(yaml.safe_dump(laws))
            monkeypatch.setattr(module, "FILE", tmp_path / name)
            module._read.cache_clear()
            try:
                assert (served_errors("vllm", "h100-sxm", "llama-3.1-8b") is None) == (laws is None)
            finally:
                module._read.cache_clear()

    @pytest.mark.parametrize(
        ("name", "plain"),
        [
            ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
            ("Qwen/Qwen3-235B-A22B-FP8", "qwen3-235b-a22b"),
            ("somebody/Model-Instruct-FP8", "model"),
            ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ],
    )
    def test_checkpoints_of_a_model_have_one_name(self, name: str, plain: str) -> None:
        assert plain_name(name) == plain

    def test_they_are_said_in_factors_of_the_simulated_means(self) -> None:
        said = str(ServedErrors("model", HEAVY, NARROW, NARROW))
        assert said.startswith("Served runs of models that the fit had not: 90 % had TTFT ")
        low, high = (f"{HEAVY.measured(1.0, score):.2f}" for score in (-1.6448536, 1.6448536))
        assert f"TTFT {low} to {high} times and TPOT " in said
        assert said.endswith(" the simulated mean.")

    def test_compiled_costs_have_those_of_their_engine_accelerator_and_model(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_read", lambda: {"vllm": engine_errors(self.ALL)})
        for name, situation in (("h100-sxm", "campaign"), ("h200", "accelerator")):
            profile = CATALOGUE.get("LatencyProfile", f"vllm-{name}").spec
            accelerator = CATALOGUE.get("Accelerator", name).spec
            priced = PricedWorker(
                LLAMA_8B, accelerator, Parallelism(), None, "bf16", EngineSpec(name="vllm"), 256, 16, 10_000
            )
            served = build_estimator("mine", profile).compile(priced).served
            assert served is not None
            assert served.situation == situation


class TestDraws:
    COSTS = replace(compiled_costs(), relative_error=0.3, served=ServedErrors("campaign", WIDE, NARROW, HEAVY))
    DEVICE = tuple(regime for regime in REGIMES if regime != "host")

    def test_the_middle_of_the_draws_is_the_median_of_the_law(self) -> None:
        factors = factors_of(self.COSTS, np.array([0.0, 0.0, 0.0, 0.0, 1.0]), 0.5)
        assert factors["prefill"] == pytest.approx(math.exp(-0.05))
        assert factors["decode"] == factors["mixed"] == pytest.approx(1.0)

    def test_no_draw_leaves_step_times_as_they_are(self) -> None:
        assert factors_of(self.COSTS, np.zeros(5), 0.5) == dict.fromkeys(REGIMES, 1.0)

    @pytest.mark.parametrize("correlation", [0.0, 0.5, 1.0])
    def test_as_many_draws_lie_within_as_the_laws_say(self, correlation: float) -> None:
        drawn = [factors_of(self.COSTS, z, correlation) for z in normal_draws(4096, 0)]
        for regime, law in (("prefill", HEAVY), ("decode", NARROW), ("mixed", NARROW)):
            regime_factors = np.array([factors[regime] for factors in drawn])
            assert -np.log(np.quantile(regime_factors, SHARES))[::-1] == pytest.approx(law.logs, abs=0.03)

    @pytest.mark.parametrize("correlation", [0.0, 0.5])
    def test_ttft_errs_as_measured_where_prompts_alone_decide_it(self, correlation: float) -> None:
        """And prompts' part of it makes steps slower, the rest no step."""
        drawn = [factors_of(self.COSTS, z, correlation) for z in normal_draws(4096, 0)]
        ttft = np.array([factors["prefill"] * factors["ttft"] for factors in drawn])
        assert -np.log(np.quantile(ttft, SHARES))[::-1] == pytest.approx(WIDE.logs, abs=0.05)
        costs = with_factors(self.COSTS, {"prefill": 1.2, "ttft": 1.5})
        assert costs.front_end.ttft_factor == 1.5
        np.testing.assert_array_equal(
            costs.seconds.chunk_rate, with_factors(self.COSTS, {"prefill": 1.2}).seconds.chunk_rate
        )

    def test_tails_are_as_heavy_as_they_were(self) -> None:
        """Far beyond the normal law that goes through the quartiles."""
        normal = np.zeros((2, 5))
        normal[:, 0] = -3.0, 3.0
        low, high = (factors_of(self.COSTS, z, 1.0)["prefill"] for z in normal)
        quartiles = 0.3 / (SCORES[3] - SCORES[1])
        assert high > math.exp(-0.05 + 3.0 * quartiles) * 2
        assert low < math.exp(-0.05 - 3.0 * quartiles)
        assert float(ndtr(3.0)) > SHARES[-1]

    @given(st.lists(st.floats(-4.0, 4.0), min_size=5, max_size=5), st.floats(0.0, 1.0))
    def test_host_work_and_engines_without_laws_keep_the_normal_one(
        self, drawn: list[float], correlation: float
    ) -> None:
        normal, plain = np.array(drawn), replace(self.COSTS, served=None)
        sigma = math.log1p(0.3) / 0.6744897501960817
        assert deviations(plain) == pytest.approx(dict.fromkeys(REGIMES, sigma))
        factors = factors_of(plain, normal, correlation)
        for place, regime in enumerate(self.DEVICE, start=1):
            z = math.sqrt(correlation) * normal[0] + math.sqrt(1 - correlation) * normal[place]
            assert factors[regime] == pytest.approx(math.exp(sigma * z))
        assert factors["host"] == pytest.approx(math.exp(sigma * normal[4]))
        assert factors_of(self.COSTS, normal, correlation)["host"] == factors["host"]
