"""Fitted host work: the shipped profiles have it, by engine and version."""

from __future__ import annotations

import pytest
import yaml

from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.machines.host import HostTimes
from hisearch.specs.machines.profile import LatencyProfileSpec
from refit.hosts import FILE, with_hosts

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
    for version, times in overhead.versions.items():
        constants = overhead.of_version(version)
        assert {name: getattr(constants, name) for name in HostTimes.model_fields} == times.model_dump()
        assert constants.graph_batches == overhead.graph_batches


def test_what_was_fitted_is_whole_and_plausible() -> None:
    """Every constant of every engine and version, each within its range and none left to a default."""
    fitted = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    assert set(fitted) == {"vllm", "sglang", "trtllm"}
    for engine in fitted.values():
        versions = engine.pop("versions")
        for times in (engine, *versions.values()):
            assert set(times) == set(HostTimes.model_fields)
            assert HostTimes.model_validate(times).implausible() == []
