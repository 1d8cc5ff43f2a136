"""Host work of engines and versions, fitted to measured serving runs (``python -m refit hosts``).

That command wrote ``host_times.yaml``; docs/accuracy.md states the runs and the error.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import yaml

from hisearch.latency.sheets import of_catalogue
from hisearch.specs.machines.host import EngineOverhead, HostProcessor, HostTimes, host_scale
from hisearch.specs.machines.profile import LatencyProfileSpec

FILE = Path(__file__).with_name("host_times.yaml")


def with_hosts(profile: LatencyProfileSpec) -> LatencyProfileSpec:
    """``profile`` with the fitted host work of its engines; engines that were not fitted stay as they are."""
    fitted = _fitted()
    laws = profile.laws
    processor: HostProcessor = "x86" if laws is None else of_catalogue("Accelerator", laws.accelerator).host_processor
    engines = {
        name: _overhead(overhead, fitted[name], host_scale(processor, name)) if name in fitted else overhead
        for name, overhead in profile.engines.items()
    }
    return profile.model_copy(update={"engines": engines})


def _overhead(overhead: EngineOverhead, fitted: dict[str, Any], scale: float) -> EngineOverhead:
    base_times = HostTimes.model_validate({name: value for name, value in fitted.items() if name != "versions"})
    versions = {name: HostTimes.model_validate(times) for name, times in fitted["versions"].items()}
    update = {"versions": versions, "host_scale": scale, "evidence": "fitted"}
    return overhead.with_times(base_times).model_copy(update=update)


@functools.cache
def _fitted() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return document
