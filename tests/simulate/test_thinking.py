"""First visible tokens where a run is cut, and that thinking changes nothing else."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hisearch.simulate import Result, simulate
from tests.kernels.systems import System, any_engines, crowded, examples, settled, systems


def with_thinking(result: Result) -> tuple[np.ndarray, np.ndarray]:
    """(thinking tokens, times of first visible tokens)."""
    table = result.requests
    assert table.thinking_tokens is not None
    assert table.first_visible_s is not None
    return table.thinking_tokens, table.first_visible_s


@examples(60)
@given(system=systems(any_engines(), repeats=True), seed=st.integers(0, 1000))
def test_nothing_else_depends_on_it(system: System, seed: int) -> None:
    system = replace(system, seed=2 * seed)  # of even seeds requests think
    arrays, thinks = system.trace.arrays, settled(system)
    plain = replace(system.trace, arrays=arrays._replace(thinking_tokens=0 * arrays.thinking_tokens))
    alone = simulate(system.plan, plain, replicas=system.workers, router=system.router, seed=system.seed)
    for name in (field.name for field in fields(thinks.requests)):
        if name not in ("thinking_tokens", "first_visible_s"):
            np.testing.assert_array_equal(getattr(thinks.requests, name), getattr(alone.requests, name), err_msg=name)
    np.testing.assert_array_equal(thinks.gap_counts, alone.gap_counts)
    np.testing.assert_array_equal(thinks.workers.energy_j, alone.workers.energy_j)


@examples(60)
@given(system=st.one_of(*map(crowded, ("vllm", "sglang", "trtllm"))), share=st.floats(0.05, 0.95))
def test_no_token_is_seen_behind_the_horizon(system: System, share: float) -> None:
    """What ended before the horizon has the times of the whole run."""
    system = replace(system, seed=system.seed // 2 * 2)
    whole = settled(system)
    horizon_s = share * float(np.nanmax(whole.requests.finish_s))
    cut = system.simulate(horizon_s=horizon_s)
    (_, whole_s), (_, cut_s) = with_thinking(whole), with_thinking(cut)
    assert not (cut_s > horizon_s).any()
    finished = cut.requests.finished
    np.testing.assert_array_equal(cut_s[finished], whole_s[finished])
