"""Fitted host work: the shipped profiles have it, by engine and version."""

from __future__ import annotations

import pytest

from hisearch.calibrate.hosts import with_hosts
from hisearch.specs.catalogue import Catalogue, shipped_root
from hisearch.specs.profile import LatencyProfileSpec

CATALOGUE = Catalogue(shipped_root())
SCALED = [
    name
    for name in CATALOGUE.names("LatencyProfile")
    if CATALOGUE.get("LatencyProfile", name).spec.estimator == "scaled"
]


@pytest.mark.parametrize("name", SCALED)
def test_a_shipped_profile_has_the_fitted_host_work_of_its_engine(name: str) -> None:
    profile: LatencyProfileSpec = CATALOGUE.get("LatencyProfile", name).spec
    assert with_hosts(profile) == profile
    (overhead,) = profile.engines.values()
    assert overhead.evidence == "fitted"
    assert overhead.versions


def test_an_engine_that_was_not_fitted_stays_as_it_is() -> None:
    roofline: LatencyProfileSpec = CATALOGUE.get("LatencyProfile", "roofline").spec
    (overhead, *_) = roofline.engines.values()
    profile = roofline.model_copy(update={"engines": {"another": overhead}})
    assert with_hosts(profile) == profile


def test_a_version_that_is_not_known_takes_the_engines_own() -> None:
    overhead = CATALOGUE.get("LatencyProfile", "vllm-b200").spec.engines["vllm"]
    assert overhead.of_version("nobody's") is overhead
    version = next(iter(overhead.versions))
    assert overhead.of_version(version).step_s == overhead.versions[version].step_s
    assert overhead.of_version(version).graph_batches == overhead.graph_batches
