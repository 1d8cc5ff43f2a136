"""Networks of several dimensions: closed forms, and an all-to-all counted link by link."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from hisearch.hardware.topology import Network, RanksDoNotFit
from hisearch.specs.machines.devices import DimensionSpec, NetworkSpec

MIB = np.array([2.0**20])


def network(*dimensions):
    return Network(
        tuple(
            DimensionSpec(topology=kind, ranks=ranks, bandwidth_bytes_per_s=bandwidth, latency_s=latency, **more)
            for kind, ranks, bandwidth, latency, more in dimensions
        )
    )


NODE = ("switch", 8, 450e9, 1e-6, {})
RACK = ("switch", 32, 50e9, 3e-6, {"oversubscription": 2.0})
POD = ("ring", 8, 25e9, 5e-6, {})


def test_one_dimension_is_the_ring():
    ring = network(("ring", 8, 100e9, 2e-6, {}))
    assert ring.all_reduce_s(MIB, 8)[0] == pytest.approx(2 * (7 * 2e-6 + 7 / 8 * 2**20 / 100e9))
    assert ring.all_gather_s(MIB, 1)[0] == 0.0


def test_hierarchy_sends_less_the_further_out():
    """Innermost first: the outer dimension carries an eighth of the payload."""
    seconds = network(NODE, RACK).all_reduce_s(MIB, 256)[0]
    inner = 3 * 2e-6 + 7 / 8 * 2**20 / 450e9
    outer = 5 * 6e-6 + 31 / 32 * 2**20 / 8 * 2.0 / 50e9
    assert seconds == pytest.approx(2 * (inner + outer))


def test_distant_groups_use_the_outer_dimension():
    assert network(NODE, RACK).used(32, inner=8) == [(network(RACK).dimensions[0], 32)]
    assert network(NODE, RACK).used(4, inner=2) == [(network(NODE).dimensions[0], 4)]
    assert network(NODE, RACK, POD).ranks == 2048


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16])
def test_ring_all_to_all_link_by_link(ranks):
    """Every pair's payload takes the shorter direction; equal directions share it."""
    load = {(i, direction): 0.0 for i in range(ranks) for direction in (1, -1)}
    for source in range(ranks):
        for distance in range(1, ranks):
            directions = [1] if distance < ranks / 2 else [-1] if distance > ranks / 2 else [1, -1]
            for direction in directions:
                hops = distance if direction == 1 else ranks - distance
                for hop in range(hops):
                    load[((source + direction * hop) % ranks, direction)] += 1.0 / ranks / len(directions)
    bandwidth = 100e9
    ring = network(("ring", ranks, bandwidth, 0.0, {}))
    assert ring.all_to_all_s(MIB, ranks)[0] == pytest.approx(max(load.values()) * 2**20 / (bandwidth / 2))


def test_oversubscription_and_distance_cost():
    plain, thin = (network(("switch", 8, 100e9, 1e-6, {"oversubscription": o})) for o in (1.0, 4.0))
    assert thin.all_to_all_s(MIB, 8)[0] > plain.all_to_all_s(MIB, 8)[0]
    assert network(NODE, RACK).send_s(MIB, 8)[0] > network(NODE, RACK).send_s(MIB, 1)[0]


def test_what_does_not_fit_is_refused():
    with pytest.raises(RanksDoNotFit, match="groups of 12 ranks, 1 apart, are no whole part of a network of 8 x 32"):
        network(NODE, RACK).used(12)
    with pytest.raises(RanksDoNotFit, match="512 ranks"):
        network(NODE, RACK).used(512)


