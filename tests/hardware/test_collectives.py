"""Collectives: closed forms (laws L4, L7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.hardware.collectives import all_gather_volume, all_reduce_volume

payloads = st.floats(1.0, 1e12)


@given(payloads, st.integers(2, 64))
def test_all_reduce_is_reduce_scatter_then_all_gather(payload: float, n: int) -> None:
    assert all_reduce_volume(payload, n) == pytest.approx(2 * all_gather_volume(payload, n))


@given(payloads)
def test_two_ranks_exchange_half_both_ways(payload: float) -> None:
    assert all_reduce_volume(payload, 2) == payload
    assert all_gather_volume(payload, 2) == payload / 2


@pytest.mark.parametrize("volume", [all_reduce_volume, all_gather_volume])
def test_one_rank_communicates_nothing(volume) -> None:  # type: ignore[no-untyped-def]
    assert volume(1e9, 1) == 0.0
