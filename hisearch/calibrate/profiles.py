"""Fits LatencyProfiles to measurements of operators, or to logs of an engine's steps."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hisearch.calibrate.build import Measured, Target, build_profile
from hisearch.calibrate.own_tables import FASTEST, SLOWEST, check_fit_for, read_own
from hisearch.calibrate.served.front_end import FrontEndFit
from hisearch.calibrate.step_fit import RegimeNoise, fit_steps
from hisearch.calibrate.step_log import StepLog, read_step_logs
from hisearch.calibrate.writing import profile_yaml
from hisearch.latency.estimator import compile_costs
from hisearch.latency.step_cost import step_seconds
from hisearch.specs.base import ENGINE_TITLES, DType, EngineName, Provenance
from hisearch.specs.deployments.deployment import EngineSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec
from hisearch.specs.machines.host import EngineOverhead
from hisearch.specs.machines.profile import LatencyProfileSpec
from hisearch.specs.machines.regression import Regime, StepExcess, StepRegression
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.wording import format_percent

__all__ = ["Calibrated", "LoggedWorker", "calibrate_own", "calibrate_steps"]

#: Most steps of a log that are compared with the roofline.
_CHECKED_STEPS = 100


class Calibrated(NamedTuple):
    """A profile with its catalogue name and its YAML document."""

    name: str
    profile: LatencyProfileSpec
    yaml: str


class LoggedWorker(NamedTuple):
    """The worker behind a log. model, accelerator: catalogue name or path. weight_dtype: the model's own where None."""

    model: str
    accelerator: str
    engine: EngineName
    engine_version: str = ""
    tensor_parallel: int = 1
    weight_dtype: DType | None = None
    kv_dtype: DType = "bf16"


