"""Fits the latency profiles that ship, on aiconfigurator's tables, and writes those that choose and ask."""

from __future__ import annotations

import datetime
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from hisearch.calibrate.build import Target
from hisearch.calibrate.profiles import Calibrated, as_calibrated
from hisearch.calibrate.writing import profile_yaml
from hisearch.specs.base import ENGINE_TITLES, EngineName, Provenance
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.profile import AicNames, LatencyProfileSpec, ProfileChoice
from refit.aic_heads import other_heads
from refit.boards import BOARDS
from refit.former import former_folder
from refit.shipped import ENGINES, data_folder, fit_shipped

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


def fit_profile(
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
        raise ValueError(f"aiconfigurator has no tables of accelerator {accelerator}, only of {', '.join(BOARDS)}")
    profile = fit_shipped(
        accelerator, engine, data_folder(folder), version=_package_version(), as_of=_today(),
        former=None if former is None else former_folder(former), report=report,
    )  # fmt: skip
    return as_calibrated(name or f"{engine}-{accelerator}", accelerator, engine, profile)


def fit_profiles(
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
            calibrated = fit_profile(accelerator, engine, folder=folder, former=former, report=report)
            path = into / f"{calibrated.name}.yaml"
            path.write_text(calibrated.yaml, encoding="utf-8")
            written.append(path)
    for name, description, profile in ((AUTO, AUTO_DESCRIPTION, auto_profile()), (AIC, AIC_DESCRIPTION, aic_profile())):
        path = into / f"{name}.yaml"
        path.write_text(profile_yaml(name, description, profile), encoding="utf-8")
        written.append(path)
    return written


def fit_heads(
    into: Path, *, folder: Path | None = None, report: Callable[[str], None] = lambda text: None
) -> list[Path]:
    """Fit attention of other heads anew in every shipped profile, and leave the rest of it; return the files.

    Raises:
        ValueError: the tables are missing.
    """
    data, catalogue, written = data_folder(folder), Catalogue(), []
    for accelerator, board in BOARDS.items():
        for engine in sorted(ENGINES):
            name = f"{engine}-{accelerator}"
            report(f"{ENGINE_TITLES[engine]} on {accelerator}")
            document = catalogue.get("LatencyProfile", name)
            laws = document.spec.laws
            sheet = Target(
                accelerator, catalogue.get("Accelerator", accelerator).spec, board.multiprocessors, engine
            ).sheet("bf16")
            heads = other_heads(data, board.system, engine, sheet, report)
            profile = document.spec.model_copy(update={"laws": laws.model_copy(update={"other_heads": heads})})
            path = into / f"{name}.yaml"
            path.write_text(profile_yaml(name, document.description, profile), encoding="utf-8")
            written.append(path)
    return written


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
    systems = {name: board.system for name, board in BOARDS.items()}
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


def _package_version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return FITTED_VERSION


def _today() -> datetime.date:
    return datetime.datetime.now(tz=datetime.UTC).date()
