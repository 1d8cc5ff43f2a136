"""Logs of an engine's whole steps to a LatencyProfile."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hisearch.api.calibrate import Calibrated
from hisearch.calibrate.step_fit import fit_steps
from hisearch.calibrate.step_log import read_step_logs
from hisearch.calibrate.writing import profile_yaml
from hisearch.specs.base import ENGINE_TITLES, DType, EngineName, Provenance
from hisearch.specs.catalogue import Catalogue
from hisearch.specs.profile import EngineOverhead, LatencyProfileSpec
from hisearch.specs.regression import StepRegression
from hisearch.specs.wording import in_percent

__all__ = ["LoggedWorker", "calibrate_steps"]


class LoggedWorker(NamedTuple):
    """Whose steps a log has; model and accelerator by catalogue name or path, weight_dtype None for the model's own."""

    model: str
    accelerator: str
    engine: EngineName
    engine_version: str = ""
    tensor_parallel: int = 1
    weight_dtype: DType | None = None
    kv_dtype: DType = "bf16"


def calibrate_steps(files: Sequence[Path], worker: LoggedWorker, *, source: str, name: str | None = None) -> Calibrated:
    """Fit the law of ``worker``'s steps to logs of them (``hisearch.calibrate.step_log`` says which form).

    Raises:
        StepLogError: a file that cannot be read; names file, line and key.
        ValueError: too few steps, or none of a kind that every server has.
        SpecError: no such model or accelerator.
    """
    catalogue = Catalogue()
    model = catalogue.get("Model", worker.model).spec
    accelerator = catalogue.get("Accelerator", worker.accelerator).spec
    found = fit_steps(read_step_logs(files))
    law = StepRegression(
        model=model.huggingface_id,
        accelerator=Path(worker.accelerator).stem,
        memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
        engine=worker.engine,
        engine_version=worker.engine_version,
        tensor_parallel=worker.tensor_parallel,
        weight_dtype=worker.weight_dtype or model.weight_dtype,
        kv_dtype=worker.kv_dtype,
        tokens=found.law.tokens,
        token_s=found.law.token_s,
        ranges=found.ranges,
        errors=found.errors,
        **found.law.coefficients,
    )
    worst = max(error.median for error in found.errors.values())
    roofline: LatencyProfileSpec = catalogue.get("LatencyProfile", "roofline").spec
    profile = roofline.model_copy(
        update={
            "estimator": "regression",
            "evidence": "fitted",
            "engines": {worker.engine: EngineOverhead(step_s=0.0, evidence="fitted")},
            "regressions": [law],
            "relative_error": worst,
            "provenance": Provenance(source=source, as_of=_today(), notes=_notes(law)),
        }
    )
    title = f"{ENGINE_TITLES[worker.engine]} {worker.engine_version}".strip()
    description = f"{title}, {law.model} on {law.tensor_parallel} x {law.accelerator}: whole steps, fitted to its log."
    called = name or f"{worker.engine}-{Path(worker.accelerator).stem}-{Path(worker.model).stem}-steps"
    return Calibrated(called, profile, profile_yaml(called, description, profile))


def _notes(law: StepRegression) -> str:
    """The errors in words."""
    parts = [
        f"{regime} {in_percent(error.median, 1)} median, {in_percent(error.p90, 1)} p90 over {error.steps:,} steps"
        for regime, error in law.errors.items()
    ]
    return (
        "Errors on runs of consecutive steps left out of the fit: "
        + "; ".join(parts)
        + ". relative_error is the largest "
        "median. Energy is the roofline's."
    )


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.UTC).date()
