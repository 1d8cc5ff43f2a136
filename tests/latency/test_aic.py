"""aiconfigurator-core as an estimator: its times in our tables, kept on disk; what it cannot price is refused."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hisearch.latency.aic import AicError
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import build_estimator
from hisearch.latency.estimators.aic import AicEstimator
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.base import DType
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import LatencyProfileSpec
from tests.latency.fake_aic import install

CATALOGUE = Catalogue()
SHIPPED: LatencyProfileSpec = CATALOGUE.get("LatencyProfile", "aic").spec
#: Without host work, so that a step takes the package's time.
BARE = SHIPPED.model_copy(update={"engines": {"vllm": EngineOverhead(step_s=0.0)}})


def priced(
    model: str = "qwen3-32b",
    board: str = "h100-sxm",
    split: Parallelism | None = None,
    weight_dtype: DType | None = None,
    kv_dtype: DType = "bf16",
) -> PricedWorker:
    return PricedWorker(
        CATALOGUE.get("Model", model).spec, CATALOGUE.get("Accelerator", board).spec, split or Parallelism(2),
        weight_dtype, kv_dtype, EngineSpec(name="vllm"), 4096, 64, 100_000,
    )  # fmt: skip


def compiled(worker: PricedWorker, profile: LatencyProfileSpec = BARE) -> CompiledCosts:
    return build_estimator("aic", profile).compile(worker)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Modules of the stand-in do not outlive a test."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "aiconfigurator_core"]:
        del sys.modules[name]


class TestStandIn:
    @pytest.fixture
    def made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        return install(tmp_path, monkeypatch)

    def test_steps_are_the_packages(self, made: Path) -> None:
        costs = compiled(priced())
        for tokens in (1, 100, 2048, 3000):
            assert step_seconds(costs.seconds, [(tokens, 0)], []) == pytest.approx(
                (5 + 0.01 * tokens + 1e-6 * tokens * (tokens + 1) / 2) / 1e3, rel=1e-3
            )
        assert step_seconds(costs.seconds, [(512, 2048)], []) == pytest.approx(
            (5 + 5.12 + 1e-6 * 512 * (2048 + 256.5)) / 1e3
        )
        assert step_seconds(costs.seconds, [], [1001] * 32) == pytest.approx((5 + 0.32 + 1e-4 * 32_000) / 1e3, rel=1e-3)
        assert "20 % of a typical step" in costs.warnings[1]
        assert "0.12.0" in costs.warnings[0]

    def test_the_worker_is_said_in_its_words(self, made: Path) -> None:
        compiled(priced("qwen3-30b-a3b", split=Parallelism(4, expert=2), weight_dtype="fp8", kv_dtype="fp8"))
        settings = made.read_text()
        for setting in (
            "Qwen/Qwen3-30B-A3B h100_sxm vllm", "('tp_size', 4)", "('moe_tp_size', 2)", "('moe_ep_size', 2)",
            "('moe_quant_mode', 'fp8')", "('kvcache_quant_mode', 'fp8')", "('fmha_quant_mode', 'bfloat16')",
        ):  # fmt: skip
            assert setting in settings

    def test_what_was_asked_once_is_kept(self, made: Path) -> None:
        first = compiled(priced())
        again = compiled(priced())
        assert len(made.read_text().splitlines()) == 1
        for mine, theirs in zip(first.seconds[2:6], again.seconds[2:6], strict=True):
            np.testing.assert_array_equal(mine, theirs)
        compiled(priced(split=Parallelism(4)))
        assert len(made.read_text().splitlines()) == 2

    def test_a_file_that_was_cut_short_is_asked_again(self, made: Path, tmp_path: Path) -> None:
        first = compiled(priced())
        (stored,) = (tmp_path / "cache").rglob("*.npz")
        assert "0.12.0" in str(stored)
        stored.write_bytes(stored.read_bytes()[:100])
        np.testing.assert_array_equal(compiled(priced()).seconds.token_s, first.seconds.token_s)
        assert len(made.read_text().splitlines()) == 2

    def test_models_that_it_does_not_know_are_not_looked_for_on_the_net(self, made: Path) -> None:
        with pytest.raises(AicError, match=r"knows no model Qwen/Qwen3-8B; known: .*Qwen/Qwen3-32B"):
            compiled(priced("qwen3-8b"))

    def test_what_it_refuses_is_refused_with_the_question(self, made: Path) -> None:
        with pytest.raises(AicError, match=r"cannot price model Qwen/Qwen3-32B, system l40s.*: no tables of l40s"):
            compiled(priced(board="l40s"))

    def test_accelerators_and_formats_without_a_name_are_refused(self, made: Path) -> None:
        with pytest.raises(ValueError, match=r"aic.systems has no name of this accelerator; it has a100-80gb"):
            compiled(priced(board="rtx4090"))
        with pytest.raises(ValueError, match="KV cache of fp4"):
            compiled(priced(kv_dtype="fp4"))

    def test_host_work_is_the_profiles(self, made: Path) -> None:
        step = [], [1001] * 32
        difference = step_seconds(compiled(priced(), SHIPPED).seconds, *step) - step_seconds(
            compiled(priced()).seconds, *step
        )
        host = SHIPPED.engines["vllm"]
        assert difference == pytest.approx(host.step_s + 32 * host.per_sequence_s)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, version="0.13.1")
    with pytest.raises(AicError, match=r"0\.13\.1: expected version 0\.12\.\*"):
        compiled(priced())


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is not None, reason="the package is installed")
def test_without_the_package_the_extra_is_named() -> None:
    with pytest.raises(AicError, match=r"pip install 'hisearch\[aic\]'"):
        compiled(priced())


def test_the_real_package_agrees_with_our_laws() -> None:
    """The laws of the shipped profiles were fitted on its tables: a dense model's steps are within a fifth."""
    pytest.importorskip("aiconfigurator_core", reason="aiconfigurator-core (extra aic) is not installed")
    theirs = compiled(priced())
    fitted = CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec
    ours = compiled(priced(), fitted.model_copy(update={"engines": BARE.engines}))
    for step in (([(2048, 0)], []), ([], [1000] * 16), ([(1024, 0)], [1000] * 32)):
        assert step_seconds(theirs.seconds, *step) == pytest.approx(step_seconds(ours.seconds, *step), rel=0.2)


def test_the_section_is_needed() -> None:
    with pytest.raises(ValueError, match="needs an aic section"):
        AicEstimator("mine", SHIPPED.model_copy(update={"aic": None}))
