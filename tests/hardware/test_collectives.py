"""Collectives: closed forms (laws L4, L7)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.hardware import collectives
from hisearch.specs.machines.hardware import LinkSpec

NVLINK = LinkSpec(kind="nvlink", bandwidth_bytes_per_s=450e9, latency_s=2e-6)
ALL = [collectives.all_reduce_s, collectives.all_gather_s, collectives.reduce_scatter_s, collectives.all_to_all_s]

payloads = st.floats(1.0, 1e12)
ranks = st.integers(2, 64)


@given(payloads, ranks)
def test_all_reduce_is_reduce_scatter_then_all_gather(payload, n):
    all_reduce_s = collectives.all_reduce_s(payload, n, NVLINK)
    parts = collectives.reduce_scatter_s(payload, n, NVLINK) + collectives.all_gather_s(payload, n, NVLINK)
    assert all_reduce_s == pytest.approx(parts)
    assert all_reduce_s == pytest.approx(2 * (n - 1) * 2e-6 + 2 * (n - 1) / n * payload / 450e9)


@given(payloads)
def test_two_ranks_exchange_half_both_ways(payload):
    assert collectives.all_reduce_volume(payload, 2) == payload
    assert collectives.all_to_all_s(payload, 2, NVLINK) == pytest.approx(2e-6 + payload / 2 / 450e9)


@pytest.mark.parametrize("collective", ALL)
def test_one_rank_communicates_nothing(collective):
    assert collective(1e9, 1, NVLINK, alpha_s=1e-5) == 0.0


@pytest.mark.parametrize("collective", ALL)
def test_given_alpha_and_efficiency_replace_hops_and_peak(collective):
    fixed = collective(8e9, 8, NVLINK, alpha_s=1e-5, efficiency=0.5)
    wire = collective(8e9, 8, NVLINK, alpha_s=0.0)
    assert fixed == pytest.approx(1e-5 + 2 * wire)


def test_send_recv_is_one_transfer():
    assert collectives.send_recv_s(9e9, NVLINK) == pytest.approx(9e9 / 450e9 + 2e-6)
