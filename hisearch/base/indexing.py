"""Array indexing in kernels, without numba's handling of negative indices.

A negative index counts from the end in Python, so numba compares every signed index with zero and reads the array's
extent for it. Kernels have no negative indices, and simulations take a fifth less time without these comparisons.
Functions compiled elsewhere in the process keep them.

With ``HISEARCH_CHECK_INDICES=1``, for work on kernels, an index outside its array is reported on standard error and
ends the process.
"""

from __future__ import annotations

import os
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.np import arrayobj

#: Prefixes of mangled kernel names: ``hisearch.kernels``, and modules of other packages under the same rule.
_KERNELS = ("_ZN8hisearch7kernels", "_ZN8hisearch6traces6_reuse", "_ZN8hisearch7latency8measured6_tiles")
_CHECKED = os.environ.get("HISEARCH_CHECK_INDICES") == "1"

_wrapped = arrayobj.fix_integer_index


def _index(context: Any, builder: Any, kind: Any, index: Any, extent: Any) -> Any:
    """Replaces numba's ``fix_integer_index``: the value used for ``index`` on an axis of ``extent`` elements."""
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
    """Write ``text``, formatted with ``values``, to standard error and end the process."""
    int32, char_pointer = ir.IntType(32), ir.IntType(8).as_pointer()
    message = builder.bitcast(context.insert_const_string(builder.module, f"{text}\n"), char_pointer)
    write = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(int32, [int32, char_pointer], var_arg=True), "dprintf"
    )
    builder.call(write, [int32(2), message, *values])
    builder.call(cgutils.get_or_insert_function(builder.module, ir.FunctionType(ir.VoidType(), []), "llvm.trap"), [])


arrayobj.fix_integer_index = _index
