"""Results of a fit: its constants as YAML, errors by held-out group, and the error laws from them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from hisearch.base.dtypes import F8
from hisearch.latency.served_errors import SHARES
from refit.host_fit.cases import SERVED, Case
from refit.host_fit.fit import CONSTANTS, MEASURED, HostFit
from refit.host_fit.leave_out import LeftOut

#: Situation of ``latency.served_errors`` by kind of held-out group.
SITUATIONS = {"model": "model", "GPU": "accelerator", "campaign": "campaign"}
FIGURES = ("ttft", "step")
#: Fewest runs of a law (two lie beyond each 90 % bound), and the least distance of quantiles that errors are scaled by.
LEAST_RUNS, LEAST_DISTANCE = 40, 1e-3


def write_constants(path: Path, fit: HostFit, fitted_on: str) -> None:
    """Write the constants as YAML: engine -> its constants, and ``versions``."""
    names = (*CONSTANTS, *MEASURED)
    engines: dict[str, Any] = {}
    for engine, times in sorted(fit.engines.items()):
        engines[engine] = {name: getattr(times.own, name) for name in names}
        engines[engine]["versions"] = {
            version: {name: getattr(version_times, name) for name in names}
            for version, version_times in sorted(times.versions.items())
        }
    about = f"# Host work of engines, fitted to {fitted_on} by `python -m refit hosts`.\n"
    path.write_text(about + yaml.safe_dump(engines, sort_keys=False), encoding="utf-8")


def summary(cases: Sequence[Case], errors: F8) -> dict[str, dict[str, float]]:
    """For TTFT and step time: runs, median and mean of the absolute relative error, median of the signed one."""
    counts = np.array([case.counts for case in cases]) & np.isfinite(errors)
    figures = {}
    for k, name in enumerate(FIGURES):
        relative = np.expm1(errors[counts[:, k], k])
        if len(relative):
            figures[name] = {
                "runs": float(len(relative)),
                "median_ape": float(np.median(np.abs(relative))),
                "mape": float(np.mean(np.abs(relative))),
                "bias": float(np.median(relative)),
            }
    return figures


def by_group(cases: Sequence[Case], errors: F8) -> dict[str, Any]:
    """``summary`` of every kind of run, and of these by engine, campaign and GPU."""
    groups: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        labels = (case.engine, f"campaign {case.campaign}", case.gpu)
        for name in (case.kind, *(f"{case.kind}, {label}" for label in labels)):
            groups.setdefault(name, []).append(index)
    return {name: summary([cases[i] for i in members], errors[members]) for name, members in sorted(groups.items())}


def error_laws(cases: Sequence[Case], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """Content of ``served_errors.yaml``: errors of held-out cases only.

    Runs with their own operator tables are excluded, because their errors do not measure laws.
    Laws are widened until their intervals hold for a held-out model (``widened``). Where few runs tell of prompts, the
    wider law of TTFT stands for theirs.
    """
    document: dict[str, Any] = {}
    for engine in sorted({case.engine for case in cases}):
        of_engine = [index for index, case in enumerate(cases) if case.engine == engine]
        laws = {}
        for out in left_out:
            counted = {figure: _counted(cases, out.errors, of_engine, k) for k, figure in enumerate(FIGURES)}
            counted["prompts"] = _of_prompts(cases, out.errors, of_engine)
            law = {}
            for figure, (errors, models) in counted.items():
                law[figure] = None if len(errors) < LEAST_RUNS else _written(widened(errors, models), len(errors))
            law["prompts"] = law["prompts"] or deepcopy(law["ttft"])
            if all(value is not None for value in law.values()):
                laws[SITUATIONS[out.name]] = law
        document[engine] = {
            "accelerators": sorted({cases[i].gpu for i in of_engine if cases[i].kind != SERVED}),
            "models": sorted({cases[i].model for i in of_engine if cases[i].kind != SERVED}),
            "situations": laws,
        }
    return document


def coverage(cases: Sequence[Case], left_out: LeftOut) -> dict[str, dict[str, float]]:
    """Share of runs inside the 50 and the 90 % interval, by engine and figure.

    Every run is compared with a law of the other models' runs, widened by these alone.
    """
    shares: dict[str, dict[str, float]] = {}
    for engine in sorted({case.engine for case in cases}):
        of_engine = [index for index, case in enumerate(cases) if case.engine == engine]
        for k, figure in enumerate(FIGURES):
            errors, models = _counted(cases, left_out.errors, of_engine, k)
            inside = []
            for model in np.unique(models):
                other_errors = errors[models != model]
                if len(other_errors) < LEAST_RUNS:
                    continue
                low, quarter, _, three, high = widened(other_errors, models[models != model])
                tried = errors[models == model]
                inside.append(np.stack([(quarter <= tried) & (tried <= three), (low <= tried) & (tried <= high)]))
            if inside:
                half, most = np.concatenate(inside, axis=1).mean(axis=1)
                shares.setdefault(engine, {}).update({f"{figure} 50 %": float(half), f"{figure} 90 %": float(most)})
    return shares


def widened(errors: F8, groups: npt.NDArray[np.str_]) -> F8:
    """Quantiles of ``errors`` at ``SHARES``, as far from their median as held-out groups need.

    Each group is compared with the quantiles of the others: its errors are divided by their distances from the median.
    The median of these ratios stretches the quartiles and the 90 % quantile the outermost; neither shrinks.
    Source: Romano, Patterson and Candes, "Conformalized quantile regression" (arXiv 1905.03222), by group.

    Args:
        errors: log(simulated / measured), shape (runs,).
        groups: of each run; with fewer than two groups nothing is stretched.
    """
    quantiles = np.quantile(errors, SHARES)
    inner, outer = [np.zeros(0)], [np.zeros(0)]
    for group in np.unique(groups):
        other_errors = errors[groups != group]
        if not len(other_errors):
            continue
        low, quarter, middle, three, high = np.quantile(other_errors, SHARES)
        off = errors[groups == group] - middle
        for ratios, below, above in ((inner, quarter, three), (outer, low, high)):
            ratios.append(np.abs(off) / np.maximum(np.where(off > 0.0, above - middle, middle - below), LEAST_DISTANCE))
    stretch = np.ones(len(SHARES))
    for ratios, share, places in ((inner, 0.5, (1, 3)), (outer, 0.9, (0, 4))):
        distances = np.concatenate(ratios)
        if len(distances):
            stretch[list(places)] = max(1.0, float(np.quantile(distances, share)))
    middle = quantiles[2]
    return np.sort(middle + stretch * (quantiles - middle))


def _counted(cases: Sequence[Case], errors: F8, members: Sequence[int], figure: int) -> tuple[F8, npt.NDArray[np.str_]]:
    """Errors of one figure that count for laws, and their models."""
    by_laws = [i for i in members if cases[i].kind != SERVED]
    counted = [i for i in by_laws if cases[i].counts[figure] and np.isfinite(errors[i, figure])]
    return errors[counted, figure], np.array([cases[i].model for i in counted])


def _of_prompts(cases: Sequence[Case], errors: F8, members: Sequence[int]) -> tuple[F8, npt.NDArray[np.str_]]:
    """Errors of prompts, and their models."""
    priced = [(cases[i].model, cases[i].prompts, errors[i]) for i in members if np.isfinite(errors[i]).all()]
    known = [(model, prompts.error(both)) for model, prompts, both in priced if prompts is not None]
    return np.array([error for _, error in known]), np.array([model for model, _ in known])


def _written(quantiles: F8, runs: int) -> dict[str, Any]:
    return {"logs": [round(float(value), 4) for value in quantiles], "runs": runs}
