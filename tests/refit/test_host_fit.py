"""The fit of host work: made-up runs with a known law, what is left out, error laws, files and the command."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.latency.served_errors import SHARES, EngineErrors
from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.machines.host import RANGES, HostTimes
from hisearch.validate.silicon.conditions import conditions_of
from hisearch.validate.silicon.pricing import EngineTimes, Pricer
from hisearch.validate.silicon.report import START_UP
from hisearch.validate.silicon.rows import read_rows
from refit import hosts
from refit.host_fit.cases import (
    OF_LAWS,
    OF_TABLES,
    OPEN_LOOP,
    closed_loop_cases,
    open_loop_cases,
    served_cases,
    starts_cold,
)
from refit.host_fit.fit import (
    ALL,
    CONSTANTS,
    HIGH,
    LOW,
    MEAN,
    MEASURED,
    PRIORS,
    VERSION_CASES,
    HostFit,
    fit,
    times_of,
    vector_of,
    version_groups,
    workers,
)
from refit.host_fit.leave_out import KEYS, LeftOut, leave_out
from refit.host_fit.prompts import PromptWeights
from refit.host_fit.report import (
    LEAST_RUNS,
    by_group,
    coverage,
    error_laws,
    summary,
    widened,
    write_constants,
)
from refit.host_fit.run import fit_hosts, write_judged
from tests.refit.test_command import call
from tests.validate.test_e2e import request, write_case
from tests.validate.test_open_loop import write_folder
from tests.validate.test_silicon import only_row, write

#: All of them off what is known beforehand, each by less than two of its standard deviations.
TRUE = {
    "step_s": 0.5e-3, "kernel_s": 1e-6, "per_sequence_s": 8e-6, "schedule_s": 1.2e-3, "launch_s": 30e-6,
    "request_s": 9e-3, "prompt_token_s": 3.5e-6,
}  # fmt: skip
TRUTH = HostTimes(**MEASURED, **TRUE)


@dataclass(frozen=True)
class MadeUp:
    """A run with a simple law: a step of ``sequences`` and ``kernels``, after a prompt of ``tokens``.

    factor: by how much its campaign measured more than ``truth`` says.
    """

    device_s: float
    tokens: int
    sequences: int
    kernels: int
    engine: str = "vllm"
    version: str = "1.0"
    campaign: str = "a"
    gpu: str = "one"
    model: str = "small"
    truth: HostTimes = TRUTH
    factor: float = 1.0
    counts: tuple[bool, bool] = (True, True)
    scale: tuple[float, float] = OF_LAWS
    kind: str = OPEN_LOOP
    prompts: PromptWeights | None = None

    def figures(self, times: HostTimes) -> np.ndarray:
        host_s = times.step_s + self.kernels * times.kernel_s + self.sequences * times.per_sequence_s
        step_s = max(self.device_s + host_s, times.schedule_s + times.schedule_sequence_s * self.sequences)
        prompt_s = max(self.device_s * self.tokens / 200, times.schedule_s + self.kernels * times.launch_s)
        return np.array([times.request_s + self.tokens * times.prompt_token_s + prompt_s, step_s])

    def errors(self, times: HostTimes) -> np.ndarray:
        return np.log(self.figures(times) / (self.factor * self.figures(self.truth)))


def made_up(count: int, seed: int = 0, **fields: Any) -> list[MadeUp]:
    """Runs of all sizes, of several GPUs and models."""
    rng = np.random.default_rng(seed)
    return [
        MadeUp(
            float(rng.choice([2e-4, 5e-4, 2e-3, 1e-2])),
            int(rng.choice([16, 500, 5000, 30000])),
            int(rng.choice([1, 8, 64, 256])),
            int(rng.choice([10, 200, 800])),
            **{"gpu": f"gpu {rng.integers(5)}", "model": f"model {rng.integers(5)}"} | fields,
        )
        for _ in range(count)
    ]


def constants_of(fitted: HostFit, engine: str = "vllm") -> np.ndarray:
    return vector_of(fitted.engines[engine].own)


class TestFit:
    def test_constants_that_made_the_runs_are_found_again(self) -> None:
        fitted = fit(made_up(400))
        np.testing.assert_allclose(constants_of(fitted), vector_of(TRUTH), rtol=0.05)
        assert all(np.abs(case.errors(fitted.times_of(case))).max() < 0.02 for case in made_up(100, seed=1))

    def test_a_single_run_moves_nothing_beyond_what_was_known(self) -> None:
        """Each stays between the prior and the truth, and moves only partly towards the truth."""
        constants = constants_of(fit(made_up(1)))
        moved = (constants - MEAN) / (vector_of(TRUTH) - MEAN)
        assert (moved > -0.2).all()
        assert (moved < 1.2).all()
        assert moved.mean() < 0.6

    def test_what_no_run_tells_stays_as_it_was_known(self) -> None:
        """Without kernels, launches and the time behind each are in no figure."""
        constants = dict(
            zip(CONSTANTS, constants_of(fit([replace(case, kernels=0) for case in made_up(100)])), strict=True)
        )
        assert constants["kernel_s"] == pytest.approx(PRIORS["kernel_s"].mean)
        assert constants["launch_s"] == pytest.approx(PRIORS["launch_s"].mean)
        assert constants["request_s"] == pytest.approx(TRUE["request_s"], rel=0.05)

    def test_figures_that_do_not_count_move_nothing(self) -> None:
        cases = made_up(60)
        wrong = [replace(case, counts=(False, True), factor=3.0) for case in made_up(60, seed=1)]
        of_steps = fit([*cases, *(replace(case, factor=1.0) for case in wrong)])
        twisted = [_TwistedTtft(**vars(case)) for case in (replace(case, factor=1.0) for case in wrong)]
        np.testing.assert_array_equal(constants_of(fit([*cases, *twisted])), constants_of(of_steps))

    @pytest.mark.parametrize("factor", [0.2, 5.0])
    def test_no_constant_leaves_its_range(self, factor: float) -> None:
        fitted = fit(made_up(100, factor=factor))
        constants = constants_of(fitted)
        assert fitted.engines["vllm"].own.implausible() == []
        assert (constants == LOW).any() if factor < 1 else (constants == HIGH).any()

    def test_the_same_runs_give_the_same_constants_in_any_order_and_in_any_process(self) -> None:
        cases = made_up(80) + made_up(80, seed=1, version="2.0")
        expected = fit(cases)
        assert fit(cases) == expected
        np.testing.assert_allclose(constants_of(fit(cases[::-1])), constants_of(expected), rtol=2e-3)
        with workers(cases, 2) as pool:
            assert fit(cases, pool=pool) == expected

    def test_a_start_saves_rounds_and_nothing_else(self) -> None:
        cases, notes = made_up(150), []
        expected = fit(cases)
        again = fit(cases, start=expected, note=notes.append)
        np.testing.assert_allclose(constants_of(again), constants_of(expected), rtol=0.02)
        assert len(notes) <= 2 + 2  # of engines, and of versions

    def test_many_equal_runs_count_for_less_than_as_many_different_ones(self) -> None:
        """Half of the runs were made slower; they share all group keys, so they count as the root of their number."""
        honest = made_up(100)
        slow = made_up(100, seed=1, factor=1.5, campaign="b")
        alike = [replace(case, gpu="one", model="one") for case in slow]
        distinct = [replace(case, gpu=f"gpu {k}") for k, case in enumerate(slow)]
        far = [np.abs(constants_of(fit([*honest, *of])) / vector_of(TRUTH) - 1.0).mean() for of in (alike, distinct)]
        assert 2.0 * far[0] < far[1]

    def test_engines_are_fitted_each_by_itself(self) -> None:
        both = fit(made_up(80) + made_up(80, seed=1, engine="sglang", truth=times_of(MEAN, "vllm")))
        assert set(both.engines) == {"vllm", "sglang"}
        assert both.cases["vllm", ALL] == both.cases["sglang", ALL] == 80
        np.testing.assert_array_equal(constants_of(both), constants_of(fit(made_up(80))))

    def test_nothing_to_fit_is_said(self) -> None:
        with pytest.raises(ValueError, match="nothing to fit"):
            fit([])

    @settings(max_examples=50)
    @given(st.lists(st.floats(-1.0, 2.0), min_size=len(CONSTANTS), max_size=len(CONSTANTS)))
    def test_times_lie_within_their_ranges_to_four_digits(self, shares: Sequence[float]) -> None:
        theta = LOW + np.array(shares) * (HIGH - LOW)
        times = times_of(theta, "vllm")
        assert times.implausible() == []
        np.testing.assert_allclose(vector_of(times), np.clip(theta, LOW, HIGH), rtol=6e-4)
        assert {name: getattr(times, name) for name in MEASURED} == MEASURED

    def test_what_is_known_beforehand_lies_within_the_ranges(self) -> None:
        assert (LOW < MEAN).all()
        assert (MEAN < HIGH).all()
        for name, value in MEASURED.items():
            assert RANGES[name].low <= value <= RANGES[name].high
        assert {*CONSTANTS, *MEASURED} == set(RANGES)


@dataclass(frozen=True)
class _TwistedTtft(MadeUp):
    """One whose TTFT was measured otherwise."""

    def errors(self, times: HostTimes) -> np.ndarray:
        return super().errors(times) + np.array([1.0, 0.0])


class TestVersions:
    NEWER = TRUTH.model_copy(update={"step_s": 0.1e-3, "request_s": 4e-3})

    def test_one_with_enough_runs_has_its_own(self) -> None:
        fitted = fit(made_up(200) + made_up(200, seed=1, version="2.0", truth=self.NEWER))
        older, newer = (fitted.engines["vllm"].versions[version] for version in ("1.0", "2.0"))
        assert newer.request_s == pytest.approx(4e-3, rel=0.1)
        assert older.request_s == pytest.approx(9e-3, rel=0.1)
        assert newer.step_s < older.step_s
        assert newer.step_s < fitted.engines["vllm"].own.step_s < older.step_s
        assert fitted.cases == {("vllm", ALL): 400, ("vllm", "1.0"): 200, ("vllm", "2.0"): 200}

    def test_one_with_few_takes_the_engines_and_an_engine_without_any_what_was_known(self) -> None:
        few = made_up(VERSION_CASES - 1, seed=1, version="2.0")
        fitted = fit(made_up(VERSION_CASES) + few)
        assert set(fitted.engines["vllm"].versions) == {"1.0"}
        assert fitted.times_of(few[0]) == fitted.engines["vllm"].own
        assert fitted.times_of(replace(few[0], version="1.0")) == fitted.engines["vllm"].versions["1.0"]
        assert fitted.times_of(replace(few[0], engine="trtllm")) == times_of(MEAN, "trtllm")

    def test_those_with_few_join_another_of_their_release(self) -> None:
        counts = {"1.2.0rc2.post2": VERSION_CASES, "1.2.0rc2": 3, "1.3.0rc1": 2}
        cases = [case for version, count in counts.items() for case in made_up(count, version=version)]
        groups = version_groups(cases)
        assert {group: len(members) for group, members in groups.items()} == {
            ("vllm", "1.2.0rc2.post2"): VERSION_CASES + 3
        }
        fitted = fit(cases)
        joined = fitted.times_of(made_up(1, version="1.2.0rc2")[0])
        assert joined == fitted.engines["vllm"].versions["1.2.0rc2.post2"]


class TestLeaveOut:
    def test_a_campaign_is_predicted_by_the_others(self) -> None:
        """One whose figures are 1.6 times the others' is off by that, left out, and by less in the fit to all."""
        honest, odd = made_up(150), made_up(150, seed=1, campaign="odd", factor=1.6)
        full = fit([*honest, *odd])
        held_out = leave_out("campaign", [*honest, *odd], full)
        left_out = np.abs(held_out.errors[150:])
        fitted = np.abs([case.errors(full.times_of(case)) for case in odd])
        assert np.median(left_out, axis=0) == pytest.approx(np.full(2, np.log(1.6)), abs=0.08)
        assert (fitted.mean(axis=0) < 0.8 * left_out.mean(axis=0)).all()

    def test_what_a_campaign_measured_does_not_change_what_is_predicted_of_it(self) -> None:
        """Predictions, not errors: the former are the same whatever factor lies between it and the others."""
        honest = made_up(150)
        predicted = []
        for factor in (1.0, 1.6):
            odd = made_up(150, seed=1, campaign="odd", factor=factor)
            held_out = leave_out("campaign", [*honest, *odd], fit([*honest, *odd]))
            predicted.append(held_out.errors[150:] + np.log(factor))
        np.testing.assert_allclose(predicted[0], predicted[1], atol=0.03)

    def test_every_run_is_priced_once(self) -> None:
        cases = made_up(40) + made_up(40, seed=1, gpu="another", model="another")
        for name in KEYS:
            held_out = leave_out(name, cases, fit(cases))
            assert held_out.name == name
            assert np.isfinite(held_out.errors).all()

    def test_an_engine_that_loses_all_runs_is_priced_by_what_was_known(self) -> None:
        cases = made_up(30) + made_up(30, seed=1, engine="sglang", campaign="b")
        held_out = leave_out("campaign", cases, fit(cases))
        np.testing.assert_array_equal(held_out.errors, [case.errors(times_of(MEAN, case.engine)) for case in cases])

    def test_a_version_that_loses_all_runs_is_priced_by_its_engine(self) -> None:
        """Of two versions that only one campaign each has run."""
        older = made_up(60)
        newer = made_up(60, seed=1, version="2.0", campaign="b", truth=TestVersions.NEWER)
        held_out = leave_out("campaign", older + newer, fit(older + newer))
        of_others = fit(older).engines["vllm"].own
        expected = [case.errors(of_others) for case in newer]
        np.testing.assert_allclose(held_out.errors[60:], expected, atol=0.05)

    def test_nothing_of_the_full_fit_but_its_derivatives_is_used(self) -> None:
        """So that constants which only the held-out runs tell are not kept."""
        cases = made_up(60) + made_up(60, seed=1, campaign="b")
        full = fit(cases)
        other = EngineTimes(own=times_of(HIGH, "vllm"), versions={})
        moved = replace(full, engines={"vllm": other})
        expected = leave_out("campaign", cases, full).errors
        np.testing.assert_array_equal(leave_out("campaign", cases, moved).errors, expected)


