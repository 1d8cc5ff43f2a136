"""The arrays of a pool, by its number."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic, overload

from hisearch.base.jit import kernel
from hisearch.kernels.core.handle import HandleType, handle_at
from hisearch.kernels.layout import sim as la


def at(fleet: Any, p: int) -> la.Sim:
    """The arrays of pool ``p``."""
    sim: la.Sim = handle_at(int(fleet.sims[p]))  # type: ignore[assignment]
    return sim


@kernel
def first(fleet):
    """The first pool that takes arriving requests; its records have the outcome of requests that reached no worker."""
    return at(fleet, fleet.members[0].pool)


@intrinsic
def _as_sim(_typing: Any, address: Any) -> Any:
    def generate(_context: Any, _builder: Any, _signature: Any, values: Any) -> Any:
        return values[0]

    return HandleType(la.Sim)(types.int64), generate


@overload(at)
def _at(fleet, p):  # type: ignore[no-untyped-def]  # numba compares the argument lists
    def call(fleet, p):  # type: ignore[no-untyped-def]
        return _as_sim(fleet.sims[p])

    return call
