"""Experts on the move, against draws token by token and caches step by step."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from devices_catalogue import ROOFLINE, compiled, worker
from latency_catalogue import H100, LLAMA_8B, QWEN3_30B_A3B, VLLM
from pydantic import ValidationError

from hisearch.latency.devices.build import DevicesRefused
from hisearch.latency.devices.compose import compose
from hisearch.latency.devices.experts import ExpertLoads, choice_probabilities, misses, needed, places
from hisearch.latency.operators import active_experts
from hisearch.latency.sharding import Parallelism
from hisearch.specs.machines.devices import ExpertRoutingSpec, ExpertsSpec

ZIPF = ExpertRoutingSpec(kind="zipf", exponent=1.0)


def chosen(weights, per_token, tokens, rng):
    """Experts of each token, shape (tokens, per_token): the largest of exponential clocks, one token at a time."""
    keys = rng.exponential(size=(tokens, len(weights))) / np.maximum(weights, 1e-300)
    return np.argsort(keys, axis=1)[:, :per_token]


def test_random_routing_needs_what_the_roofline_supposes():
    loads = ExpertLoads(ExpertsSpec(), 128, 8, 1)
    tokens = np.array([1.0, 7.0, 64.0, 1000.0])
    picks, active = loads.busiest(tokens)
    np.testing.assert_allclose(active, active_experts(128, 8, tokens))
    np.testing.assert_allclose(picks, 8 * tokens)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.5])
def test_choices_without_repetition(exponent):
    """The race's probabilities, as tokens choose."""
    weights = np.arange(1, 65) ** -exponent
    drawn = chosen(weights, 8, 20_000, np.random.default_rng(1))
    counted = np.bincount(drawn.ravel(), minlength=64) / 20_000
    expected = choice_probabilities(ExpertRoutingSpec(kind="zipf", exponent=exponent), 64, 8)
    assert expected.sum() == pytest.approx(8)
    assert np.abs(counted - expected).max() < 0.06


@pytest.mark.parametrize("placement", ["in_order", "by_load"])
def test_the_busiest_rank_token_by_token(placement):
    spec = ExpertsSpec(routing=ZIPF, placement=placement)
    loads, rng = ExpertLoads(spec, 64, 4, 8), np.random.default_rng(2)
    rank_of = np.empty(64, dtype=int)
    for rank, held in enumerate(loads.dealt):
        rank_of[held] = rank
    weights = np.arange(1, 65, dtype=float) ** -1.0
    for tokens in (16, 256):
        most = [np.bincount(rank_of[chosen(weights, 4, tokens, rng)].ravel(), minlength=8).max() for _ in range(200)]
        assert loads.busiest(np.array([float(tokens)]))[0][0] == pytest.approx(np.mean(most), rel=0.1)


def test_replicas_and_placement_even_the_load_out():
    plain, dealt, copied = (
        ExpertLoads(ExpertsSpec(routing=ZIPF, **more), 128, 8, 8).busiest(np.array([512.0]))[0][0]
        for more in ({}, {"placement": "by_load"}, {"placement": "by_load", "replicas": 32})
    )
    assert plain > dealt > copied >= 512.0


def test_places_hold_every_expert_and_its_copies():
    pi = choice_probabilities(ZIPF, 64, 4)
    dealt = places(pi, 8, ExpertsSpec(routing=ZIPF, replicas=16, placement="by_load"))
    assert [len(held) for held in dealt] == [10] * 8
    assert set().union(*map(set, dealt)) == set(range(64))
    with pytest.raises(DevicesRefused, match="64 experts and 3 replicas do not divide among 8 ranks"):
        places(pi, 8, ExpertsSpec(routing=ZIPF, replicas=3))


class Cache:
    """A rank's experts of one layer, step by step."""

    def __init__(self, capacity, eviction):
        self.capacity, self.eviction, self.held = capacity, eviction, OrderedDict()

    def step(self, needed_experts):
        """Misses of a step: what is there runs first, then what is fetched."""
        hits = [e for e in needed_experts if e in self.held]
        missed = [e for e in needed_experts if e not in self.held]
        if self.eviction == "lru":
            for e in hits:
                self.held.move_to_end(e)
        for e in missed:
            if len(self.held) >= self.capacity:
                self.held.popitem(last=False)
            self.held[e] = None
        return len(missed)


@pytest.mark.parametrize("eviction", ["lru", "fifo"])
@pytest.mark.parametrize(("tokens", "capacity"), [(1, 16), (1, 32), (4, 32), (4, 48)])
def test_misses_step_by_step(eviction, tokens, capacity):
    rng, weights = np.random.default_rng(3), np.arange(1, 65, dtype=float) ** -1.0
    cache = Cache(capacity, eviction)
    counted = [cache.step(rng.permutation(np.unique(chosen(weights, 4, tokens, rng))).tolist()) for _ in range(4000)]
    expected = misses(needed(choice_probabilities(ZIPF, 64, 4), np.array([float(tokens)])), capacity, eviction)[0]
    assert np.mean(counted[500:]) == pytest.approx(expected, rel=0.1)


def test_the_static_choice_misses_least_and_room_helps():
    needs = needed(choice_probabilities(ZIPF, 64, 4), np.array([1.0, 8.0]))
    for capacity in (0, 8, 32, 64):
        static, lru, fifo = (misses(needs, capacity, name) for name in ("static", "lru", "fifo"))
        assert (static <= lru + 1e-9).all()
        assert (lru <= fifo + 1e-9).all()
    assert (np.diff([misses(needs, capacity, "lru")[0] for capacity in range(0, 65, 8)]) <= 0).all()
    assert misses(needs, 64, "lru").sum() == 0.0


