"""Corrects the latency profiles of a deployment's pools by a measurement of it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.verify.prediction import Correction

if TYPE_CHECKING:
    from hisearch.specs.deployments.deployment import DeploymentSpec, PoolSpec
    from hisearch.specs.documents.document import Document
    from hisearch.specs.documents.resolved import ResolvedDeployment, ResolvedStudy
    from hisearch.specs.machines.profile import LatencyProfileSpec
    from hisearch.verify.diagnosis import Diagnosis

#: Lower bound on the stated error of a recalibrated profile.
_LEAST_ERROR = 0.01
#: Terms of the correction that no profile can hold.
_ELSEWHERE = frozenset({"hits_lost", "shared", "hand_over"})
_DESCRIPTION = "Corrected by a measurement of the deployment."


@dataclass(frozen=True)
class Recalibrated:
    """A profile that prices pools of the deployment. parent: the profile that selected it; None where none did.

    accelerator, engine: of those pools. base: name of the profile that is corrected.
    """

    accelerator: str
    engine: str
    base: str
    profile: LatencyProfileSpec
    parent: LatencyProfileSpec | None


def recalibrated(
    resolved: ResolvedStudy | ResolvedDeployment,
    deployment: DeploymentSpec,
    diagnosis: Diagnosis,
    checked: tuple[float, str],
    sources: Sequence[str],
) -> tuple[Recalibrated, ...]:
    """The corrected profiles of the deployment's pools; empty where nothing changes.

    Args:
        resolved: the study, or the deployment.
        deployment: what was measured.
        diagnosis: which terms are off.
        checked: error on held-out data, and how it was measured.
        sources: files of the measurements.
    """
    if not set(diagnosis.terms) - _ELSEWHERE:
        return ()
    pools_by_profile: dict[tuple[str, str], list[PoolSpec]] = {}
    for pool in deployment.pools:
        pools_by_profile.setdefault((_concrete_profile(resolved, pool).name, pool.engine.name), []).append(pool)
    return tuple(_corrected(resolved, pools, diagnosis, checked, sources) for pools in pools_by_profile.values())


def write_profiles(name: str, profiles: Sequence[Recalibrated], path: Path) -> list[Path]:
    """Write the profile, or several and one that chooses among them by accelerator and engine.

    Returns:
        The files, ``path`` the first.

    Raises:
        ValueError: there are no profiles.
        FileExistsError: a file exists; none is overwritten.
    """
    from hisearch.calibrate.writing import profile_yaml
    from hisearch.specs.machines.profile import ProfileChoice

    if not profiles:
        raise ValueError("there is no profile to write: no correction of a latency profile explains the measurements")
    if len(profiles) == 1:
        texts = {path: profile_yaml(name, _DESCRIPTION, profiles[0].profile)}
    else:
        parent = profiles[0].parent
        assert parent is not None, "a profile that is named itself prices every pool"
        files = {
            (entry.engine, entry.base): path.with_name(f"{path.stem}-{entry.engine}-{entry.accelerator}{path.suffix}")
            for entry in profiles
        }
        choices = [
            choice.model_copy(update={"profile": str(files[choice.engine, choice.profile].resolve())})
            if (choice.engine, choice.profile) in files
            else choice
            for choice in parent.choices
        ]
        known = {(choice.engine, choice.profile) for choice in parent.choices}
        choices += [
            ProfileChoice.model_validate(
                {
                    "engine": entry.engine,
                    "accelerator": entry.accelerator,
                    "profile": str(files[entry.engine, entry.base].resolve()),
                }
            )
            for entry in profiles
            if (entry.engine, entry.base) not in known
        ]
        texts = {path: profile_yaml(name, _DESCRIPTION, parent.model_copy(update={"choices": choices}))}
        for entry in profiles:
            file = files[entry.engine, entry.base]
            texts[file] = profile_yaml(file.stem, _DESCRIPTION, entry.profile)
    for file in texts:
        if file.exists():
            raise FileExistsError(f"{file}: exists already; it is not overwritten")
    for file, text in texts.items():
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    return list(texts)


def _corrected(
    resolved: ResolvedStudy | ResolvedDeployment,
    pools: Sequence[PoolSpec],
    diagnosis: Diagnosis,
    checked: tuple[float, str],
    sources: Sequence[str],
) -> Recalibrated:
    """The profile of pools on one accelerator and engine."""
    from hisearch.specs.base import Provenance

    pool, document = pools[0], _concrete_profile(resolved, pools[0])
    base, engine = document.spec, pool.engine.name
    correction, ambiguous = _of_pools(diagnosis.correction, pools)
    factors, old = correction.factors_of(pool.name), base.corrections
    if old is not None:
        factors = factors.model_copy(
            update={name: getattr(factors, name) * getattr(old, name) for name in ("host", "prefill", "decode")}
        )
    overhead = base.engines[engine]
    engines = base.engines | {
        engine: overhead.model_copy(update={"request_s": overhead.request_s + correction.front_end_s})
    }
    operators = base.operators
    if operators is not None:
        operators = str((document.path.parent / operators).resolve())
    error, how = checked
    measured = ", ".join(
        f"{member.name}: {member.accelerator}, {engine}, tensor parallel {member.tensor_parallel}" for member in pools
    )
    notes = (
        f"Corrected terms: {', '.join(diagnosis.terms)}. Root mean square difference of TTFT, TPOT and E2E (means and "
        f"percentiles) {diagnosis.error_before:.3f} before, {diagnosis.error_after:.3f} after; {how}: {error:.3f}. "
        f"Measured on {measured}. {ambiguous}Before: {base.provenance.source}"
    )
    source = f"hisearch verify of {', '.join(Path(source).name for source in sources)}, on profile {document.name}"
    profile = base.model_copy(
        update={
            "corrections": factors,
            "engines": engines,
            "operators": operators,
            "evidence": "fitted",
            "relative_error": max(round(error, 4), _LEAST_ERROR),
            "provenance": Provenance(source=source, as_of=datetime.datetime.now(datetime.UTC).date(), notes=notes),
        }
    )
    parent = resolved.profile.spec
    return Recalibrated(
        pool.accelerator, engine, document.name, profile, parent if parent.estimator == "auto" else None
    )


def _of_pools(correction: Correction, pools: Sequence[PoolSpec]) -> tuple[Correction, str]:
    """The correction that one profile can hold for these pools, and a note where pools need different ones."""
    speeds = dict(correction.pools)
    if len({speeds.get(pool.name, 1.0) for pool in pools}) == 1:
        return correction, ""
    factors = ", ".join(f"{pool.name} {speeds.get(pool.name, 1.0):.3g}" for pool in pools)
    return replace(correction, pools=()), f"One profile cannot hold one factor per pool ({factors}): left out. "


def _concrete_profile(resolved: ResolvedStudy | ResolvedDeployment, pool: PoolSpec) -> Document[LatencyProfileSpec]:
    """The profile that prices a pool; ``auto`` is resolved to the profile that it selects."""
    from hisearch.latency.estimators.auto import AutoEstimator
    from hisearch.specs.documents.catalogue import Catalogue

    document = resolved.profile
    if document.spec.estimator != "auto":
        return document
    accelerator = resolved.accelerators[pool.accelerator].spec
    name = AutoEstimator(document.name, document.spec).chosen(accelerator, pool.engine.name)
    if name is not None:
        return Catalogue().get("LatencyProfile", name)
    roofline = document.spec.model_copy(update={"estimator": "roofline", "choices": []})
    return replace(document, spec=roofline)