def calibrate_own(
    folder: Path,
    *,
    accelerator: str,
    engine: EngineName,
    engine_version: str,
    multiprocessors: int,
    source: str,
    name: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Calibrated:
    """Fit on tables in hisearch's own format (columns: ``hisearch.calibrate.own_tables``).

    Raises:
        ValueError: there are no tables, a column is missing, a value is invalid, a family that every step has is
            missing, or latencies cannot be seconds.
    """
    catalogue = Catalogue()
    target = Target(accelerator, catalogue.get("Accelerator", accelerator).spec, multiprocessors, engine)
    tables = read_own(folder)
    check_fit_for(tables, target.accelerator, folder)
    profile = build_profile(
        target,
        [Measured(engine, engine_version, tables)],
        catalogue.get("LatencyProfile", "roofline").spec,
        source=source,
        as_of=_today(),
        report=report,
    )
    return as_calibrated(name or f"{engine}-{Path(accelerator).stem}", accelerator, engine, profile)


def calibrate_steps(files: Sequence[Path], worker: LoggedWorker, *, source: str, name: str | None = None) -> Calibrated:
    """Fit the law of ``worker``'s steps to logs (format: ``hisearch.calibrate.step_log``).

    Raises:
        TraceError: a file cannot be read; names file, line and field.
        ValueError: too few steps, a kind of step that every server has is missing, or times cannot be seconds.
        SpecError: no such model or accelerator.
    """
    measured = ", ".join(str(path) for path in files)
    return calibrate_log(read_step_logs(files), worker, measured=measured, source=source, name=name)


def calibrate_log(
    log: StepLog,
    worker: LoggedWorker,
    *,
    measured: str,
    source: str,
    name: str | None = None,
    front_end: FrontEndFit | None = None,
    with_excess: bool = False,
) -> Calibrated:
    """Fit the law of ``worker``'s steps to a log. measured: what errors call it. front_end: beside the steps.

    with_excess: predict steps as they were in the mean, pauses included, and not undisturbed ones.

    Raises:
        ValueError, SpecError: as of ``calibrate_steps``.
    """
    catalogue = Catalogue()
    model = catalogue.get("Model", worker.model).spec
    accelerator = catalogue.get("Accelerator", worker.accelerator).spec
    roofline: LatencyProfileSpec = catalogue.get("LatencyProfile", "roofline").spec
    _check_seconds(log, worker, model, accelerator, roofline, measured)
    fit = fit_steps(log)
    law = StepRegression(
        model=model.huggingface_id,
        accelerator=Path(worker.accelerator).stem,
        memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
        engine=worker.engine,
        engine_version=worker.engine_version,
        tensor_parallel=worker.tensor_parallel,
        weight_dtype=worker.weight_dtype or model.weight_dtype,
        kv_dtype=worker.kv_dtype,
        tokens=fit.law.tokens,
        token_s=fit.law.token_s,
        excess=fit.excess if with_excess else StepExcess(),
        ranges=fit.ranges,
        errors=fit.errors,
        **fit.law.coefficients,
    )
    worst = max(error.median for error in fit.errors.values())
    profile = roofline.model_copy(
        update={
            "estimator": "regression",
            "evidence": "fitted",
            "engines": {worker.engine: EngineOverhead(step_s=0.0, evidence="fitted", **_times(front_end))},
            "regressions": [law],
            "relative_error": worst,
            "provenance": Provenance(
                source=source, as_of=_today(), notes=_notes(law, fit.noise) + _front_end_note(front_end)
            ),
        }
    )
    title = f"{ENGINE_TITLES[worker.engine]} {worker.engine_version}".strip()
    description = f"{title}, {law.model} on {law.tensor_parallel} x {law.accelerator}: whole steps, fitted to its log."
    profile_name = name or f"{worker.engine}-{Path(worker.accelerator).stem}-{Path(worker.model).stem}-steps"
    return Calibrated(profile_name, profile, profile_yaml(profile_name, description, profile))


def as_calibrated(name: str, accelerator: str, engine: EngineName, profile: LatencyProfileSpec) -> Calibrated:
    """A profile of fitted laws with its description, as YAML."""
    assert profile.laws is not None
    description = (
        f"{ENGINE_TITLES[engine]} {profile.laws.engine_version} on {accelerator}: fitted laws of its operators."
    )
    return Calibrated(name, profile, profile_yaml(name, description, profile))


def _check_seconds(
    log: StepLog, worker: LoggedWorker, model: ModelSpec, accelerator: AcceleratorSpec, roofline: LatencyProfileSpec,
    source: str,
) -> None:  # fmt: skip
    """Compare the log with the roofline, to catch a wrong worker or unit.

    Raises:
        ValueError: the median ratio to the roofline is outside ``FASTEST`` to ``SLOWEST``.
    """
    count = len(log.latency_s)
    tokens, sequences = (np.bincount(log.step, weights, count) for weights in (log.new, None))
    context = np.bincount(log.step, log.new + log.cached, count)
    costs = compile_costs(
        "roofline", roofline, model, accelerator, tensor_parallel=worker.tensor_parallel,
        weight_dtype=worker.weight_dtype, kv_dtype=worker.kv_dtype, engine=EngineSpec(name=worker.engine),
        max_tokens=int(tokens.max()), max_sequences=int(sequences.max()), max_context_tokens=int(context.max()),
    ).seconds  # fmt: skip
    ends = np.searchsorted(log.step, np.arange(count + 1))
    ratios = []
    for step in np.unique(np.linspace(0, count - 1, min(count, _CHECKED_STEPS)).astype(int)).tolist():
        rows = slice(ends[step], ends[step + 1])
        shares = list(zip(log.new[rows].tolist(), log.cached[rows].tolist(), log.decode[rows].tolist(), strict=True))
        chunks = [(new, cached) for new, cached, decode in shares if not decode]
        reads = [cached + 1 for _, cached, decode in shares if decode]
        ratios.append(log.latency_s[step] / step_seconds(costs, chunks, reads))
    ratio = float(np.median(ratios))
    if not FASTEST <= ratio <= SLOWEST:
        raise ValueError(
            f"{source}: latency_s: steps take {ratio:,.3g} times what the roofline says of {worker.model} on "
            f"{worker.tensor_parallel} x {worker.accelerator}: is this another worker, or are these no seconds?"
        )


def _times(front_end: FrontEndFit | None) -> dict[str, float]:
    return {} if front_end is None else front_end.times.model_dump()


def _front_end_note(front_end: FrontEndFit | None) -> str:
    if front_end is None:
        return " The front end was not timed: TTFT is the engine's alone."
    client = (
        "" if not front_end.client_s else f" Its client is a benchmark's: {1e3 * front_end.client_s:+.2g} ms a request."
    )
    return f" Front end: off by {1e3 * front_end.error_s:.2g} ms (median) on experiments left out of its fit.{client}"


def _notes(law: StepRegression, noise: Mapping[Regime, RegimeNoise]) -> str:
    """The errors as text, and what was set aside."""
    noisy = [
        f" In {regime} steps the noise is on one side: {format_percent(of_regime.share)} of them were set aside as "
        f"disturbed, and all together took {format_percent(of_regime.excess, 1)} longer than the law says."
        for regime, of_regime in noise.items()
    ]
    parts = [
        f"{regime} {format_percent(error.median, 1)} median, {format_percent(error.p90, 1)} p90 over "
        f"{error.steps:,} steps"
        for regime, error in law.errors.items()
    ]
    return (
        "Errors on runs of consecutive steps left out of the fit: "
        + "; ".join(parts)
        + ". relative_error is the largest "
        "median. Energy is the roofline's." + "".join(noisy)
    )


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.UTC).date()
