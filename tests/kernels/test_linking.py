"""Kernels are optimised once, with all that they call: what ``base/linking.py`` relies on in numba."""

from __future__ import annotations

import numba
import numpy as np
import pytest
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler import Flags

from hisearch.base.compiler_speed import _equal
from hisearch.base.jit import kernel

pytestmark = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled with the jit off")


@kernel
def _innermost(values, i):
    return values[i] * 2.0


@kernel
def _inner(values, i):
    return _innermost(values, i) + _innermost(values, i + 1)


@kernel
def _first(values):
    return _inner(values, 0)


@kernel
def _second(values):
    return _inner(values, 1) + _innermost(values, 0)


VALUES = np.array([1.0, 2.0, 4.0])


def test_a_kernel_is_optimised_once_with_all_that_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    optimised: list[str] = []
    whole = CPUCodeLibrary._optimize_final_module

    def noted(self: CPUCodeLibrary) -> None:
        optimised.append(self.name)
        whole(self)

    monkeypatch.setattr(CPUCodeLibrary, "_optimize_final_module", noted)
    assert _first(VALUES) == 6.0
    assert [name for name in optimised if name.startswith("_")] == ["_first"]
    assert _second(VALUES) == 14.0
    assert [name for name in optimised if name.startswith("_")] == ["_first", "_second"]


def test_a_function_that_is_no_kernel_calls_kernels() -> None:
    @numba.njit
    def plain(values):
        return _inner(values, 0) - _innermost(values, 0)

    assert plain(VALUES) == 4.0
    assert _first(VALUES) == 6.0


def test_flags_are_compared_as_numba_compares_them() -> None:
    plain, explicit, other = Flags(), Flags(), Flags()
    explicit.nrt = plain.nrt
    other.no_cfunc_wrapper = not other.no_cfunc_wrapper
    for first in (plain, explicit, other):
        for second in (plain, explicit, other):
            assert (first == second) == _equal(first, second)
            assert first != second or hash(first) == hash(second)
    assert plain == explicit
    assert plain != other
    assert plain != "flags"
