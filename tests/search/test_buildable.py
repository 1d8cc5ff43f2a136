"""Workers that no host can hold are not tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import hisearch
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.evaluate.world import World
from hisearch.specs.deployments.deployment import PoolSpec
from tests.cli.documents import STUDY

#: Hosts of the first have DDR5, hosts of the second LPDDR5X.
BOTH = "spec.space.execution.accelerators=[b200, gb200]"


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "small.yaml").write_text(STUDY)
    media = "spec.space.cache={tiers: [{media: [cxl-dram], gib: [0, 64]}]}"
    return hisearch.load_study(tmp_path / "small.yaml", [BOTH, media]).world()


def builds(world: World, accelerator: str, medium: str) -> bool:
    tiers = [{"medium": medium, "gib": 64, "scope": "worker"}]
    pool = {"name": "main", "accelerator": accelerator, "engine": {"name": "vllm"}, "tiers": tiers}
    return Simulation(world).can_build(PoolSpec.model_validate(pool))


@pytest.mark.parametrize(
    ("accelerator", "foreign_memory", "own_memory"), [("b200", "lpddr5x", "ddr5"), ("gb200", "ddr5", "lpddr5x")]
)
def test_a_tier_is_no_main_memory_of_another_host(
    world: World, accelerator: str, foreign_memory: str, own_memory: str
) -> None:
    assert not builds(world, accelerator, foreign_memory)
    assert builds(world, accelerator, own_memory)
    assert builds(world, accelerator, "cxl-dram")


def test_main_memory_that_no_host_of_a_study_has_stands_for_its_own(world: World) -> None:
    dearer = world.media["ddr5"].model_copy(update={"usd_per_gib_hour": 0.004})
    world = replace(world, media={**world.media, "dearer.yaml": dearer})
    assert builds(world, "b200", "dearer.yaml")
    assert builds(world, "gb200", "dearer.yaml")