def offloaded(**offload):
    devices = worker(attached=["cxl", "cpu", "near"], experts={"routing": ZIPF.model_dump(), "offload": offload})
    return compiled(QWEN3_30B_A3B, H100, VLLM, devices, max_tokens=16384, max_sequences=64)


def test_foresight_hides_fetches_and_room_avoids_them():
    """A link that is the bottleneck carries wrong guesses too: foresight pays where layers are longer than fetches."""
    cases = ({"resident": 16}, {"resident": 16, "predicted": 0.9}, {"resident": 64}, {"resident": 128})
    slow, seen, kept, all_there = (offloaded(device="cxl", **more).seconds.token_s for more in cases)
    assert seen[4] > slow[4] > kept[4] > all_there[4]
    slow_near, seen_near = (offloaded(device="near", **more).seconds.token_s for more in cases[:2])
    assert slow_near[16384] > seen_near[16384] > all_there[16384]
    plain = compiled(QWEN3_30B_A3B, H100, VLLM, worker(experts={"routing": ZIPF.model_dump()}), max_tokens=1024)
    assert all_there[4] == pytest.approx(plain.seconds.token_s[4])


def test_cold_experts_run_where_they_lie():
    """For one token a CPU's memory is nearer than the link; for many its arithmetic is not."""
    there, fetched = (offloaded(device="cpu", resident=32, run=run).seconds.token_s for run in ("there", "fetch"))
    assert there[1] < fetched[1]
    assert there[16384] - there[8192] > 2 * (fetched[16384] - fetched[8192])


def test_what_is_refused():
    with pytest.raises(DevicesRefused, match="has 3 entries for 128 experts"):
        ExpertLoads(ExpertsSpec(routing={"kind": "histogram", "weights": [1, 2, 3]}), 128, 8, 1).busiest(np.ones(1))
    with pytest.raises(DevicesRefused, match="resident: is 129, but a rank holds 128"):
        offloaded(device="cxl", resident=129)
    with pytest.raises(DevicesRefused, match="128 experts and 4 replicas do not divide among 8 ranks"):
        compose(
            worker(experts={"replicas": 4}), QWEN3_30B_A3B, H100, ROOFLINE, Parallelism(attention_data=8, expert=8),
            None, "bf16",
        )  # fmt: skip
    with pytest.raises(DevicesRefused, match=r"experts.offload.run: cxl has no law for experts"):
        offloaded(device="cxl", resident=16, run="there")
    with pytest.raises(ValidationError, match="needs another device than the accelerator"):
        worker(experts={"offload": {"device": "accelerator", "resident": 1}})
    with pytest.raises(DevicesRefused, match="has no experts"):
        compiled(LLAMA_8B, H100, VLLM, worker(experts={}))


@pytest.mark.parametrize("ranks", [1, 4])
def test_layers_of_their_own_are_the_mean_of_layers_alone(ranks):
    """Loads, needs and misses of a layer are those of its histogram; alike layers are one histogram for all."""
    rng = np.random.default_rng(5)
    layers = [list(map(float, rng.exponential(size=32))) for _ in range(3)]
    offload = {"device": "far", "resident": 32 // ranks // 2}
    tokens = np.array([1.0, 20.0, 300.0])

    def loads(**histogram):
        spec = ExpertsSpec.model_validate({"routing": {"kind": "histogram", **histogram}, "offload": offload})
        return ExpertLoads(spec, 32, 4, ranks)

    together, alone = loads(layers=layers), [loads(weights=weights, seed=i) for i, weights in enumerate(layers)]
    for index in (0, 1):
        np.testing.assert_allclose(
            together.busiest(tokens)[index],
            np.mean([layer_loads.busiest(tokens)[index] for layer_loads in alone], axis=0),
        )
    rate = 1.0 - np.mean([layer_loads._missed(tokens) for layer_loads in alone], axis=0) / together.busiest(tokens)[1]
    np.testing.assert_allclose(together.hit_rate(tokens), np.maximum(rate, 0.0), atol=1e-9)
    if ranks == 1:
        alike = loads(layers=[layers[0]] * 3)
        np.testing.assert_allclose(alike.busiest(tokens), alone[0].busiest(tokens))


def test_histograms_of_layers_are_of_all_layers():
    def block(count):
        return worker(experts={"routing": {"kind": "histogram", "layers": [[1.0] * 128] * count}})

    law = compose(block(48), QWEN3_30B_A3B, H100, ROOFLINE, Parallelism(), None, "bf16")
    assert len(law.expert_loads.by_layer) == 48
    with pytest.raises(DevicesRefused, match=r"experts\.routing\.layers: has 3 entries for 48 layers with experts"):
        compose(block(3), QWEN3_30B_A3B, H100, ROOFLINE, Parallelism(), None, "bf16")
    with pytest.raises(ValidationError, match="give one of the two"):
        ExpertRoutingSpec(kind="histogram", weights=[1.0], layers=[[1.0]])
    short = worker(experts={"routing": {"kind": "histogram", "layers": [[1.0, 2.0]] * 48}})
    with pytest.raises(DevicesRefused, match=r"experts\.routing\.weights: has 2 entries for 128 experts"):
        compose(short, QWEN3_30B_A3B, H100, ROOFLINE, Parallelism(), None, "bf16")
