"""Indices of kernels' arrays, taken as they are.

A negative index counts from the end in Python, so numba compares every signed index with zero and reads the array's
extent for it. Kernels have no negative indices, and simulations take a fifth less time without these comparisons.
Functions compiled elsewhere in the process keep them.

For work on kernels: with ``HISEARCH_CHECK_INDICES=1`` an index outside its array is named on standard error and ends
the process.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np import arrayobj

#: How mangled names of kernels begin: ``hisearch.kernels``, and modules of other packages with the same rule.
_KERNELS = ("_ZN8hisearch7kernels", "_ZN8hisearch6traces6_reuse", "_ZN8hisearch7latency8measured6_tiles")
_CHECKED = os.environ.get("HISEARCH_CHECK_INDICES") == "1"

_wrapped = arrayobj.fix_integer_index


def _index(context: Any, builder: Any, kind: Any, index: Any, extent: Any) -> Any:
    """Stands for numba's ``fix_integer_index``: what it makes of ``index`` on an axis of ``extent``."""
    name = builder.function.name
    if not kind.signed or not name.startswith(_KERNELS):
        return _wrapped(context, builder, kind, index, extent)
    index = context.cast(builder, index, kind, types.intp)
    if _CHECKED:
        with builder.if_then(builder.icmp_unsigned(">=", index, extent), likely=False):
            where = name.removeprefix("_ZN8hisearch").split("B", 1)[0]
            _end(context, builder, f"index %ld of %ld in {where}", index, extent)
    return index


def _end(context: Any, builder: Any, text: str, *values: Any) -> None:
    """Write ``text`` of ``values`` to standard error and end the process."""
    number, word = ir.IntType(32), ir.IntType(8).as_pointer()
    said = builder.bitcast(context.insert_const_string(builder.module, f"{text}\n"), word)
    write = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(number, [number, word], var_arg=True), "dprintf"
    )
    builder.call(write, [number(2), said, *values])
    builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap"), [])


arrayobj.fix_integer_index = _index
