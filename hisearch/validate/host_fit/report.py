"""What a fit came to: its constants as YAML, errors by what was left out, and the error laws that these give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from hisearch.latency.served_errors import SHARES
from hisearch.validate.host_fit.cases import Case, ClosedLoopCase
from hisearch.validate.host_fit.fit import CONSTANTS, MEASURED, HostFit
from hisearch.validate.host_fit.leave_out import LeftOut

F8 = npt.NDArray[np.float64]

#: Situation of ``latency.served_errors`` by what was left out.
SITUATIONS = {"model": "model", "GPU": "accelerator", "campaign": "campaign"}
FIGURES = ("ttft", "step")
#: Runs that a law needs.
LEAST_RUNS = 20


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
    """``summary`` of closed-loop and open-loop runs, and of these by engine and campaign."""
    groups: dict[str, list[int]] = {}
    for index, case in enumerate(cases):
        kind = "closed loop" if isinstance(case, ClosedLoopCase) else "open loop"
        for name in (kind, f"{kind}, {case.engine}", f"{kind}, campaign {case.campaign}", f"{kind}, {case.gpu}"):
            groups.setdefault(name, []).append(index)
    return {name: summary([cases[i] for i in members], errors[members]) for name, members in sorted(groups.items())}


def error_laws(cases: Sequence[Case], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """What ``served_errors.yaml`` holds: errors of cases that had no part in the constants, and of no other."""
    document: dict[str, Any] = {}
    situations = [(SITUATIONS[out.name], out.errors) for out in left_out]
    for engine in sorted({case.engine for case in cases}):
        mine = [index for index, case in enumerate(cases) if case.engine == engine]
        laws = {}
        for name, errors in situations:
            law = {
                figure: _law([cases[i] for i in mine], errors[mine], k) for k, figure in enumerate(FIGURES)
            }  # fmt: skip
            if all(value is not None for value in law.values()):
                laws[name] = law
        document[engine] = {
            "accelerators": sorted({cases[i].gpu for i in mine}),
            "models": sorted({cases[i].model for i in mine}),
            "situations": laws,
        }
    return document


def coverage(cases: Sequence[Case], left_out: LeftOut, fold_of: Mapping[int, int]) -> dict[str, dict[str, float]]:
    """Share of runs inside the 50 and the 90 % interval, by engine and figure, with laws of the other folds' runs."""
    found: dict[str, dict[str, float]] = {}
    for engine in sorted({case.engine for case in cases}):
        mine = np.array([i for i, case in enumerate(cases) if case.engine == engine])
        for k, figure in enumerate(FIGURES):
            inside: list[tuple[bool, bool]] = []
            for fold in sorted(set(fold_of.values())):
                tried = [i for i in mine if fold_of[int(i)] == fold and cases[i].counts[k]]
                others = [i for i in mine if fold_of[int(i)] != fold]
                law = _law([cases[i] for i in others], left_out.errors[others], k)
                if law is None:
                    continue
                low, quarter, _, three, high = law["logs"]
                for i in tried:
                    error = left_out.errors[i, k]
                    inside.append((bool(quarter <= error <= three), bool(low <= error <= high)))
            if inside:
                half, most = np.mean(np.array(inside), axis=0)
                found.setdefault(engine, {}).update({f"{figure} 50 %": float(half), f"{figure} 90 %": float(most)})
    return found


def _law(cases: Sequence[Case], errors: F8, figure: int) -> dict[str, Any] | None:
    counted = np.array([case.counts[figure] for case in cases], dtype=bool) & np.isfinite(errors[:, figure])
    if counted.sum() < LEAST_RUNS:
        return None
    logs = [round(float(value), 4) for value in np.quantile(errors[counted, figure], SHARES)]
    return {"logs": logs, "runs": int(counted.sum())}
