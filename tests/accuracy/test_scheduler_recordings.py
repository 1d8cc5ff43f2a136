"""The kernels against recordings of the engines' own schedulers: every step of every file equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hisearch.validate.difference import equal_steps, first_difference
from hisearch.validate.recording import read_recording
from hisearch.validate.replay import simulated_run
from hisearch.validate.scheduler import validate_recording
from hisearch.validate.step_law import StepLaw
from tests.reference.recorded import shared_directory
from tests.reference.restated import restated_run, without_cache


def recordings(folder: str) -> list[Any]:
    shared = shared_directory()
    if shared is None:
        reason = "no recordings: set HISEARCH_SHARED to the folder that holds validation/"
        return [pytest.param(None, marks=pytest.mark.skip(reason=reason))]
    return sorted((shared / "validation").glob(f"{folder}/*.json.gz"))


ALL = [*recordings("vllm_scheduler"), *recordings("sglang_scheduler")]
#: Every fourth recording of several releases: all of them take minutes (`hisearch validate scheduler`).
RELEASES = recordings("engines/*")[::4]


def name(path: Path | None) -> str:
    return f"{path.parent.name}/{path.name}" if isinstance(path, Path) else "absent"


@pytest.mark.slow
@pytest.mark.parametrize("path", [*ALL, *RELEASES], ids=name)
def test_every_step_of_the_engine_is_reproduced(path: Path) -> None:
    # The clock of the first round's recorder of SGLang skipped passes of an idle scheduler.
    first_round = path.parent.name == "sglang_scheduler"
    case = validate_recording(path, idle_passes="skipped" if first_round else "repeated")
    assert case.first_difference is None
    assert (case.equal_steps, case.simulated_steps) == (case.steps, case.steps)
    assert case.ok


@pytest.mark.slow
@pytest.mark.parametrize("path", ALL, ids=name)
def test_scheduler_alone_is_reproduced(path: Path) -> None:
    """Every cache off and every step of the same length: the kernels equal the restated rules."""
    recording, law = without_cache(read_recording(path)), StepLaw(0.02, 0.0, 0.0)
    restated, simulated = restated_run(recording, law), simulated_run(recording, law)
    assert first_difference(recording, restated, simulated) is None
    assert equal_steps(restated, simulated) == len(restated.steps) == len(simulated.steps)
