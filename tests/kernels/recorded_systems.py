"""Random systems that recorders draw for the engines themselves: by the restatement, and by the kernels."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from hypothesis import assume

from hisearch.record.cases import LAW, finished_case
from hisearch.specs.base import EngineName
from hisearch.validate.recorded_settings import SglangSettings, VllmSettings
from hisearch.validate.recording import EngineRecording, RecordingError, RequestRow
from hisearch.validate.replay import Run, recorded_law, simulated_run
from tests.reference.restated import restated_run

#: Settings of vLLM that 0.19.1 does not have.
_LATER = ("watermark", "long_prefill_token_threshold_adaptive")


def system(engine: EngineName, version: str, seed: int, draw: Any) -> EngineRecording:
    """A recording without its decisions; ``draw``: of a case, for SGLang of a release."""
    rng = random.Random(seed)
    config, rows, block = draw(rng) if engine == "vllm" else draw(rng, version)
    if version == "0.19.1":
        config = {key: value for key, value in config.items() if key not in _LATER}
    case = finished_case(f"{seed}", config, rows, block, "")
    model = VllmSettings if engine == "vllm" else SglangSettings
    requests = [RequestRow.model_validate(row) for row in case.requests]
    settings = model.model_validate(case.settings)
    return EngineRecording(
        Path(f"{engine}-{version}-{seed}"), engine, version, settings, LAW, requests, None, None, None, None, None, ()
    )


def both(recording: EngineRecording) -> tuple[Run, Run]:
    """Decisions by the restatement, and by the kernels."""
    law = recorded_law(recording)
    try:
        return restated_run(recording, law), simulated_run(recording, law)
    except RecordingError:
        # The engine fails on this load, as releases with too many adapters in a step do.
        assume(False)
        raise