@pytest.mark.parametrize(("ranks", "hops"), [(8, 12), (64, 24), (2048, 44)])
def test_latency_of_a_switch_grows_with_the_ranks(ranks, hops):
    """Halving and doubling: two messages for each doubling of the ranks, each over two hops."""
    levels = [("switch", 8, 450e9, 1e-6, {}), ("switch", ranks // 8, 450e9, 1e-6, {})]
    seconds = network(*levels[: 1 if ranks == 8 else 2]).all_reduce_s(np.array([1e-9]), ranks)[0]
    assert seconds == pytest.approx(hops * 1e-6)


def by_messages(algorithm, ranks):
    """(messages in line, bytes out of the busiest port for a byte of payload) of an all-reduce, message by message."""
    rounds: list[dict[int, float]] = []
    if algorithm == "ring":
        rounds = [dict.fromkeys(range(ranks), 1.0 / ranks)] * (2 * (ranks - 1))
    elif algorithm == "halving_doubling":
        halves = [2.0**-i for i in range(1, int(np.log2(ranks)) + 1)]
        rounds = [dict.fromkeys(range(ranks), half) for half in (*halves, *reversed(halves))]
    elif algorithm == "direct":
        rounds = [dict.fromkeys(range(ranks), (ranks - 1) / ranks)] * 2
    sent = [sum(each.get(rank, 0.0) for each in rounds) for rank in range(ranks)]
    return len(rounds), max(sent)


@pytest.mark.parametrize("algorithm", ["ring", "halving_doubling", "direct"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 32])
def test_an_all_reduce_takes_its_messages(algorithm, ranks):
    switch = network(("switch", ranks, 100e9, 3e-6, {"algorithm": algorithm}))
    messages, sent = by_messages(algorithm, ranks)
    assert switch.all_reduce_s(MIB, ranks)[0] == pytest.approx(messages * 6e-6 + sent * 2**20 / 100e9)


def test_a_switch_that_reduces_carries_half_and_a_tree_leaves_the_whole_payload():
    plain, reducing, tree = (
        network(("switch", 64, 100e9, 0.0, {"algorithm": name})).all_reduce_s(MIB, 64)[0]
        for name in ("direct", "in_network", "tree")
    )
    assert reducing / plain == pytest.approx(65 / 126)
    assert tree / plain == pytest.approx(64 / 63)
    outer = ("switch", 4, 1e30, 1e-6, {})
    free = ("switch", 8, 1e30, 0.0, {"algorithm": "tree"})
    narrow = ("switch", 4, 50e9, 0.0, {})
    assert network(free, narrow).all_reduce_s(MIB, 32)[0] == pytest.approx(2 * 3 / 4 * 2**20 / 50e9)
    assert network(free, outer).all_reduce_s(MIB, 32)[0] == pytest.approx(8e-6)


def test_what_a_topology_does_not_have_is_refused():
    with pytest.raises(ValidationError, match="is tree; a ring has ring"):
        network(("ring", 8, 1e9, 0.0, {"algorithm": "tree"}))
    with pytest.raises(ValidationError, match="is of a switch's core; a ring has none"):
        network(("ring", 8, 1e9, 0.0, {"oversubscription": 2.0}))


def crossed(kind, topology, algorithm, ranks):
    """Bytes that cross a hop in a collective of a byte on each of ``ranks``, message by message."""
    part, hops = 1.0 / ranks, 2 if topology == "switch" else 1
    others = range(1, ranks)
    if kind == "all_to_all":
        distances = [min(i, ranks - i) if topology in ("ring", "torus") else hops for i in others]
        return ranks * sum(distances) * part
    times = 2 if kind == "all_reduce" else 1
    if algorithm == "ring":  # every rank passes a part on to its neighbour
        return times * sum(part * hops for _ in others for _ in range(ranks))
    if algorithm == "halving_doubling":  # pairs at distance 1, 2, 4 … exchange halves, quarters, …
        return times * sum(ranks * hops * 2.0**-i for i in range(1, int(np.log2(ranks)) + 1))
    if algorithm == "direct":  # every rank sends every other its part
        return times * sum(part * hops for _ in range(ranks) for _ in others)
    if algorithm == "tree":  # all of it from each child to its parent
        return times * sum(1.0 * hops for _ in others)
    up, down = (1.0, part) if kind == "all_reduce" else (1.0 - part, part)
    return times * ranks * (up + down)  # to a switch that adds up, and what comes of it


ALGORITHMS = [
    ("ring", "ring"), ("torus", "ring"), ("fully_connected", "direct"),
    *(("switch", name) for name in ("ring", "halving_doubling", "tree", "direct", "in_network")),
]  # fmt: skip


@pytest.mark.parametrize(("topology", "algorithm"), ALGORITHMS)
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_joules_are_those_of_the_bytes_that_cross_a_hop(kind, ranks, topology, algorithm):
    """Conservation: what is moved is paid for, over each hop that it takes."""
    level = network((topology, ranks, 1e11, 1e-6, {"algorithm": algorithm, "energy_j_per_byte": 3e-12}))
    joules = ranks * getattr(level, f"{kind}_j")(MIB, ranks)[0]
    assert joules == pytest.approx(3e-12 * 2**20 * crossed(kind, topology, algorithm, ranks))


def test_joules_of_several_dimensions_are_those_of_each():
    """Eight ranks of a node add up, then an eighth goes from each to four nodes; far sends take the outer alone."""
    inner, outer = 1e-12, 50e-12
    levels = (*NODE[:4], {"energy_j_per_byte": inner}), ("ring", 4, 25e9, 5e-6, {"energy_j_per_byte": outer})
    both = network(*levels)
    parts = {
        "all_reduce": inner * 4 * 7 / 8 + outer * 2 * 3 / 4 / 8,
        "all_gather": inner * 2 * 7 / 8 + outer * 3 / 4 / 8,
        "all_to_all": inner * 2 * 7 / 8 + outer * 1.0,
    }
    for kind, joules in parts.items():
        assert getattr(both, f"{kind}_j")(MIB, 32)[0] == pytest.approx(joules * 2**20)
    assert (both.send_j(MIB, 1)[0], both.send_j(MIB, 8)[0]) == pytest.approx((2 * inner * 2**20, outer * 2**20))
    tree = network((*NODE[:4], {"energy_j_per_byte": 0.0, "algorithm": "tree"}), levels[1])
    assert tree.all_reduce_j(MIB, 32)[0] == pytest.approx(outer * 2 * 3 / 4 / 8 * 2**20), "one root of eight goes on"


def test_without_joules_of_its_own_a_hop_has_the_peer_link_s():
    """Two hops of a switch are a peer link."""
    dimensions = network(NODE, POD, (*RACK[:4], {"energy_j_per_byte": 7e-12})).dimensions
    of = Network.of(NetworkSpec(dimensions=list(dimensions)), 1.0, 4e-12)
    assert [dimension.energy_j_per_byte for dimension in of.dimensions] == [2e-12, 4e-12, 7e-12]
