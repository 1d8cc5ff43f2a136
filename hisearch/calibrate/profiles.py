"""Fits LatencyProfiles to measurements of operators, or to logs of an engine's steps."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hisearch.calibrate.boards import BOARDS
from hisearch.calibrate.build import Measured, Target, build_profile
from hisearch.calibrate.former import former_folder
from hisearch.calibrate.own_tables import FASTEST, SLOWEST, check_fit_for, read_own
from hisearch.calibrate.served.front_end import FrontEndFit
from hisearch.calibrate.shipped import ENGINES, data_folder, fit_shipped
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
from hisearch.specs.machines.profile import AicNames, LatencyProfileSpec, ProfileChoice
from hisearch.specs.machines.regression import Regime, StepExcess, StepRegression
from hisearch.specs.models.model import ModelSpec
from hisearch.specs.wording import format_percent

__all__ = ["Calibrated", "LoggedWorker", "calibrate_aiconfigurator", "calibrate_own", "calibrate_shipped",
           "calibrate_steps"]  # fmt: skip

#: Distribution of aiconfigurator's tables, and the version assumed for an unpacked one.
PACKAGE, FITTED_VERSION = "aiconfigurator-core", "0.12.0"


#: The profile that chooses among the fitted ones.
AUTO = "auto"
AUTO_DESCRIPTION = "The fitted profile of the accelerator and engine at hand; the roofline, with a warning, elsewhere."


#: The profile that queries the package itself, and the package's names of models where they differ.
AIC, AIC_AS_OF = "aic", datetime.date(2026, 11, 21)
AIC_DESCRIPTION = "Steps as aiconfigurator-core prices them (extra aic), on its own tables and formulas."
AIC_MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B-Instruct": "meta-llama/Meta-Llama-3.1-70B",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mistralai/Mixtral-8x7B-v0.1",
}

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
    return _written(name or f"{engine}-{Path(accelerator).stem}", accelerator, engine, profile)


def calibrate_aiconfigurator(
    accelerator: str,
    engine: EngineName,
    *,
    folder: Path | None = None,
    former: Path | None = None,
    name: str | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> Calibrated:
    """Fit on aiconfigurator-core's tables, installed or unpacked below ``folder``.

    ``former``: aiconfigurator 0.8.0, unpacked, for laws of former engine versions; without it they stay as shipped.

    Raises:
        ValueError: the tables are missing, or do not cover that accelerator.
    """
    if accelerator not in BOARDS:
        raise ValueError(
            f"aiconfigurator has no tables of accelerator {accelerator}, only of {', '.join(BOARDS)}: give a folder of "
            "tables of one's own, or a log of steps (calibrate steps)"
        )
    profile = fit_shipped(
        accelerator, engine, data_folder(folder), version=_package_version(), as_of=_today(),
        former=None if former is None else former_folder(former), report=report,
    )  # fmt: skip
    return _written(name or f"{engine}-{accelerator}", accelerator, engine, profile)


def calibrate_shipped(
    into: Path,
    *,
    folder: Path | None = None,
    former: Path | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> list[Path]:
    """Fit every shipped profile; write them, and the profile that chooses among them, into ``into``; return the files.

    Raises:
        ValueError: the tables are missing.
    """
    written = []
    for accelerator in BOARDS:
        for engine in sorted(ENGINES):
            report(f"{ENGINE_TITLES[engine]} on {accelerator}")
            calibrated = calibrate_aiconfigurator(accelerator, engine, folder=folder, former=former, report=report)
            path = into / f"{calibrated.name}.yaml"
            path.write_text(calibrated.yaml, encoding="utf-8")
            written.append(path)
    for name, description, profile in ((AUTO, AUTO_DESCRIPTION, auto_profile()), (AIC, AIC_DESCRIPTION, aic_profile())):
        path = into / f"{name}.yaml"
        path.write_text(profile_yaml(name, description, profile), encoding="utf-8")
        written.append(path)
    return written


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


def auto_profile() -> LatencyProfileSpec:
    """The profile that selects the shipped one for an accelerator and engine, and falls back to the roofline."""
    choices = [
        ProfileChoice(engine=engine, accelerator=accelerator, profile=f"{engine}-{accelerator}")
        for accelerator in BOARDS
        for engine in sorted(ENGINES)
    ]
    roofline: LatencyProfileSpec = Catalogue().get("LatencyProfile", "roofline").spec
    source = f"Of the profile that it takes; elsewhere the roofline's: {roofline.provenance.source}"
    provenance = roofline.provenance.model_copy(update={"source": source})
    return roofline.model_copy(update={"estimator": "auto", "choices": choices, "provenance": provenance})


def aic_profile() -> LatencyProfileSpec:
    """The profile that prices steps by aiconfigurator-core; host overhead of engines is the roofline's, assumed."""
    roofline: LatencyProfileSpec = Catalogue().get("LatencyProfile", "roofline").spec
    systems = {name: board.system for name, board in BOARDS.items() if not board.of_another}
    provenance = Provenance(
        source=f"{PACKAGE} {FITTED_VERSION} (Copyright NVIDIA CORPORATION & AFFILIATES; Apache-2.0), asked at run "
        "time; nothing of it is shipped",
        as_of=AIC_AS_OF,
        notes="relative_error is assumed. Engines' host work is the roofline's, assumed as well: the package has none.",
    )
    return roofline.model_copy(
        update={
            "estimator": "aic",
            "evidence": "published",
            "aic": AicNames(systems=systems, models=AIC_MODELS),
            "provenance": provenance,
        }
    )


def _written(name: str, accelerator: str, engine: EngineName, profile: LatencyProfileSpec) -> Calibrated:
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


def _package_version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return FITTED_VERSION


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.UTC).date()
