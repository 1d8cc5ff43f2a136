"""Experts by a function of one's own: a race of clocks written as one has the closed forms' loads and misses."""

from __future__ import annotations

import numpy as np
import pytest
from devices_catalogue import ROOFLINE, compiled, worker
from latency_catalogue import H100, QWEN3_30B_A3B, VLLM
from pydantic import ValidationError

from hisearch.latency.devices.build import DevicesRefused
from hisearch.latency.devices.chosen_experts import ChosenExpertLoads
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.experts import ExpertLoads
from hisearch.latency.sharding import Parallelism
from hisearch.specs.machines.devices import ExpertsSpec

THIS_MODULE = "test_chosen_experts"
TOKENS = np.array([1.0, 4.0, 64.0, 1024.0])


def zipf(tokens, layer, experts, per_token, rng):
    """Token by token, the largest of exponential clocks; the same in every layer."""
    weights = np.arange(1, experts + 1) ** -1.0
    keys = rng.exponential(size=(tokens, experts)) / weights
    return np.bincount(np.argpartition(keys, per_token, axis=1)[:, :per_token].ravel(), minlength=experts)


def by_layer(tokens, layer, experts, per_token, rng):
    """All tokens choose the same experts, other ones in each layer."""
    counts = np.zeros(experts)
    counts[(layer * per_token + np.arange(per_token)) % experts] = tokens
    return counts


def short(tokens, layer, experts, per_token, rng):
    return np.zeros(experts - 1)


def uncounted(tokens, layer, experts, per_token, rng):
    return np.full(experts, tokens * (per_token + 1) / experts)


def crowded(tokens, layer, experts, per_token, rng):
    return np.eye(experts)[0] * tokens * per_token


def broken(tokens, layer, experts, per_token, rng):
    raise KeyError("no such layer")


def loads(kind, ranks, offload=None, layers=1):
    routing = {"kind": "zipf"} if kind == "zipf" else {"kind": "function", "function": f"{THIS_MODULE}:{kind}"}
    spec = ExpertsSpec.model_validate({"routing": routing, "offload": offload})
    return ExpertLoads(spec, 64, 4, ranks) if kind == "zipf" else ChosenExpertLoads(spec, 64, 4, ranks, layers=layers)


@pytest.fixture(autouse=True)
def few_knots(monkeypatch):
    """A token-by-token race takes long for 131,072 tokens."""
    monkeypatch.setattr("hisearch.latency.devices.experts.KNOTS", np.array([1.0, 2, 4, 16, 64, 256, 1024]))


@pytest.mark.parametrize("ranks", [1, 8])
def test_a_race_of_clocks_loads_ranks_as_its_closed_form_does(ranks):
    for counted, expected in zip(
        loads("by_race", ranks).busiest(TOKENS), loads("zipf", ranks).busiest(TOKENS), strict=True
    ):
        np.testing.assert_allclose(counted, expected, rtol=0.12)


def by_race(*arguments):
    return zipf(*arguments)


@pytest.mark.parametrize("eviction", ["static", "lru", "fifo"])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_race_of_clocks_misses_as_its_closed_form_does(eviction, ranks):
    offload = {"device": "far", "resident": 32 // ranks, "eviction": eviction}
    counted, expected = (
        loads(kind, ranks, offload, layers=8)._missed(np.array([2.0, 4.0, 16.0])) for kind in ("by_race", "zipf")
    )
    np.testing.assert_allclose(counted, expected, rtol=0.15, atol=0.2)


def test_a_race_of_clocks_is_as_hot_where_some_experts_run_elsewhere():
    offload = {"device": "far", "resident": 8, "run": "there"}
    for counted, expected in zip(
        loads("by_race", 1, offload)._hot(TOKENS, 8), loads("zipf", 1, offload)._hot(TOKENS, 8), strict=True
    ):
        np.testing.assert_allclose(counted, expected, rtol=0.1)


def test_each_layer_chooses_for_itself_and_has_a_cache_of_its_own():
    """All tokens on four experts of a layer: one rank of sixteen has all of them, and none is missed twice."""
    far = {"device": "far", "resident": 4}
    in_turn = loads("by_layer", 16, far, layers=48)
    picks, active = in_turn.busiest(TOKENS)
    np.testing.assert_allclose(picks, 4 * TOKENS)
    np.testing.assert_allclose(active, 4.0)
    assert in_turn._missed(TOKENS).max() == 0.0
    np.testing.assert_allclose(loads("by_layer", 16, far | {"resident": 0}, layers=16)._missed(TOKENS)[0], 4 / 8)


def test_a_step_is_priced_by_it():
    plain, chosen = (
        compiled(QWEN3_30B_A3B, H100, VLLM, worker(experts={"routing": routing}), max_tokens=1024)
        for routing in ({"kind": "random"}, {"kind": "function", "function": f"{THIS_MODULE}:by_layer"})
    )
    # Eight experts of 128 are read, whatever the number of tokens.
    assert chosen.seconds.token_s[64] < 0.5 * plain.seconds.token_s[64]
    assert chosen.seconds.token_s[1] == pytest.approx(plain.seconds.token_s[1], rel=0.02)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:choose", "cannot import no_such_module:choose: .*PYTHONPATH"),
        (f"{THIS_MODULE}:no_such_function", "cannot import"),
        (f"{THIS_MODULE}:THIS_MODULE", "is no function"),
        (f"{THIS_MODULE}:short", r"returned shape \(127,\); \(128,\) is needed"),
        (f"{THIS_MODULE}:uncounted", "returned 36864 choices for 4096 tokens; each chooses 8"),
        (f"{THIS_MODULE}:crowded", "outside 0 to 4096, the number of tokens"),
        (f"{THIS_MODULE}:broken", "failed for 4096 tokens of layer 0: KeyError"),
    ],
)
def test_what_is_refused(function, message):
    block = worker(experts={"routing": {"kind": "function", "function": function}})
    with pytest.raises(DevicesRefused, match=message):
        compose(block, QWEN3_30B_A3B, H100, ROOFLINE, Parallelism(), None, "bf16")


def test_a_function_is_named_and_named_alone():
    for routing in ({"kind": "function"}, {"kind": "random", "function": "a:b"}):
        with pytest.raises(ValidationError, match="goes with kind function, and only with it"):
            worker(experts={"routing": routing})
    with pytest.raises(ValidationError, match="pattern"):
        worker(experts={"routing": {"kind": "function", "function": "routing.py"}})
