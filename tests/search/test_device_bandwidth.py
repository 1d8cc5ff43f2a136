"""Bandwidths at which an attached device would win: by a verdict with a known threshold."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.search.confidence.device_bandwidth import MOST_FACTOR, SIMULATIONS, bandwidth_wins, faster
from hisearch.search.model.job import Evaluation
from hisearch.search.select.other_hardware import OtherHardware
from hisearch.specs.deployments.deployment import DeploymentSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.devices import DevicesSpec
from tests.search.fakes import make_deployment, make_trial


def priced(replicas: int, usd_each: float, number: int = 0):  # type: ignore[no-untyped-def]
    trial = make_trial(number, 1.0, 5.0, replicas * usd_each)
    return replace(trial, deployment=make_deployment("h100-sxm", replicas))


@given(st.floats(1.01, 6.0))
def test_the_least_bandwidth_that_does_is_found(threshold: float) -> None:
    """Ten replicas at 10, or nine with PIM at 12: eight of these are cheaper."""
    best, other = priced(10, 10.0), priced(9, 12.0, 1)
    tried: list[tuple[int, float]] = []

    def evaluate(deployment: DeploymentSpec, item: str, factor: float) -> Evaluation:
        assert item == "pim"
        tried.append((deployment.pool.replicas, factor))
        return Evaluation({}, (), factor >= threshold)

    other = OtherHardware("h100-sxm with 1 pim", other, "pim", "USD/hour", 1.0, None)
    (win,) = bandwidth_wins([other], best, ["pim"], evaluate, lambda spec: 12.0 * spec.pool.replicas)
    assert {replicas for replicas, _ in tried} == {8}
    assert len(tried) <= SIMULATIONS
    assert (win.replicas, win.usd_per_hour) == (8, 96.0)
    if threshold > MOST_FACTOR:
        assert win.factor is None
    else:
        assert win.factor is not None
        assert threshold <= win.factor <= threshold * MOST_FACTOR ** (0.5 ** (SIMULATIONS - 1)) * (1 + 1e-9)


@given(threshold=st.floats(1.01, 6.0), replicas=st.integers(1, 12))
def test_a_device_that_misses_the_slo_is_looked_into(threshold: float, replicas: int) -> None:
    """Ten replicas at 10 hold; so many with PIM at 12 miss, by their speed: as many of them as cost less do, faster."""
    best, missed = priced(10, 10.0), replace(priced(replicas, 12.0, 1), feasible=False)
    tried: list[tuple[int, float]] = []

    def evaluate(deployment: DeploymentSpec, item: str, factor: float) -> Evaluation:
        tried.append((deployment.pool.replicas, factor))
        return Evaluation({}, (), factor >= threshold)

    other = OtherHardware("h100-sxm with 1 pim", missed, "pim", "USD/hour", 1.0, None)
    (win,) = bandwidth_wins([other], best, ["pim"], evaluate, lambda spec: 12.0 * spec.pool.replicas)
    assert win.replicas == min(replicas, 8)
    assert {count for count, _ in tried} == {win.replicas}
    assert (win.factor is None) == (threshold > MOST_FACTOR)


def test_a_device_without_a_price_is_found_by_its_name() -> None:
    """A host's CPU costs nothing, and is what the deployment has more."""
    attached = DevicesSpec.model_validate({"attached": {"cpu": {"device": "amx"}}, "operators": {"ffn": "cpu"}})
    missed = replace(priced(4, 9.0, 1), feasible=False)
    pool = missed.deployment.pool.model_copy(update={"devices": attached})
    missed = replace(missed, deployment=missed.deployment.model_copy(update={"pools": [pool]}))

    def evaluate(deployment: DeploymentSpec, item: str, factor: float) -> Evaluation:
        assert item == "amx"
        return Evaluation({}, (), factor >= 2.0)

    known = [OtherHardware("h100-sxm with 1 amx", missed)]
    (win,) = bandwidth_wins(known, priced(10, 9.0), ["amx"], evaluate, lambda spec: 9.0 * spec.pool.replicas)
    assert (win.item, win.replicas) == ("amx", 4)
    assert win.factor == pytest.approx(2.0, rel=0.05)


def test_accelerators_and_what_was_never_simulated_are_left_out() -> None:
    def evaluate(deployment: DeploymentSpec, item: str, factor: float) -> Evaluation:
        raise AssertionError

    known = [
        OtherHardware("l40s", priced(9, 12.0), "l40s"),
        OtherHardware("with pim", None, "pim"),
        OtherHardware("x", priced(1, 99.0), "pim"),
    ]
    assert bandwidth_wins(known, priced(10, 1.0), ["pim"], evaluate, lambda spec: 99.0 * spec.pool.replicas) == []


@pytest.mark.parametrize("name", ["hbm2-pim", "cxl2-memory", "npu-128x128-device"])
def test_a_faster_device_is_faster_in_every_bandwidth_and_still_valid(name: str) -> None:
    device = Catalogue().get("Device", name).spec
    twice = faster(device, 2.0)
    assert type(device).model_validate(twice.model_dump()) == twice
    assert twice.memory_bandwidth_bytes_per_s == 2 * device.memory_bandwidth_bytes_per_s
    assert twice.link is not None
    assert twice.link.bandwidth_bytes_per_s == 2 * device.link.bandwidth_bytes_per_s
    assert twice.link.latency_s == device.link.latency_s
