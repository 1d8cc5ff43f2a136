"""Bit lengths as one machine instruction; ``math.frexp`` would be a call."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic, overload

import hisearch.base.indexing  # noqa: F401  (before anything is compiled)


@intrinsic
def _leading_zeros(_context: Any, _x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = context.cast(builder, args[0], signature.args[0], types.int64)
        return builder.ctlz(wide, context.get_constant(types.boolean, False))

    return types.int64(types.int64), generate


def bit_length(x: int) -> int:
    """Bits of the non-negative integer ``x``, 0 for 0."""
    return int(x).bit_length()


@overload(bit_length)
def _bit_length(x):  # type: ignore[no-untyped-def]  # numba compares the argument lists, annotations too
    def length(x):  # type: ignore[no-untyped-def]
        return 64 - _leading_zeros(x)

    return length
