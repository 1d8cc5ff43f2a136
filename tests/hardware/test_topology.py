"""Networks of several dimensions: closed forms, and an all-to-all counted link by link."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.hardware.topology import Network, RanksDoNotFit
from hisearch.specs.machines.devices import DimensionSpec

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
    inner = 2e-6 + 7 / 8 * 2**20 / 450e9
    outer = 6e-6 + 31 / 32 * 2**20 / 8 * 2.0 / 50e9
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
