"""Stage 3's choices as they are written: sizes, what is refused, what replaced older keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.studies.search_space import CacheSpace, GibRange, TierSpace
from tests.specs.files import refusal

CATALOGUE = Catalogue()


@pytest.mark.parametrize(
    ("low", "high", "log", "sizes"),
    [
        (64, 512, True, [64, 91, 128, 181, 256, 362, 512]),
        (1000, 1100, True, [1000, 1100]),
        (1, 2, True, [1, 2**0.5, 2]),
        (100, 260, False, list(range(100, 261, 10))),
        (10, 11, False, [10 + step / 16 for step in range(17)]),
    ],
)
def test_sizes_of_a_range(low: float, high: float, log: bool, sizes: list[float]) -> None:
    assert GibRange(low=low, high=high, log=log).sizes() == pytest.approx(sizes)


def test_listed_sizes_are_in_order_and_there_once() -> None:
    assert TierSpace(media=["ddr5"], gib=[512, 0, 128, 128]).sizes() == [0, 128, 512]


def test_what_is_usual() -> None:
    (tier,) = CacheSpace().tiers
    assert (tier.media, tier.sizes(), tier.scope, tier.eviction, tier.ttl_s) == (
        ["ddr5"], [0, 128, 256, 512], [], ["lru"], [None],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cache", "key", "message"),
    [
        (
            "{host_gib_per_worker: [0, 64]}",
            "host_gib_per_worker",
            "replaced by tiers; write tiers: [{media: [ddr5], gib",
        ),
        ("{host_medium: ddr5}", "host_medium", "replaced by the media of tiers"),
        ("{tiers: [{media: [], gib: [1]}]}", "tiers.0.media", "needs 1 or more entries, got 0"),
        ("{tiers: [{media: [ddr5], gib: []}]}", "tiers.0.gib", "needs 1 or more entries, got 0"),
        ("{tiers: [{media: [ddr5], gib: [64, -1]}]}", "tiers.0.gib.1", "must be at least 0, got -1"),
        ("{tiers: [{media: [ddr5], gib: [{low: 1}]}]}", "tiers.0.gib.0", "expected a number, got a section"),
        ("{tiers: [{media: [ddr5], gib: 64}]}", "tiers.0.gib", "expected a list, got 64"),
        ("{tiers: [{media: [ddr5], gib: {low: 64}}]}", "tiers.0.gib.high", "required, and missing"),
        ("{tiers: [{media: [ddr5], gib: {low: 0, high: 9}}]}", "tiers.0.gib.low", "must be greater than 0, got 0"),
        ("{tiers: [{media: [ddr5], gib: {low: 9, high: 9}}]}", "tiers.0.gib.high", "must be greater than low 9, got 9"),
        ("{tiers: [{media: [ddr5], gib: [9], ttl_s: [0]}]}", "tiers.0.ttl_s.0", "must be greater than 0, got 0"),
        (
            "{movement: {kv_connectors: [nixl]}}",
            "movement.kv_connectors.0",
            "expected 'hicache', 'offload' or 'lmcache'; got text",
        ),
    ],
)
def test_what_is_refused(project: Path, cache: str, key: str, message: str) -> None:
    space = f"spec.space={{execution: {{accelerators: [h200], engines: [vllm]}}, cache: {cache}}}"
    refused = refusal("mine", space)
    assert f": spec.space.cache.{key}: {message}" in refused
    assert "\n" not in refused


def test_tiers_that_are_not_stated_are_in_the_memory_that_the_hosts_have() -> None:
    hosts = [CATALOGUE.get("Host", name).spec for name in ("gb200-nvl72-tray", "hgx-b200-8", "hgx-h100-8")]
    usual = CacheSpace()
    (tier,) = usual.in_memory_of(hosts).tiers
    assert (tier.media, tier.sizes()) == (["lpddr5x", "ddr5"], usual.tiers[0].sizes())
    assert "tiers" not in usual.in_memory_of(hosts).model_fields_set
    assert usual.in_memory_of([]) is usual
    stated = CacheSpace(tiers=[TierSpace(media=["ddr5"], gib=[64])])
    assert stated.in_memory_of(hosts) is stated
