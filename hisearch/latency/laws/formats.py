"""Formats of weights by their names in the laws: bytes of an element and of an operand, and the format of the peak."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.specs.base import DTYPE_BYTES, WEIGHT_SCALE_BYTES, DType


class GemmFormat(NamedTuple):
    """Bytes of a weight with its scales, bytes of an activation operand, format of the peak."""

    weight_bytes: float
    operand_bytes: float
    rate: DType


#: fp32 runs at the peak without tensor cores. nvfp4 multiplies activations that have scales too; fp4 (MXFP4) and int4
#: weights are unpacked to 16 bits.
FORMATS: dict[str, GemmFormat] = {
    "bf16": GemmFormat(2.0, 2.0, "bf16"),
    "fp8": GemmFormat(1.0, 1.0, "fp8"),
    "fp8_block": GemmFormat(1.0, 1.0, "fp8"),
    "nvfp4": GemmFormat(DTYPE_BYTES["nvfp4"] + WEIGHT_SCALE_BYTES["nvfp4"], 0.5625, "fp4"),
    "fp4": GemmFormat(DTYPE_BYTES["fp4"] + WEIGHT_SCALE_BYTES["fp4"], 2.0, "bf16"),
    "int4": GemmFormat(DTYPE_BYTES["int4"] + WEIGHT_SCALE_BYTES["int4"], 2.0, "bf16"),
    "fp32": GemmFormat(4.0, 4.0, "fp32"),
}
