"""Laws of kernels that no table has, fitted on published figures."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hisearch.latency.laws.formats import GemmFormat
from hisearch.latency.laws.gemm import gemm_s
from hisearch.latency.laws.sheet import Sheet
from hisearch.specs.machines.laws import GemmTerms


class Products(NamedTuple):
    """Measured products ``y[m, n] = x[m, k] @ w[k, n]`` of one kernel, x already quantised.

    source: of the figures. rows: m, n, k, microseconds.
    """

    source: str
    rows: tuple[tuple[int, int, int, float], ...]


#: FlashInfer's products in fp8 blocks with TensorRT-LLM's kernels on a B200. Their tiles have 32 tokens and 128
#: outputs, and every wave of 148 tiles takes 12.3 us at a depth of 7,168 and 3.6 us at 1,024. A matrix of 24,576 x
#: 7,168 is larger than the L2 cache, and is read from memory for each 32 tokens: its waves take 20 us. A rank's
#: matrices are smaller, so the widest one has only figures of up to 32 tokens here.
FLASHINFER_FP8_BLOCK = Products(
    "flashinfer gemm_fp8_nt_groupwise, trtllm (github sgl-project/sglang, pull request 13528; NVIDIA/cutlass, "
    "issue 2923)",
    (
        (8, 576, 7168, 16.64), (16, 576, 7168, 16.288), (32, 576, 7168, 16.416), (64, 576, 7168, 16.352),
        (128, 576, 7168, 16.384), (256, 576, 7168, 16.384), (1024, 576, 7168, 28.704), (2048, 576, 7168, 41.216),
        (4096, 576, 7168, 63.488), (8, 24576, 7168, 47.136), (16, 24576, 7168, 47.104), (32, 24576, 7168, 47.392),
        (8, 2048, 1024, 5.15), (32, 2048, 1024, 5.22), (64, 2048, 1024, 4.96), (128, 2048, 1024, 4.99),
        (256, 2048, 1024, 5.09), (512, 2048, 1024, 8.67),
    ),
)  # fmt: skip

#: Lowest, first and highest launch (us), latency of a pipeline of ``FILL_DEPTH`` (us), shares of bandwidth and peak,
#: and what a wave takes at any depth (us).
BOUNDS = ((0.1, 0.1, 0.1, 0.02, 0.1), (3.0, 15.0, 0.6, 0.12, 1.0), (20.0, 100.0, 1.0, 1.0, 5.0))
FILL_DEPTH = 7168.0
#: Rows and columns of the kernels' tiles.
TILE = (32, 128)
#: Memory and arithmetic overlap: the figures are too few to fit how much.
SHARPNESS = 32.0


def products(published: Products, layout: GemmFormat, sheet: Sheet, quantise_bandwidth: float | None) -> GemmTerms:
    """The law of published products: five coefficients. No error is stated, since no shape can be held out.

    Args:
        published: figures.
        layout: their format.
        sheet: accelerator; ``flops`` is the rate of the format.
        quantise_bandwidth: of the pass that quantises x, which the figures leave out.
    """
    from scipy.optimize import least_squares

    m, n, k, micros = np.array(published.rows).T

    def terms(theta: npt.NDArray[np.float64]) -> GemmTerms:
        launch_us, fill_us, bandwidth, flops, wave_us = (float(f"{value:.4g}") for value in theta)
        return GemmTerms(
            source=published.source, launch_s=launch_us * 1e-6, fill_s=fill_us * 1e-6, fill_depth=FILL_DEPTH,
            bandwidth=bandwidth, flops=flops, tile_losses=(0.0, 0.0, 0.0), wave_s=wave_us * 1e-6, tile=TILE,
            quantisation=1.0, sharpness=SHARPNESS,
            ranges={"m": (m.min(), m.max()), "n": (n.min(), n.max()), "k": (k.min(), k.max())},
        )  # fmt: skip

    def residuals(theta: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        seconds = gemm_s(
            terms(theta), sheet, m, n, k, weight_bytes=layout.weight_bytes, operand_bytes=layout.operand_bytes
        )
        return np.asarray(np.log(seconds * 1e6 / micros))

    low, start, high = BOUNDS
    solution = least_squares(residuals, start, bounds=(low, high), diff_step=1e-3)
    return terms(solution.x).model_copy(update={"quantise_bandwidth": quantise_bandwidth})
