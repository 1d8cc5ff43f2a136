"""What a fit came to: its constants as YAML, errors by what was left out, and the error laws that these give."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from hisearch.base.dtypes import F8
from hisearch.latency.served_errors import SHARES
from hisearch.validate.host_fit.cases import SERVED, Case
from hisearch.validate.host_fit.fit import CONSTANTS, MEASURED, HostFit
from hisearch.validate.host_fit.leave_out import LeftOut

#: Situation of ``latency.served_errors`` by what was left out.
SITUATIONS = {"model": "model", "GPU": "accelerator", "campaign": "campaign"}
FIGURES = ("ttft", "step")
#: Runs that a law needs, and the least distance of its quantiles from the median that another is measured by.
LEAST_RUNS, LEAST_DISTANCE = 20, 1e-3


def write_constants(path: Path, fit: HostFit, fitted_on: str) -> None:
    """Write the constants as YAML: engine -> its own, and ``versions``."""
    names = (*CONSTANTS, *MEASURED)
    engines: dict[str, Any] = {}
    for engine, times in sorted(fit.engines.items()):
        engines[engine] = {name: getattr(times.own, name) for name in names}
        engines[engine]["versions"] = {
            version: {name: getattr(of, name) for name in names} for version, of in sorted(times.versions.items())
        }
    about = f"# Host work of engines, fitted to {fitted_on} by `hisearch calibrate hosts`.\n"
    path.write_text(about + yaml.safe_dump(engines, sort_keys=False), encoding="utf-8")


def summary(cases: Sequence[Case], errors: F8) -> dict[str, dict[str, float]]:
    """Of TTFT and step time: runs, median and mean of the absolute relative error, median of the signed one."""
    counts = np.array([case.counts for case in cases]) & np.isfinite(errors)
    found = {}
    for k, name in enumerate(FIGURES):
        relative = np.expm1(errors[counts[:, k], k])
        if len(relative):
            found[name] = {
                "runs": float(len(relative)),
                "median_ape": float(np.median(np.abs(relative))),
                "mape": float(np.mean(np.abs(relative))),
                "bias": float(np.median(relative)),
            }
    return found


def by_group(cases: Sequence[Case], errors: F8) -> dict[str, Any]:
    """``summary`` of every kind of run, and of these by engine, campaign and GPU."""
    groups: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        parts = (case.engine, f"campaign {case.campaign}", case.gpu)
        for name in (case.kind, *(f"{case.kind}, {part}" for part in parts)):
            groups.setdefault(name, []).append(index)
    return {name: summary([cases[i] for i in members], errors[members]) for name, members in sorted(groups.items())}


def error_laws(cases: Sequence[Case], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """What ``served_errors.yaml`` holds: errors of cases that had no part in the constants, and of no other.

    Runs on operator tables of their own have no part in them: their errors say nothing of laws.
    Laws are widened until they hold what they say of a model that had no part in them (``widened``).
    """
    document: dict[str, Any] = {}
    for engine in sorted({case.engine for case in cases}):
        mine = [index for index, case in enumerate(cases) if case.engine == engine]
        laws = {}
        for out in left_out:
            law = {}
            for k, figure in enumerate(FIGURES):
                errors, models = _counted(cases, out.errors, mine, k)
                law[figure] = None if len(errors) < LEAST_RUNS else _written(widened(errors, models), len(errors))
            if all(value is not None for value in law.values()):
                laws[SITUATIONS[out.name]] = law
        document[engine] = {
            "accelerators": sorted({cases[i].gpu for i in mine if cases[i].kind != SERVED}),
            "models": sorted({cases[i].model for i in mine if cases[i].kind != SERVED}),
            "situations": laws,
        }
    return document


def coverage(cases: Sequence[Case], left_out: LeftOut) -> dict[str, dict[str, float]]:
    """Share of runs inside the 50 and the 90 % interval, by engine and figure.

    Every run is held against a law of the other models' runs, widened by these alone.
    """
    found: dict[str, dict[str, float]] = {}
    for engine in sorted({case.engine for case in cases}):
        mine = [index for index, case in enumerate(cases) if case.engine == engine]
        for k, figure in enumerate(FIGURES):
            errors, models = _counted(cases, left_out.errors, mine, k)
            inside = []
            for model in np.unique(models):
                others = errors[models != model]
                if len(others) < LEAST_RUNS:
                    continue
                low, quarter, _, three, high = widened(others, models[models != model])
                tried = errors[models == model]
                inside.append(np.stack([(quarter <= tried) & (tried <= three), (low <= tried) & (tried <= high)]))
            if inside:
                half, most = np.concatenate(inside, axis=1).mean(axis=1)
                found.setdefault(engine, {}).update({f"{figure} 50 %": float(half), f"{figure} 90 %": float(most)})
    return found


def widened(errors: F8, groups: npt.NDArray[np.str_]) -> F8:
    """Quantiles of ``errors`` at ``SHARES``, as far from their median as groups left out need.

    Each group is held against the quantiles of the others: how many of their distances from the median its errors lie
    off. Of these numbers the median stretches the quartiles and the 90 % quantile the outermost; neither shrinks.
    Source: Romano, Patterson and Candes, "Conformalized quantile regression" (arXiv 1905.03222), by group.

    Args:
        errors: log(simulated / measured), shape (runs,).
        groups: of each run; without two of them nothing is stretched.
    """
    quantiles = np.quantile(errors, SHARES)
    inner, outer = [np.zeros(0)], [np.zeros(0)]
    for group in np.unique(groups):
        others = errors[groups != group]
        if not len(others):
            continue
        low, quarter, middle, three, high = np.quantile(others, SHARES)
        off = errors[groups == group] - middle
        for found, below, above in ((inner, quarter, three), (outer, low, high)):
            found.append(np.abs(off) / np.maximum(np.where(off > 0.0, above - middle, middle - below), LEAST_DISTANCE))
    stretch = np.ones(len(SHARES))
    for found, share, places in ((inner, 0.5, (1, 3)), (outer, 0.9, (0, 4))):
        distances = np.concatenate(found)
        if len(distances):
            stretch[list(places)] = max(1.0, float(np.quantile(distances, share)))
    middle = quantiles[2]
    return np.sort(middle + stretch * (quantiles - middle))


def _counted(cases: Sequence[Case], errors: F8, mine: Sequence[int], figure: int) -> tuple[F8, npt.NDArray[np.str_]]:
    """Errors of one figure that count for laws, and their models."""
    by_laws = [i for i in mine if cases[i].kind != SERVED]
    counted = [i for i in by_laws if cases[i].counts[figure] and np.isfinite(errors[i, figure])]
    return errors[counted, figure], np.array([cases[i].model for i in counted])


def _written(quantiles: F8, runs: int) -> dict[str, Any]:
    return {"logs": [round(float(value), 4) for value in quantiles], "runs": runs}
