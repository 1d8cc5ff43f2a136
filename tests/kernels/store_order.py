"""Run with the jit off: prints each use of a store or a shared link that is not in order of time (L4).

Workers' schedulers, servers and moves all use them: nothing may be found before its transfer has ended, at whichever
worker, so each is to be used in order of the one clock that the event loop keeps, and put at the end of a transfer.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.kernels.cache import store
from hisearch.kernels.traffic import links
from tests.kernels.invariants import run_until
from tests.kernels.tier_systems import TieredSystem, chains, limited_stores, tiered

_newest: dict[tuple[str, int], float] = {}
_ends: set[float] = set()
_wrong: list[str] = []
_uses = Counter[str]()


def _note(kind: str, which: int, at: float) -> None:
    if at < _newest.get((kind, which), 0.0):
        _wrong.append(f"{kind} {which} at {at!r} s, after {_newest[kind, which]!r} s")
    _newest[kind, which] = at
    _uses[kind] += 1


def _watched_send(send: Callable[..., float]) -> Callable[..., float]:
    def watched(sim: Any, k: int, now: float, tokens: int) -> float:
        _note("link", k, now)
        end = send(sim, k, now, tokens)
        _ends.add(end)
        return end

    return watched


def _watched_store(use: Callable[..., int]) -> Callable[..., int]:
    def watched(sim: Any, v: int, trace_node: int, begin: int, end: int, now: float, *priority: int) -> int:
        _note("store", v, now)
        if priority and end > begin and now not in _ends:
            _wrong.append(f"put into store {v} at {now!r} s, when no transfer ends")
        return use(sim, v, trace_node, begin, end, now, *priority)

    return watched


links.send = _watched_send(links.send)
store.leading = _watched_store(store.leading)
store.put = _watched_store(store.put)


@settings(max_examples=int(sys.argv[1]), database=None, derandomize=True, deadline=None)
@given(system=st.one_of(tiered(limited_stores(), most_workers=4, mixed=False), chains(most_workers=4, mixed=False)))
def check(system: TieredSystem) -> None:
    """One system."""
    _newest.clear()
    _ends.clear()
    run_until(system)


check()
assert min(_uses[kind] for kind in ("link", "store")) > 0
print("\n".join(_wrong) or "in order")
