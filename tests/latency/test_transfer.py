"""Laws carried over to accelerators without measurements, and what they err by where one is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hisearch.hardware.peaks import WITHOUT_ECC_BITS, sheet_peaks
from hisearch.latency.costs import CompiledCosts
from hisearch.latency.estimator import build_estimator
from hisearch.latency.estimators import transfer
from hisearch.latency.priced import PricedWorker
from hisearch.latency.sharding import Parallelism
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.profile import ProfileChoice
from refit.boards import BOARDS

CATALOGUE = Catalogue()
AUTO = CATALOGUE.get("LatencyProfile", "auto").spec
VLLM = [choice for choice in AUTO.choices if choice.engine == "vllm"]
TRANSFERRED = [
    name
    for name in CATALOGUE.names("Accelerator")
    if transfer.nearest(CATALOGUE.get("Accelerator", name).spec, VLLM) is not None
]


def _costs(accelerator: Any, engine: Any = "vllm", **settings: Any) -> CompiledCosts:
    question: dict[str, Any] = {
        "accelerator": accelerator, "split": Parallelism(), "weight_dtype": None, "kv_dtype": "bf16",
        "engine": EngineSpec(name=engine), "max_tokens": 4096, "max_sequences": 256, "max_context_tokens": 500_000,
    }  # fmt: skip
    priced = PricedWorker(CATALOGUE.get("Model", "llama-3.1-8b").spec, **question | settings)
    return build_estimator("auto", AUTO).compile(priced)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_accelerator_left_out_is_priced_within_the_stated_error(engine: Any) -> None:
    """With its generation left out too; the stated error is the root mean square over all of them and the laws' own."""
    errors_left_out = transfer.left_out(engine, AUTO.choices)
    assert {name for name, _ in errors_left_out} == set(BOARDS)
    everything = np.concatenate(list(errors_left_out.values()))
    rms = np.sqrt(np.mean(np.square(everything)))
    print(
        engine, {pair: f"{np.median(np.abs(errors)):.1%}" for pair, errors in errors_left_out.items()}, f"RMS {rms:.1%}"
    )
    assert np.hypot(rms, 0.10) <= transfer.TRANSFERRED_ERROR
    assert all(np.median(np.abs(errors)) <= transfer.TRANSFERRED_ERROR for errors in errors_left_out.values())


@pytest.mark.parametrize("name", TRANSFERRED)
def test_what_is_carried_over_says_so(name: str) -> None:
    accelerator = CATALOGUE.get("Accelerator", name).spec
    costs = _costs(accelerator)
    assert costs.evidence == "transferred"
    assert costs.relative_error == (transfer.DERATED_ERROR if accelerator.derating else transfer.TRANSFERRED_ERROR)
    assert any("are carried over" in warning for warning in costs.warnings)
    assert costs.served is None
    decode_s = step_seconds(costs.seconds, [], [1024])
    weights_s = 2 * 7.5e9 / transfer.derated(accelerator).memory_bandwidth_bytes_per_s
    assert weights_s < decode_s < 2 * weights_s + 0.01


def test_the_nearest_is_nearest_in_bandwidth_peak_and_design() -> None:
    errors_left_out = {}
    for name in TRANSFERRED:
        choice = transfer.nearest(CATALOGUE.get("Accelerator", name).spec, VLLM)
        assert choice is not None
        errors_left_out[name] = choice.accelerator
    assert len(errors_left_out) == 15
    assert errors_left_out["a100-40gb"] == "a100-80gb"
    # By bandwidth and peak alone an H100 PCIe is nearer to an RTX PRO 6000, whose multiprocessors do a third.
    assert errors_left_out["h100-nvl"] == errors_left_out["h100-pcie"] == "h100-sxm"
    assert errors_left_out["h200-nvl"] == "h200"
    assert errors_left_out["gh200"] in ("h100-sxm", "h200")
    assert {errors_left_out[name] for name in ("l40", "rtx-6000-ada", "rtx4090")} == {"l40s"}


@pytest.mark.parametrize(("measured", "name", "scale"), [("h200", "gh200", 1.71), ("gb200", "h200", 1.0)])
def test_host_work_is_that_of_the_host_it_is_carried_to(measured: str, name: str, scale: float) -> None:
    profile = CATALOGUE.get("LatencyProfile", f"sglang-{measured}").spec
    carried = transfer.carried(profile, CATALOGUE.get("Accelerator", name).spec)
    assert carried.engines["sglang"].host_scale == scale
    assert carried.engines["sglang"].launch_s == profile.engines["sglang"].launch_s


def test_accelerators_that_were_measured_or_are_no_gpus_are_priced_as_before() -> None:
    assert _costs(CATALOGUE.get("Accelerator", "h100-sxm").spec).evidence != "transferred"
    for name in ("tpu-v5e", "a10g"):  # A10G is far from all that were measured.
        far = _costs(CATALOGUE.get("Accelerator", name).spec)
        assert far.evidence == "assumed"
        assert any("the roofline prices its steps" in warning for warning in far.warnings)


