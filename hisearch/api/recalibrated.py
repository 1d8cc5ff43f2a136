"""Latency profiles corrected by a measurement of a deployment: one for each that prices its pools."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hisearch.verify.prediction import Correction

if TYPE_CHECKING:
    from hisearch.api.studies.result import StudyResult
    from hisearch.search.model.trial import Trial
    from hisearch.specs.deployments.deployment import PoolSpec
    from hisearch.specs.documents.document import Document
    from hisearch.specs.machines.profile import LatencyProfileSpec
    from hisearch.verify.diagnosis import Diagnosis

#: A recalibrated profile does not claim to be better than this.
_LEAST_ERROR = 0.01
#: Terms that no profile holds.
_ELSEWHERE = frozenset({"hits_lost", "hand_over"})
_DESCRIPTION = "Corrected by a measurement of the deployment."


@dataclass(frozen=True)
class Recalibrated:
    """A profile that prices pools of the deployment. parent: the one that chose it for them; None where named itself.

    accelerator, engine: of those pools. base: name of the profile that it corrects.
    """

    accelerator: str
    engine: str
    base: str
    profile: LatencyProfileSpec
    parent: LatencyProfileSpec | None


def recalibrated(
    result: StudyResult, trial: Trial, found: Diagnosis, checked: tuple[float, str], sources: Sequence[str]
) -> tuple[Recalibrated, ...]:
    """The profiles that price the deployment's pools, corrected; none where they stay as they are.

    Args:
        result: the study's.
        trial: whose deployment was measured.
        found: what is off.
        checked: error where the correction had no part in the fit, and how that was found.
        sources: files of the measurements.
    """
    if not set(found.terms) - _ELSEWHERE:
        return ()
    alike: dict[tuple[str, str], list[PoolSpec]] = {}
    for pool in trial.deployment.pools:
        alike.setdefault((_concrete_profile(result, pool).name, pool.engine.name), []).append(pool)
    return tuple(_corrected(result, pools, found, checked, sources) for pools in alike.values())


def write_profiles(name: str, profiles: Sequence[Recalibrated], path: Path) -> list[Path]:
    """Write the profile, or several beside one that chooses among them by accelerator and engine.

    Returns:
        The files, ``path`` the first.

    Raises:
        ValueError: there is none.
        FileExistsError: a file is there already; none is overwritten.
    """
    from hisearch.calibrate.writing import profile_yaml
    from hisearch.specs.machines.profile import ProfileChoice

    if not profiles:
        raise ValueError("there is no profile to write: nothing that a latency profile holds is off")
    if len(profiles) == 1:
        texts = {path: profile_yaml(name, _DESCRIPTION, profiles[0].profile)}
    else:
        parent = profiles[0].parent
        assert parent is not None, "a profile that is named itself prices every pool"
        files = {
            (one.engine, one.base): path.with_name(f"{path.stem}-{one.engine}-{one.accelerator}{path.suffix}")
            for one in profiles
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
                    "engine": one.engine,
                    "accelerator": one.accelerator,
                    "profile": str(files[one.engine, one.base].resolve()),
                }
            )
            for one in profiles
            if (one.engine, one.base) not in known
        ]
        texts = {path: profile_yaml(name, _DESCRIPTION, parent.model_copy(update={"choices": choices}))}
        for one in profiles:
            file = files[one.engine, one.base]
            texts[file] = profile_yaml(file.stem, _DESCRIPTION, one.profile)
    for file in texts:
        if file.exists():
            raise FileExistsError(f"{file}: exists already; it is not overwritten")
    for file, text in texts.items():
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    return list(texts)


def _corrected(
    result: StudyResult,
    pools: Sequence[PoolSpec],
    found: Diagnosis,
    checked: tuple[float, str],
    sources: Sequence[str],
) -> Recalibrated:
    """The profile of pools on one accelerator and engine."""
    from hisearch.specs.base import Provenance

    pool, document = pools[0], _concrete_profile(result, pools[0])
    base, engine = document.spec, pool.engine.name
    correction, ambiguous = _of_pools(found.correction, pools)
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
        f"{one.name}: {one.accelerator}, {engine}, tensor parallel {one.tensor_parallel}" for one in pools
    )
    notes = (
        f"Corrected terms: {', '.join(found.terms)}. Root mean square difference of TTFT, TPOT and E2E (means and "
        f"percentiles) {found.error_before:.3f} before, {found.error_after:.3f} after; {how}: {error:.3f}. "
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
    parent = result.resolved.profile.spec
    return Recalibrated(
        pool.accelerator, engine, document.name, profile, parent if parent.estimator == "auto" else None
    )


def _of_pools(correction: Correction, pools: Sequence[PoolSpec]) -> tuple[Correction, str]:
    """The correction that one profile can hold of these pools, and a word where they ask for different ones."""
    speeds = dict(correction.pools)
    if len({speeds.get(pool.name, 1.0) for pool in pools}) == 1:
        return correction, ""
    asked = ", ".join(f"{pool.name} {speeds.get(pool.name, 1.0):.3g}" for pool in pools)
    return replace(correction, pools=()), f"One profile cannot hold what sets its pools apart ({asked}): left out. "


def _concrete_profile(result: StudyResult, pool: PoolSpec) -> Document[LatencyProfileSpec]:
    """The profile that prices a pool; of one that chooses by accelerator and engine, the chosen one."""
    from hisearch.latency.estimators.auto import AutoEstimator
    from hisearch.specs.documents.catalogue import Catalogue

    document = result.resolved.profile
    if document.spec.estimator != "auto":
        return document
    accelerator = result.resolved.accelerators[pool.accelerator].spec
    name = AutoEstimator(document.name, document.spec).chosen(accelerator, pool.engine.name)
    if name is not None:
        return Catalogue().get("LatencyProfile", name)
    roofline = document.spec.model_copy(update={"estimator": "roofline", "choices": []})
    return replace(document, spec=roofline)
