"""Whole steps: logs read, their law fitted, and what it prices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from hisearch.calibrate.profiles import LoggedWorker, calibrate_log, calibrate_steps
from hisearch.calibrate.step_fit import fit_steps
from hisearch.calibrate.step_log import read_step_logs
from hisearch.cli.main import app
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import build_estimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.traces.reading.errors import TraceError
from tests.calibrate.step_logs import drawn_steps, law_seconds, log_of, timed, write_csv, write_jsonl

pytestmark = pytest.mark.slow

CATALOGUE = Catalogue()
LLAMA = CATALOGUE.get("Model", "llama-3.1-8b").spec
H100 = CATALOGUE.get("Accelerator", "h100-sxm").spec
VLLM = EngineSpec(name="vllm")
WORKER = LoggedWorker("llama-3.1-8b", "h100-sxm", "vllm", "0.19.0")


def compiled(name: str, profile: LatencyProfileSpec, *, ranks: int = 1, kv_dtype: DType = "bf16") -> CompiledCosts:
    priced = PricedWorker(LLAMA, H100, Parallelism(ranks), None, kv_dtype, VLLM, 8192, 256, 400_000)
    return build_estimator(name, profile).compile(priced)


SCALED = compiled("vllm-h100-sxm", CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec).seconds


class TestNoise:
    """Decode steps of a known law, disturbed; the law's error is that of its prices for undisturbed steps."""

    @staticmethod
    def law_error(disturb: Callable[[np.random.Generator, np.ndarray], np.ndarray], count: int = 1200) -> float:
        steps = drawn_steps(count)
        clean_s = timed(SCALED, steps)
        rng = np.random.default_rng(5)
        log = log_of(steps, disturb(rng, clean_s) * np.exp(0.01 * rng.standard_normal(count)))
        priced_s = law_seconds(fit_steps(log).law, log)
        return float(np.median(priced_s / clean_s) - 1.0)

    @pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.7])
    def test_pauses_do_not_bend_the_law_up_to_seven_tenths_of_all_steps(self, share: float) -> None:
        def paused(rng: np.random.Generator, clean_s: np.ndarray) -> np.ndarray:
            return clean_s * (1.0 + rng.exponential(0.4, len(clean_s)) * (rng.random(len(clean_s)) < share))

        assert abs(self.law_error(paused)) < 0.02

    def test_where_no_step_is_undisturbed_the_law_stays_below_the_median(self) -> None:
        def busy(rng: np.random.Generator, clean_s: np.ndarray) -> np.ndarray:
            return clean_s * (1.0 + rng.exponential(0.3, len(clean_s)))

        # The median step takes 21 % longer; what is usual cannot be told from what is noise.
        assert 0.0 < self.law_error(busy) < 0.2

    def test_noise_on_both_sides_is_fitted_through_its_mean(self) -> None:
        def jittered(rng: np.random.Generator, clean_s: np.ndarray) -> np.ndarray:
            return clean_s * np.exp(0.2 * rng.standard_normal(len(clean_s)))

        # The mean of a lognormal is above its median by half the variance of its logarithm.
        assert self.law_error(jittered) == pytest.approx(np.exp(0.2**2 / 2) - 1.0, abs=0.01)

    def test_what_is_set_aside_is_stated(self) -> None:
        steps = drawn_steps(1200)
        clean_s = timed(SCALED, steps)
        rng = np.random.default_rng(3)
        paused = rng.random(len(steps)) < 0.4
        fit = fit_steps(log_of(steps, clean_s * np.where(paused, 1.5, 1.0) * np.exp(0.01 * rng.standard_normal(1200))))
        assert fit.noise["decode"].share == pytest.approx(0.4, abs=0.05)
        assert fit.noise["decode"].excess == pytest.approx(0.2, abs=0.05)
        assert fit_steps(log_of(steps, clean_s * np.exp(0.01 * rng.standard_normal(1200)))).noise == {}


class TestExcess:
    """Of a log with pauses, a profile for the very server predicts the logged sums; another one undisturbed steps."""

    def test_a_server_is_predicted_with_its_pauses(self) -> None:
        steps = [(chunks[:1], decodes) for chunks, decodes in drawn_steps(1200)]
        rng = np.random.default_rng(7)
        clean_s = timed(SCALED, steps)
        prompts = np.array([bool(chunks) for chunks, _ in steps])
        # Steps with prompts pause more often.
        paused = rng.random(len(steps)) < np.where(prompts, 0.5, 0.3)
        logged_s = clean_s * (1.0 + rng.exponential(0.4, len(steps)) * paused)
        log = log_of(steps, logged_s)

        def priced(*, with_excess: bool) -> np.ndarray:
            fitted = calibrate_log(log, WORKER, measured="a log", source="a test", with_excess=with_excess)
            return timed(compiled("mine", fitted.profile).seconds, steps)

        with_pauses, undisturbed = priced(with_excess=True), priced(with_excess=False)
        for of_kind in (prompts, ~prompts):
            assert with_pauses[of_kind].sum() == pytest.approx(logged_s[of_kind].sum(), rel=0.01)
            assert undisturbed[of_kind].sum() == pytest.approx(clean_s[of_kind].sum(), rel=0.04)
        assert logged_s.sum() > 1.1 * clean_s.sum()


