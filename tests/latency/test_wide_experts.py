"""Attention groups that share routed experts alone, and send each token to the ranks of its experts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.latency.laws.collectives import Collectives
from hisearch.latency.sharding import Parallelism, shard
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.laws import CollectiveCurve, CollectiveCurves
from hisearch.specs.machines.parallelism import split_problems

DEEPSEEK = Catalogue().get("Model", "deepseek-v3").spec
GATHERED, SENT = Parallelism(1, 32, 32), Parallelism(1, 32, 32, all_to_all=True)
CURVES = CollectiveCurves(
    source="made up",
    all_reduce=[CollectiveCurve(ranks=8, payload_bytes=[1e3, 1e9], seconds=[1e-5, 1e-3])],
    all_gather=[CollectiveCurve(ranks=8, payload_bytes=[1e3, 1e9], seconds=[1e-5, 1e-3])],
    reduce_scatter=[CollectiveCurve(ranks=8, payload_bytes=[1e3, 1e9], seconds=[1e-5, 1e-3])],
    all_to_all=[CollectiveCurve(ranks=8, payload_bytes=[1e3, 1e9], seconds=[1e-5, 1e-3])],
)


def test_a_group_keeps_dense_ffns_and_shared_experts_to_itself() -> None:
    """Routed experts are dealt out as before."""
    gathered, sent = shard(DEEPSEEK, GATHERED), shard(DEEPSEEK, SENT)
    assert sent.intermediate == 32 * gathered.intermediate == DEEPSEEK.intermediate_size
    assert sent.shared_intermediate == 32 * gathered.shared_intermediate
    assert (sent.experts, sent.expert_intermediate) == (gathered.experts, gathered.expert_intermediate)


@pytest.mark.parametrize("ranks", [24, 48])
def test_copies_of_experts_fill_the_ranks_that_would_have_fewer(ranks: int) -> None:
    split = Parallelism(1, ranks, ranks)
    assert [problem.key for problem in split_problems(DEEPSEEK, split)]
    wide = split._replace(all_to_all=True)
    assert not list(split_problems(DEEPSEEK, wide))
    assert shard(DEEPSEEK, wide).experts * ranks >= DEEPSEEK.moe.experts


@given(st.floats(1.0, 4096.0), st.sampled_from([16, 32, 64]))
def test_sending_to_experts_is_no_slower_than_sending_to_all_of_many_groups(tokens: float, ranks: int) -> None:
    """A token has copies for eight experts at most, not for each of the ranks."""
    law = Collectives(CURVES, 1e11, 1e-6)
    payload = np.array([2.0 * DEEPSEEK.hidden_size * tokens])
    gathered, sent = Parallelism(1, ranks, ranks), Parallelism(1, ranks, ranks, all_to_all=True)
    assert law.shared_s(sent, DEEPSEEK, payload) <= law.shared_s(gathered, DEEPSEEK, payload)


def test_measured_exchanges_come_before_all_to_alls() -> None:
    curve = CollectiveCurve(ranks=4, payload_bytes=[1e5, 1e8], seconds=[1e-3, 1e-3])
    law = Collectives(CURVES, 1e11, 1e-6, exchange=[curve])
    seconds = law.exchanged_s(SENT, DEEPSEEK, np.array([1e4, 1e6]))
    assert seconds == pytest.approx(1e-3)
    layers = DEEPSEEK.layers - DEEPSEEK.moe.leading_dense_layers
    assert law.shared_s(SENT, DEEPSEEK, np.array([1e4])) == pytest.approx(layers * 1e-3)


@pytest.mark.parametrize(("name", "ranks"), [("trtllm-gb200", 64), ("vllm-gb200", 32), ("sglang-gb200", 4)])
def test_shipped_profiles_have_the_exchanges_that_were_measured(name: str, ranks: int) -> None:
    known = Catalogue().get("LatencyProfile", name).spec.laws.expert_exchange
    assert known
    for curves in known.values():
        assert curves[-1].ranks == ranks
        assert all(curve.seconds == sorted(curve.seconds) for curve in curves)
