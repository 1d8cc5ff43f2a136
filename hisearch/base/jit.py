"""The one decorator of all kernels."""

from __future__ import annotations

from typing import Any

from numba import config as _config
from numba import njit as _njit
from numba import types as _types
from numba.core.ccallback import CFunc

import hisearch.base.compiler_speed
import hisearch.base.indexing  # noqa: F401  (both before anything is compiled)
from hisearch.base.kernel_cache import KernelCache
from hisearch.base.linking import PartCompiler, WholeCompiler

#: No GIL, IEEE arithmetic (no fast-math: stepping and skipping must agree bit for bit).
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def kernel(function: Any, **options: Any) -> Any:
    """Compile ``function``: for Python callers, cached on disk; for other kernels, without wrappers.

    Calls from other kernels use a separate compilation. It omits the wrappers that Python needs and takes a third of
    the time. It takes int64 whatever the width of the caller's integers; otherwise every mixture of widths would be
    compiled separately. With the jit off, returns ``function`` itself.
    """
    if _config.DISABLE_JIT:
        return function
    outer = _njit(pipeline_class=WholeCompiler, **OPTIONS)(function)
    if function.__module__.startswith("hisearch."):
        outer._cache = KernelCache(function)
    parts = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": PartCompiler}
    inner = _njit(**parts, **OPTIONS, **options)(function)

    def call_template(args: Any, kws: Any) -> Any:
        _, args = outer._compiler.fold_argument_types(args, kws)
        return inner.get_call_template(tuple(_widened(arg) for arg in args), {})

    outer.get_call_template = call_template
    outer.get_overload = inner.get_overload
    outer.get_compile_result = inner.get_compile_result
    return outer


def inlined_kernel(function: Any) -> Any:
    """``kernel`` for what is small and called often: LLVM puts its code into every caller, however many there are."""
    return kernel(function, forceinline=True)


def _widened(arg: Any) -> Any:
    plain = _types.unliteral(arg)
    narrow = isinstance(plain, _types.Integer) and plain.bitwidth < 64
    return _types.int64 if narrow else plain


def c_function(function: Any, signature: Any) -> Any:
    """``function`` compiled for calls by its address (its attribute ``address``), cached on disk."""
    args, returned = signature.args, signature.return_type
    options = {"error_model": OPTIONS["error_model"]}
    compiled = CFunc(function, (args, returned), locals={}, options=options, pipeline_class=WholeCompiler)
    compiled._cache = KernelCache(function)
    compiled.compile()
    return compiled