def normal_errors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal([0.05, -0.02], [0.3, 0.1], (count, 2))


class TestReport:
    def test_a_law_has_the_quantiles_of_the_runs_that_count(self) -> None:
        cases, errors = made_up(100), normal_errors(100)
        cases[:30] = [replace(case, counts=(False, True)) for case in cases[:30]]
        errors[99, 1] = np.nan
        laws = error_laws(cases, [LeftOut("GPU", 2 * errors), LeftOut("campaign", errors)])["vllm"]
        assert set(laws["situations"]) == {"accelerator", "campaign"}
        known = laws["situations"]["campaign"]
        models = np.array([case.model for case in cases])
        assert known["ttft"]["logs"] == pytest.approx(widened(errors[30:, 0], models[30:]), abs=1e-4)
        assert known["step"]["logs"] == pytest.approx(widened(errors[:99, 1], models[:99]), abs=1e-4)
        assert (known["ttft"]["runs"], known["step"]["runs"]) == (70, 99)
        assert laws["situations"]["accelerator"]["ttft"]["logs"] == pytest.approx(
            2 * np.array(known["ttft"]["logs"]), abs=2e-4
        )
        assert laws["models"] == [f"model {k}" for k in range(5)]
        assert laws["accelerators"] == [f"gpu {k}" for k in range(5)]
        read = EngineErrors.model_validate(yaml.safe_load(yaml.safe_dump(laws)))
        assert read.of("model").situation == "campaign"

    def test_runs_of_long_prompts_tell_of_prompts(self) -> None:
        """A latency that is a tenth too long, of which prompts are half: prompts are a fifth too long."""
        weights = PromptWeights(ttft_part=0.25, share=0.5)
        assert weights.error(np.log([1.1, 1.1])) == pytest.approx(math.log(1.2))
        assert weights.error(np.log([1.4, 1.0])) == pytest.approx(math.log(1.2))
        assert weights.error(-np.log([1.1, 1.1])) == pytest.approx(-math.log(1.2))
        assert weights.error(np.zeros(2)) == 0.0
        cases, errors = made_up(100), normal_errors(100)
        weighted = [replace(case, prompts=weights) if k < 60 else case for k, case in enumerate(cases)]
        laws = error_laws(weighted, [LeftOut("GPU", errors)])["vllm"]["situations"]["accelerator"]
        models = np.array([case.model for case in cases])
        expected = widened(np.array([weights.error(both) for both in errors[:60]]), models[:60])
        assert laws["prompts"] == {"logs": pytest.approx(expected, abs=1e-4), "runs": 60}
        few = error_laws(cases, [LeftOut("GPU", errors)])["vllm"]["situations"]["accelerator"]
        assert few["prompts"] == few["ttft"]

    def test_few_runs_make_no_law(self) -> None:
        cases = made_up(LEAST_RUNS) + made_up(LEAST_RUNS - 1, engine="sglang")
        laws = error_laws(cases, [LeftOut("model", normal_errors(len(cases)))])
        assert set(laws["vllm"]["situations"]) == {"model"}
        assert laws["sglang"]["situations"] == {}

    def test_intervals_hold_their_share_where_models_err_alike(self) -> None:
        shares = coverage(made_up(4000), LeftOut("model", normal_errors(4000)))
        for figure in ("ttft", "step"):
            assert shares["vllm"][f"{figure} 50 %"] == pytest.approx(0.5, abs=0.03)
            assert shares["vllm"][f"{figure} 90 %"] == pytest.approx(0.9, abs=0.02)

    def test_the_interval_of_a_model_knows_nothing_of_its_own_runs(self) -> None:
        """The runs of one model are all wrong by far more than the others'."""
        cases, errors = made_up(400), normal_errors(400)
        odd = np.array([case.model == "model 0" for case in cases])
        errors[odd] += 50.0
        shares = coverage(cases, LeftOut("model", errors))["vllm"]
        assert max(shares["ttft 90 %"], shares["step 90 %"]) <= 1.0 - odd.mean()

    def test_laws_are_stretched_as_far_as_models_left_out_need(self) -> None:
        """Where each model has its own error, quantiles of the others' runs are too narrow."""
        rng = np.random.default_rng(3)
        groups = np.repeat([f"model {k}" for k in range(40)], 50)
        errors = np.repeat(rng.normal(0.0, 0.4, 40), 50) + rng.normal(0.0, 0.02, 2000)
        few = np.isin(groups, [f"model {k}" for k in range(5)])
        plain, law = np.quantile(errors[few], SHARES), widened(errors[few], groups[few])
        assert law[2] == plain[2]
        assert law[0] < plain[0]
        assert law[-1] > plain[-1]
        assert list(law) == sorted(law)
        others = errors[~few]
        held = np.mean((law[0] <= others) & (others <= law[-1]))
        assert held > np.mean((plain[0] <= others) & (others <= plain[-1])) + 0.05

    def test_one_model_alone_stretches_nothing(self) -> None:
        errors = normal_errors(50)[:, 0]
        np.testing.assert_array_equal(widened(errors, np.array(["model"] * 50)), np.quantile(errors, SHARES))

    def test_a_summary_is_of_relative_errors(self) -> None:
        cases = made_up(3)
        errors = np.log([[1.1, 0.9], [1.3, 0.9], [0.8, np.nan]])
        cases[1] = replace(cases[1], counts=(False, True))
        figures = summary(cases, errors)
        assert figures["ttft"] == pytest.approx({"runs": 2, "median_ape": 0.15, "mape": 0.15, "bias": -0.05})
        assert figures["step"] == pytest.approx({"runs": 2, "median_ape": 0.1, "mape": 0.1, "bias": -0.1})
        groups = by_group([*cases, *made_up(1, engine="sglang", campaign="b")], np.vstack([errors, [0.0, 0.0]]))
        assert groups["open loop, vllm"]["ttft"]["runs"] == 2
        assert groups["open loop, campaign b"]["ttft"] == {"runs": 1, "median_ape": 0, "mape": 0, "bias": 0}