def test_milliseconds_are_no_seconds(tmp_path: Path) -> None:
    steps = drawn_steps(60)
    path = write_jsonl(tmp_path / "ms.jsonl", steps, 1e3 * timed(SCALED, steps))
    with pytest.raises(ValueError, match=r"ms\.jsonl: latency_s: steps take .* the roofline says .* no seconds"):
        calibrate_steps([path], WORKER, source="a test")


class TestReading:
    def test_both_forms_say_the_same(self, tmp_path: Path) -> None:
        steps = drawn_steps(30)
        latency_s = timed(SCALED, steps)
        from_jsonl = read_step_logs([write_jsonl(tmp_path / "a.jsonl", steps, latency_s)])
        from_csv = read_step_logs([write_csv(tmp_path / "a.csv", steps, latency_s)])
        for mine, theirs in zip(from_jsonl, from_csv, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert from_jsonl.decode.sum() == sum(len(decodes) for _, decodes in steps)

    def test_a_log_is_told_by_its_content(self, tmp_path: Path) -> None:
        steps = drawn_steps(30)
        latency_s = timed(SCALED, steps)
        named = [read_step_logs([write_jsonl(tmp_path / "a.jsonl", steps, latency_s)])]
        named += [read_step_logs([write_csv(tmp_path / "a.csv", steps, latency_s)])]
        for name, expected in zip(("a.jsonl", "a.csv"), named, strict=True):
            for other in ("steps.log", "steps", "a.txt.gz"):
                (tmp_path / other).write_bytes((tmp_path / name).read_bytes())
                np.testing.assert_array_equal(read_step_logs([tmp_path / other]).latency_s, expected.latency_s)

    @pytest.mark.parametrize(
        ("name", "text", "expected"),
        [
            ("a.jsonl", "", "no steps"),
            ("a.txt", "PAR1", "expected JSON lines or CSV, found a parquet file"),
            ("a.jsonl", "{", ":1: expected a JSON object"),
            ("a.jsonl", '{"latency_s": 1}', ":1: requests: missing"),
            ("a.jsonl", '{"latency_s": 0, "requests": [{"new_tokens": 1, "cached_tokens": 0}]}', ":1: latency_s"),
            ("a.jsonl", '{"latency_s": 1, "requests": [3]}', "requests: expected a non-empty list of objects"),
            ("a.jsonl", '{"latency_s": 1, "requests": [{"new_tokens": 0, "cached_tokens": 0}]}', "0.new_tokens"),
            ("a.jsonl", '{"latency_s": 1, "requests": [{"new_tokens": 1}]}', "requests.0.cached_tokens"),
            ("a.csv", "step,latency_s,new_tokens\n", ":1: no column cached_tokens"),
            ("a.csv", "step,latency_s,new_tokens,cached_tokens\n1,0.1,x,0\n", ":2: new_tokens"),
            ("a.csv", "step,latency_s,new_tokens,cached_tokens\n1,0.1,1,0\n1,0.2,1,0\n", ":3: latency_s"),
            ("a.csv", "step,latency_s,new_tokens,cached_tokens\n1,1,1,0\n2,1,1,0\n1,1,1,0\n", ":4: step"),
            ("a.csv", "step,latency_s,new_tokens,cached_tokens,kind\n1,1,1,0,idle\n", ":2: kind"),
            ("a.csv", "step,latency_s,new_tokens,cached_tokens,kind\n1,1,2,0,decode\n", ":2: new_tokens: a decode"),
        ],
    )
    def test_a_bad_log_is_refused_with_its_place(self, tmp_path: Path, name: str, text: str, expected: str) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(TraceError) as error:
            read_step_logs([tmp_path / name])
        assert expected in str(error.value)
        assert str(tmp_path / name) in str(error.value)


class TestFitting:
    def test_a_law_of_the_same_form_is_found(self, tmp_path: Path) -> None:
        """Exact data of a law that the regression can say: its tables give every step back."""
        first = self._profile(tmp_path / "a.jsonl", timed(SCALED, drawn_steps(600)))
        law = compiled("first", first).seconds
        # Steps of one prompt, where the tables are the law itself.
        steps = [(chunks[:1], decodes) for chunks, decodes in drawn_steps(600)]
        again = self._profile(tmp_path / "b.jsonl", timed(law, steps), steps)
        assert again.relative_error < 2e-3
        other = [(chunks[:1], decodes) for chunks, decodes in drawn_steps(60, seed=1)]
        np.testing.assert_allclose(timed(compiled("b", again).seconds, other), timed(law, other), rtol=1e-2)

    def test_pauses_and_noise_do_not_bend_it(self, tmp_path: Path) -> None:
        """5 % of the steps took up to ten times as long: medians stay, where a least-squares fit is a quarter off."""
        rng = np.random.default_rng(3)
        steps = drawn_steps(900)
        true_s = timed(SCALED, steps)
        noisy = true_s * rng.lognormal(0.0, 0.01, len(steps))
        noisy[rng.random(len(steps)) < 0.05] *= rng.uniform(3.0, 10.0)
        profile = self._profile(tmp_path / "a.jsonl", noisy, steps)
        priced = timed(compiled("a", profile).seconds, steps)
        decodes = np.array([not chunks for chunks, _ in steps])
        assert np.median(np.abs(priced / true_s - 1)[decodes]) < 0.02
        assert np.median(np.abs(priced / true_s - 1)[~decodes]) < 0.08
        assert np.abs(np.median(priced / true_s) - 1) < 0.01

    def test_each_regime_states_an_error_of_steps_left_out(self, tmp_path: Path) -> None:
        steps = drawn_steps(600)
        path = write_jsonl(tmp_path / "a.jsonl", steps, timed(SCALED, steps))
        step_fit = fit_steps(read_step_logs([path]))
        assert {name: error.steps for name, error in step_fit.errors.items()} == {
            "prefill": 50, "decode": 500, "mixed": 50,
        }  # fmt: skip
        assert all(0 <= error.median <= error.p90 for error in step_fit.errors.values())
        assert step_fit.errors["decode"].median < 0.03

    def test_more_never_takes_less(self, tmp_path: Path) -> None:
        costs = compiled("a", self._profile(tmp_path / "a.jsonl", timed(SCALED, drawn_steps(600))))
        assert (np.diff(costs.seconds.token_s) >= 0).all()
        assert (np.diff(costs.seconds.decode_s, axis=1) >= 0).all()
        assert step_seconds(costs.seconds, [(2048, 0)], []) > step_seconds(costs.seconds, [(1024, 0)], [])

    @pytest.mark.parametrize("side", ["prompt chunks", "decodes"])
    def test_what_was_never_logged_cannot_be_fitted(self, tmp_path: Path, side: str) -> None:
        kept = [
            (chunks if side == "decodes" else [], [] if side == "decodes" else decodes)
            for chunks, decodes in drawn_steps(900)
            if (chunks if side == "decodes" else decodes)
        ]
        path = write_jsonl(tmp_path / "a.jsonl", kept, timed(SCALED, kept))
        with pytest.raises(ValueError, match=f"no step of the log has {side}"):
            fit_steps(read_step_logs([path]))

    def test_too_few_steps_are_refused(self, tmp_path: Path) -> None:
        steps = drawn_steps(20)
        with pytest.raises(ValueError, match="20 steps are too few"):
            fit_steps(read_step_logs([write_jsonl(tmp_path / "a.jsonl", steps, timed(SCALED, steps))]))

    def _profile(self, path: Path, latency_s: np.ndarray, steps: list | None = None) -> LatencyProfileSpec:
        write_jsonl(path, steps or drawn_steps(len(latency_s)), latency_s)
        return calibrate_steps([path], WORKER, source="a test").profile


class TestPricing:
    @pytest.fixture(scope="class")
    @staticmethod
    def profile(tmp_path_factory: pytest.TempPathFactory) -> LatencyProfileSpec:
        steps = drawn_steps(300)
        path = write_csv(tmp_path_factory.mktemp("steps") / "a.csv", steps, timed(SCALED, steps))
        return calibrate_steps([path], WORKER, source="a test").profile

    def test_another_worker_is_refused(self, profile: LatencyProfileSpec) -> None:
        with pytest.raises(
            ValueError, match=r"tensor_parallel 2 .* not logged; it has .*Llama-3.1-8B.*tensor_parallel 1"
        ):
            compiled("mine", profile, ranks=2)
        with pytest.raises(ValueError, match="KV fp8"):
            compiled("mine", profile, kv_dtype="fp8")

    def test_what_was_not_logged_is_warned_of(self, profile: LatencyProfileSpec) -> None:
        assert any("tokens of context" in warning for warning in compiled("mine", profile).warnings)

    def test_the_command_writes_a_profile_that_loads(self, tmp_path: Path) -> None:
        steps = drawn_steps(300)
        log = write_jsonl(tmp_path / "log.jsonl", steps, timed(SCALED, steps))
        out = tmp_path / "mine.yaml"
        options = ["--model", "llama-3.1-8b", "--accelerator", "h100-sxm", "--engine", "vllm", "--name", "mine"]
        result = CliRunner().invoke(app, ["calibrate", "steps", str(log), *options, "-o", str(out), "--json"])
        assert result.exit_code == 0, result.output
        assert set(yaml.safe_load(result.stdout)["errors"]) == {"prefill", "decode", "mixed"}
        spec = CATALOGUE.get("LatencyProfile", str(out)).spec
        assert spec.estimator == "regression"
        priced = step_seconds(compiled("mine", spec).seconds, [], [500] * 32)
        assert priced == pytest.approx(step_seconds(SCALED, [], [500] * 32), rel=0.05)

    def test_an_unknown_format_is_a_usage_error(self, tmp_path: Path) -> None:
        options = ["--model", "llama-3.1-8b", "--accelerator", "h100-sxm", "--engine", "vllm", "--kv-dtype", "fp7"]
        result = CliRunner().invoke(app, ["calibrate", "steps", str(tmp_path / "a.csv"), *options])
        assert result.exit_code == 2
