"""Laws of published figures."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.latency.laws.formats import FORMATS
from hisearch.latency.laws.gemm import gemm_s
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.laws import GemmTerms
from refit.published import FLASHINFER_FP8_BLOCK, Products, products

B200 = Catalogue().get("Accelerator", "b200").spec
LAYOUT = FORMATS["fp8_block"]
SHEET = Sheet(148, B200.peak_flops[LAYOUT.rate], B200.memory_bandwidth_bytes_per_s)
TRUE = GemmTerms(
    source="made up", launch_s=2e-6, fill_s=2e-5, fill_depth=7168.0, bandwidth=0.6, flops=0.2,
    tile_losses=(0.0, 0.0, 0.0), wave_s=1.5e-6, tile=(32, 128), quantisation=1.0, sharpness=32.0,
)  # fmt: skip


def seconds(terms: GemmTerms, m: float, n: float, k: float) -> float:
    widths = {"weight_bytes": LAYOUT.weight_bytes, "operand_bytes": LAYOUT.operand_bytes}
    return float(gemm_s(terms, SHEET, np.array([m]), n, k, **widths)[0])


def test_coefficients_that_made_the_figures_are_found_again() -> None:
    shapes = [(m, n, k) for n, k in ((576, 7168), (24576, 7168), (2048, 1024)) for m in (8, 64, 512, 4096)]
    made = Products("made up", tuple((*shape, seconds(TRUE, *shape) * 1e6) for shape in shapes))
    law = products(made, LAYOUT, SHEET, 0.5)
    for name in ("launch_s", "fill_s", "bandwidth", "flops", "wave_s"):
        assert getattr(law, name) == pytest.approx(getattr(TRUE, name), rel=0.02)
    assert law.quantise_bandwidth == 0.5
    assert law.ranges["m"] == (8.0, 4096.0)


def test_the_law_of_flashinfers_products_meets_its_figures_and_is_the_shipped_one() -> None:
    law = products(FLASHINFER_FP8_BLOCK, LAYOUT, SHEET, None)
    errors = [abs(seconds(law, m, n, k) * 1e6 / micros - 1.0) for m, n, k, micros in FLASHINFER_FP8_BLOCK.rows]
    assert np.median(errors) < 0.01
    assert max(errors) < 0.04
    laws = Catalogue().get("LatencyProfile", "sglang-b200").spec.laws
    shipped = laws.of_version("0.5.9").gemm["fp8_block"]
    assert (shipped.flops, shipped.wave_s) == pytest.approx((law.flops, law.wave_s), rel=1e-2)
    assert laws.of_version("0.5.10").gemm == laws.gemm
    # Prompts of 8,192 tokens through DeepSeek's output matrix on 8 ranks: several times as long as with DeepGEMM.
    then, now = (seconds(of, 8192, 7168, 2048) for of in (shipped, laws.gemm["fp8_block"]))
    assert 2.5 * now < then < 6.0 * now