class TestFiles:
    def test_constants_come_into_profiles_as_they_were_fitted(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fitted = HostFit({"vllm": EngineTimes(TRUTH, {"9": TestVersions.NEWER})}, {})
        write_constants(tmp_path / "host_times.yaml", fitted, "made.csv")
        assert "fitted to made.csv" in (tmp_path / "host_times.yaml").read_text().splitlines()[0]
        hosts._fitted.cache_clear()
        monkeypatch.setattr(hosts, "FILE", tmp_path / "host_times.yaml")
        try:
            profile = Catalogue(shipped_root()).get("LatencyProfile", "vllm-h100-sxm").spec
            overhead = hosts.with_hosts(profile).engines["vllm"]
        finally:
            hosts._fitted.cache_clear()
        assert {name: getattr(overhead, name) for name in HostTimes.model_fields} == TRUTH.model_dump()
        assert overhead.versions == {"9": TestVersions.NEWER}
        assert overhead.graph_batches == profile.engines["vllm"].graph_batches
        assert overhead.evidence == "fitted"


#: Closed loops of one engine that are quick to simulate.
LOOPS = [
    {"concurrency": c, "input_tokens": i, "output_tokens": "8"} for c in ("1", "8") for i in ("128", "2048")
]  # fmt: skip


def measured(tmp_path: Path, cells: Iterable[dict[str, str]]) -> Path:
    """Rows as they would be measured of ``TRUTH``."""
    pricer, rows = Pricer(), []
    for row in cells:
        price = pricer.with_times(only_row(tmp_path, **row), TRUTH)
        rows.append(
            row | {"measured_ttft_ms": f"{price.ttft_s * 1e3}", "measured_tpot_ms": f"{price.tpot_s * 1e3}"}
        )  # fmt: skip
    return write(tmp_path / "made.csv", *rows)


class TestRuns:
    def test_a_closed_loop_that_was_measured_as_simulated_has_no_error(self, tmp_path: Path) -> None:
        rows = read_rows(measured(tmp_path, LOOPS))[1]
        cases = closed_loop_cases(rows, Pricer())
        assert len(cases) == len(LOOPS)
        for case in cases:
            np.testing.assert_allclose(case.errors(TRUTH), 0.0, atol=1e-9)
            assert case.errors(TRUTH.model_copy(update={"request_s": 18e-3}))[0] > 0
            assert case.errors(TRUTH.model_copy(update={"step_s": 1.5e-3}))[1] > 0
        assert {(case.engine, case.version, case.gpu, case.model) for case in cases} == {
            ("vllm", "0.19.0", "h100-sxm", "llama-3.1-8b")
        }

    def test_rows_that_cannot_be_met_are_passed_over(self, tmp_path: Path) -> None:
        odd = ({"mode": "disagg"}, {"model": "nobody/nothing"}, {"measured_tpot_ms": "0.01"}, {})
        rows = read_rows(write(tmp_path / "rows.csv", *odd))[1]
        (case,) = closed_loop_cases(rows, Pricer())
        assert case.errors.args[0].line == 5

    def test_what_a_server_does_once_is_in_no_constant(self, tmp_path: Path) -> None:
        engine, version = next(iter(START_UP))
        lengths = {"input_tokens": "1024", "output_tokens": "1024", "attention_dp": "1"}
        for cells, cold in (
            ({}, False),
            ({"backend_version": ""}, False),
            (lengths, False),
            (lengths | {"backend_version": ""}, True),
            ({"backend": engine, "backend_version": version}, True),
        ):
            row = only_row(tmp_path, **cells)
            assert starts_cold(row, conditions_of(row)) == cold

    def test_an_open_loop_is_met_by_its_ttft_and_e2e(self, tmp_path: Path) -> None:
        (case,) = open_loop_cases([write_folder(tmp_path / "runs")], Catalogue(shipped_root()))
        assert (case.engine, case.gpu, case.model, case.counts) == ("vllm", "h100-sxm", "llama-3.1-8b", (True, True))
        plain = case.errors(HostTimes(step_s=0.0))
        front = case.errors(HostTimes(step_s=0.0, request_s=10e-3, read_s=0.5e-3))
        steps = case.errors(HostTimes(step_s=1e-3))
        # 20 and 100 ms were measured: 10 ms before the engine are as much of either; a longer step is 12 times in E2E.
        assert np.exp(front) - np.exp(plain) == pytest.approx([10 / 20, 10 / 100], rel=0.02)
        assert ((np.exp(steps) - np.exp(plain)) * [20, 100]) == pytest.approx([1.5, 12.5], rel=0.2)

    def test_a_served_workload_is_met_by_the_engine_s_own_clock(self, tmp_path: Path) -> None:
        folder = write_case(tmp_path / "case", [request(0, 0.0), request(1, 100.0)])
        (case,) = served_cases([folder], Catalogue(shipped_root()))
        assert (case.engine, case.version, case.gpu, case.model, case.scale) == (
            "vllm", "0.19.0", "rtx-pro-6000", "llama-3.1-8b", OF_TABLES,
        )  # fmt: skip
        plain = case.errors(HostTimes(step_s=0.0))
        steps = case.errors(HostTimes(step_s=1e-3))
        front = case.errors(HostTimes(step_s=0.0, request_s=10e-3, read_s=0.5e-3))
        # A second was measured of either: a longer step is in both, and what is ahead of the engine in none.
        assert np.exp(steps) - np.exp(plain) == pytest.approx([1e-3, 1e-3], rel=1e-6)
        assert front == pytest.approx(plain, rel=1e-9)

    def test_runs_on_tables_of_their_own_tell_more_and_say_nothing_of_laws(self, tmp_path: Path) -> None:
        folder = write_case(tmp_path / "case", [request(0, 0.0), request(1, 100.0)])
        cases = [*served_cases([folder], Catalogue(shipped_root()))] * LEAST_RUNS
        errors = np.zeros((len(cases), 2))
        laws = error_laws(cases, [LeftOut("model", errors)])["vllm"]
        assert laws == {"accelerators": [], "models": [], "situations": {}}
        assert list(by_group(cases, errors)) == [
            "served", "served, campaign served workloads", "served, rtx-pro-6000", "served, vllm",
        ]  # fmt: skip
        slow = made_up(40)
        sure = [replace(case, factor=1.3, scale=OF_TABLES) for case in made_up(40, seed=1)]
        unsure = [replace(case, scale=OF_LAWS) for case in sure]
        by_tables, by_laws = (
            abs(constants_of(fit([*slow, *more])) - vector_of(TRUTH)).sum() for more in (sure, unsure)
        )
        assert by_tables > by_laws

    def test_a_complete_fit_writes_its_results(self, tmp_path: Path) -> None:
        file, notes = measured(tmp_path, LOOPS), []
        judged = fit_hosts([file], [], without=("model",), note=notes.append)
        assert judged.runs == len(LOOPS)
        assert set(judged.errors) == {"fitted", "model"}
        fitted, left_out = (judged.errors[name]["closed loop"] for name in ("fitted", "model"))
        assert fitted["step"]["median_ape"] < 0.05
        assert left_out["ttft"]["median_ape"] > fitted["ttft"]["median_ape"]
        assert any("model llama-3.1-8b: 4 cases left out" in line for line in notes)
        write_judged(judged, tmp_path / "hosts.yaml", tmp_path / "errors.yaml", "made.csv")
        constants = yaml.safe_load((tmp_path / "hosts.yaml").read_text())["vllm"]
        assert constants["versions"] == {}
        assert constants["request_s"] == judged.fit.engines["vllm"].own.request_s
        assert yaml.safe_load((tmp_path / "errors.yaml").read_text())["vllm"]["models"] == ["llama-3.1-8b"]


class TestCommand:
    def test_it_fits_and_says_how_far_off_it_is(self, tmp_path: Path) -> None:
        file, out, errors = measured(tmp_path, LOOPS[:2]), tmp_path / "hosts.yaml", tmp_path / "errors.yaml"
        options = ("-o", out, "--errors", errors, "--leave-out", "none", "--processes", 1)
        ran = call("hosts", "--silicon", file, *options, "--json", "--quiet")
        assert ran.exit_code == 0, ran.stderr
        printed = json.loads(ran.stdout)
        assert printed["runs"] == 2
        assert set(printed["errors"]) == {"fitted"}
        times = yaml.safe_load(out.read_text())["vllm"]
        assert HostTimes.model_validate({name: times[name] for name in HostTimes.model_fields}).implausible() == []
        assert set(yaml.safe_load(errors.read_text())) == {"vllm"}

    def test_only_known_groups_are_left_out(self, tmp_path: Path) -> None:
        file = write(tmp_path / "rows.csv", {})
        ran = call("hosts", "--silicon", file, "--leave-out", "model,weather")
        assert ran.exit_code == 2
        said = " ".join(ran.stderr.replace("│", " ").split())
        assert "not weather" in said
        assert "campaign, GPU, model, none" in said

    def test_runs_that_cannot_be_simulated_are_nothing_to_fit(self, tmp_path: Path) -> None:
        file = write(tmp_path / "rows.csv", {"mode": "disagg"})
        ran = call("hosts", "--silicon", file, "-o", tmp_path / "hosts.yaml", "--processes", 1)
        assert ran.exit_code == 1
        assert "nothing to fit" in ran.output
