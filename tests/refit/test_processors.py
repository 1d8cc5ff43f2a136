"""Speed of Grace hosts: the shipped scale is the tables' own, and multiplies the host's work alone."""

from __future__ import annotations

import importlib.util

import pytest

from hisearch.specs.documents.catalogue import Catalogue, shipped_root
from hisearch.specs.machines.host import OF_HOST, ON_GRACE, HostTimes
from refit.boards import BOARDS
from refit.processors import grace_scale
from refit.shipped import data_folder


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="extra aic is not installed")
@pytest.mark.parametrize("engine", ON_GRACE)
def test_the_scale_of_grace_is_measured(engine: str) -> None:
    assert grace_scale(data_folder(None), engine) == pytest.approx(ON_GRACE[engine], abs=0.005)


@pytest.mark.parametrize("board", BOARDS)
def test_boards_of_grace_have_its_scale_and_no_other(board: str) -> None:
    for engine, scale in ON_GRACE.items():
        profile = Catalogue(shipped_root()).get("LatencyProfile", f"{engine}-{board}").spec
        assert profile.engines[engine].host_scale == (scale if board.startswith("gb") else 1.0)


def test_a_scale_multiplies_work_that_the_device_hides_and_nothing_else() -> None:
    times = HostTimes.model_validate(dict.fromkeys(HostTimes.model_fields, 1e-5))
    scaled = times.on_processor(2.0)
    assert {name for name in HostTimes.model_fields if getattr(scaled, name) != getattr(times, name)} == set(OF_HOST)
    assert all(getattr(scaled, name) == 2e-5 for name in OF_HOST)
    assert times.on_processor(1.0) is times