def test_a_derated_sheet_has_its_shares_of_the_peaks() -> None:
    accelerator = CATALOGUE.get("Accelerator", "mi300x").spec
    sheet = transfer.derated(accelerator)
    assert sheet_peaks(sheet)["bf16"] == pytest.approx(0.64 * 1307.4e12)
    assert sheet.memory_bandwidth_bytes_per_s == pytest.approx(0.9 * 5.3e12)
    assert transfer.derated(CATALOGUE.get("Accelerator", "l4").spec) is CATALOGUE.get("Accelerator", "l4").spec


def test_experts_of_another_vendor_attain_in_fp8_what_they_do_in_16_bits() -> None:
    profile = CATALOGUE.get("LatencyProfile", "vllm-h200").spec
    laws = {name: transfer.carried(profile, CATALOGUE.get("Accelerator", name).spec).laws for name in ("mi300x", "l4")}
    assert laws["mi300x"] is not None
    assert laws["mi300x"].moe["fp8"] == laws["mi300x"].moe["bf16"]
    assert laws["l4"] is not None
    assert "fp8" not in laws["l4"].moe


def test_a_card_with_fewer_watts_holds_a_lower_clock_than_its_sheet_says() -> None:
    """(340 W / 132) / (630 W / 132) to the power of 0.39 is 0.786 of H100 SXM's clock; its sheet says 0.844."""
    laws = CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec.laws
    assert laws is not None

    def share(name: str) -> float:
        carried = transfer.carried(
            CATALOGUE.get("LatencyProfile", "vllm-h100-sxm").spec, CATALOGUE.get("Accelerator", name).spec
        )
        assert carried.laws is not None
        return carried.laws.clock_share / laws.clock_share

    assert share("h100-nvl") == pytest.approx((340 / 630) ** 0.39 / (835.5 / 989.4), rel=1e-3)
    assert share("h100-pcie") < share("h100-nvl")
    assert share("h200-nvl") == share("mi300x") == 1.0
    assert share("l4") == 1.0  # another design: a multiprocessor's peak is a fourth


def test_a_card_without_in_band_error_correction_moves_more_data_than_one_with_it() -> None:
    """Steps that read weights alone take 15/16 of those of the same card with error correction."""
    card = CATALOGUE.get("Accelerator", "l40").spec
    assert card.in_band_ecc
    without = card.model_copy(update={"in_band_ecc": False})
    decode = [step_seconds(_costs(sheet, engine="sglang").seconds, [], [16]) for sheet in (card, without)]
    prompt = [step_seconds(_costs(sheet, engine="sglang").seconds, [(4096, 0)], []) for sheet in (card, without)]
    assert WITHOUT_ECC_BITS < decode[1] / decode[0] < 0.96
    assert 0.99 < prompt[1] / prompt[0] <= 1.0


def test_error_correction_that_the_measured_card_had_too_changes_nothing() -> None:
    """The shares of its laws are those of its sheet's peak."""
    measured = CATALOGUE.get("Accelerator", "l40s").spec
    profile = CATALOGUE.get("LatencyProfile", "vllm-l40s").spec
    assert measured.in_band_ecc
    assert profile.laws.in_band_ecc
    assert transfer.carried(profile, measured).laws.memory_bandwidth_bytes_per_s == 864e9
    assert _costs(measured).warnings == ()


def test_error_correction_explains_what_separates_neighbours() -> None:
    """Laws of a card without it, carried to an L40S that was measured with it: nearer than if it had none."""
    errors = transfer.left_out("vllm", VLLM)["l40s", "rtx-pro-6000"]
    assert abs(np.mean(errors)) < 0.02


def test_an_older_list_may_name_profiles_that_are_gone() -> None:
    """Run folders keep the list that they were made with."""
    gone = [ProfileChoice(engine="vllm", accelerator="rtx4090", profile="vllm-rtx4090")]
    older = AUTO.model_copy(update={"choices": [*gone, *AUTO.choices]})
    for name in ("rtx4090", "l40s", "h100-nvl"):
        priced = PricedWorker(
            CATALOGUE.get("Model", "llama-3.1-8b").spec, CATALOGUE.get("Accelerator", name).spec, Parallelism(2), None,
            "bf16", EngineSpec(name="vllm"), max_tokens=4096, max_sequences=256, max_context_tokens=500_000,
        )  # fmt: skip
        costs = [build_estimator("auto", profile).compile(priced) for profile in (older, AUTO)]
        np.testing.assert_array_equal(costs[0].seconds.token_s, costs[1].seconds.token_s)
        assert costs[0].warnings == costs[1].warnings


def test_documents_that_do_not_say_are_as_the_measured_card() -> None:
    """Those written before the key keep their speed."""
    silent = CATALOGUE.get("Accelerator", "l40s").spec.model_copy(update={"in_band_ecc": None})
    said, unsaid = (_costs(sheet).seconds.token_s for sheet in (CATALOGUE.get("Accelerator", "l40s").spec, silent))
    np.testing.assert_array_equal(unsaid, said)


def test_a_card_too_far_from_all_says_from_which_and_how_far() -> None:
    card = CATALOGUE.get("Accelerator", "a10g").spec
    (warning,) = (text for text in _costs(card).warnings if "roofline prices" in text)
    assert "a100-80gb is nearest, and differs 4.46 times" in warning
    assert "carried over 3 times at most" in warning
