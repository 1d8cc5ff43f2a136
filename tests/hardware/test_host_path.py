"""The way to host memory: what ranks that copy at once have of it, for agents' objects and for devices of the host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.hardware.host_path import to_host
from hisearch.latency.devices.build import HOST_KINDS, WorkerDevices, links_of
from hisearch.simulate import WorkerPlan, plan_worker
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import ACCELERATOR, DevicesSpec
from hisearch.specs.machines.hardware import LinkSpec, SharedLinkSpec

CATALOGUE = Catalogue()
CARD = CATALOGUE.get("Accelerator", "h100-sxm").spec
HOST = CATALOGUE.get("Host", "hgx-h100-8").spec
OWN = LinkSpec(kind="pcie", bandwidth_bytes_per_s=50e9, latency_s=10e-6)
#: A switch of four slots that carries what one and a half of their own links do.
SWITCH = SharedLinkSpec(name="switch", accelerators=4, bandwidth_bytes_per_s=75e9, latency_s=20e-6)


@pytest.mark.parametrize(("ranks", "gbps"), [(1, 50), (2, 37.5), (4, 18.75), (8, 18.75)])
def test_ranks_behind_a_switch_have_equal_parts_of_it(ranks: int, gbps: float) -> None:
    link = to_host(OWN, [SWITCH], ranks)
    assert link.bandwidth_bytes_per_s == gbps * 1e9
    assert link.latency_s == 20e-6
    assert link.kind == OWN.kind


def test_nothing_shared_leaves_the_own_link() -> None:
    assert to_host(OWN, [], 8) == OWN


@given(
    parts=st.lists(st.tuples(st.sampled_from([1, 2, 4, 8]), st.floats(1e9, 1e12)), max_size=3),
    ranks=st.integers(1, 8),
)
def test_none_carries_more_than_it_can_and_more_ranks_are_never_faster(
    parts: list[tuple[int, float]], ranks: int
) -> None:
    shared = [SharedLinkSpec(name="part", accelerators=slots, bandwidth_bytes_per_s=rate) for slots, rate in parts]
    each = to_host(OWN, shared, ranks).bandwidth_bytes_per_s
    assert each <= OWN.bandwidth_bytes_per_s
    for part in shared:
        assert each * min(ranks, part.accelerators) <= part.bandwidth_bytes_per_s * (1 + 1e-12)
    assert to_host(OWN, shared, ranks + 1).bandwidth_bytes_per_s <= each


def _worker(*, shared: bool, ranks: int, **fields: object) -> WorkerPlan:
    host = HOST.model_copy(update={"shared": [SWITCH] if shared else []})
    named = CATALOGUE.names("Device")
    return plan_worker(
        PoolSpec.model_validate(
            {"accelerator": "h100-sxm", "engine": {"name": "sglang"}, "tensor_parallel": ranks, **fields}
        ),
        model=CATALOGUE.get("Model", "qwen2.5-7b").spec,
        accelerator=CARD,
        host=host,
        media={},
        profile=CATALOGUE.get("LatencyProfile", "roofline").spec,
        devices={name: CATALOGUE.get("Device", name).spec for name in named},
    )


def test_adapters_are_loaded_over_what_slots_share() -> None:
    agents = {"adapters": {"rank": 64}, "slots": 4}
    own, behind = (_worker(shared=shared, ranks=4, agents=agents).agents for shared in (False, True))
    assert own is not None
    assert behind is not None
    (kind,), (slower,) = own.kinds, behind.kinds
    moved = kind.bytes_per_rank
    assert kind.load_s == pytest.approx(CARD.host_link.latency_s + moved / CARD.host_link.bandwidth_bytes_per_s)
    assert slower.load_s == pytest.approx(max(CARD.host_link.latency_s, 20e-6) + moved / 18.75e9)
    assert replace(slower, load_s=kind.load_s) == kind


def test_weights_are_streamed_over_what_slots_share() -> None:
    block = {
        "attached": {"far": {"device": "cxl3-memory"}},
        "streamed": [{"device": "far", "layers": 8, "operators": ["ffn"]}],
    }
    single, alike, four, behind = (
        _worker(shared=shared, ranks=ranks, devices=block).costs.seconds.token_s[1]
        for ranks, shared in ((1, False), (1, True), (4, False), (4, True))
    )
    assert behind > four
    link = CATALOGUE.get("Device", "cxl3-memory").spec.link
    assert link is not None
    # One rank has the whole switch, which is as wide as its own link or wider.
    assert (alike > single) == (link.bandwidth_bytes_per_s > 75e9)


def test_only_devices_of_the_host_lie_behind_it() -> None:
    names = {name: CATALOGUE.get("Device", name).spec for name in CATALOGUE.names("Device")}
    linked = {name: device for name, device in names.items() if device.link is not None}
    spec = DevicesSpec.model_validate({"attached": {name: {"device": name} for name in linked}})
    narrow = SWITCH.model_copy(update={"bandwidth_bytes_per_s": 4e9})
    card = CATALOGUE.get("Accelerator", "h100-sxm").spec
    links = links_of(WorkerDevices(spec, linked, None, (narrow,)), card, 4).links
    kinds = set()
    for name, device in linked.items():
        link = links[frozenset((ACCELERATOR, name))]
        assert (link.bandwidth_bytes_per_s == 1e9) == (device.kind in HOST_KINDS), name
        kinds.add(device.kind)
    assert {"cpu", "cxl"} < kinds
