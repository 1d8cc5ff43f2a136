"""Trials as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hisearch.search.model.candidates import Candidate, Cluster, Kept
from hisearch.search.model.deployments import describe, worker_parameters
from hisearch.search.model.trial import Trial
from hisearch.search.stages.execution_report import ExecutionReport

if TYPE_CHECKING:
    import pandas as pd


#: Columns of every table, even without trials.
_ALWAYS = [
    "number", "stage", "slice_fraction", "load", "simulations", "feasible", "error", "description", "warnings",
    "deployment",
]  # fmt: skip


def trials_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row per trial, in order: its description, parameters, metrics, and a margin per SLO term.

    ``deployment`` holds the complete deployment as JSON. Missing values: parameters that do not apply, metrics of
    failed trials, undefined figures, and rejection margins if the SLO allows no rejections.
    """
    import pandas as pd

    frame = pd.DataFrame([_row(trial) for trial in trials])
    return frame if len(trials) > 0 else pd.DataFrame(columns=_ALWAYS)


def _row(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "stage": trial.stage,
        "slice_fraction": trial.slice_fraction,
        "load": trial.load,
        "simulations": trial.simulations,
        "feasible": trial.feasible,
        "error": trial.error,
        "description": describe(trial.deployment),
        **trial.parameters,
        **trial.metrics,
        **{f"margin_{check.label}": math.nan if check.margin is None else check.margin for check in trial.slo},
        "warnings": "; ".join(trial.warnings),
        "deployment": json.dumps(trial.deployment.model_dump(mode="json"), sort_keys=True),
    }


def candidates_frame(report: ExecutionReport) -> pd.DataFrame:
    """Stage 1's estimates: one row per worker that can be built, and one per kept set of several pools.

    ``rank``: place among the candidates of stage 2, from 1, in the order of simulation; missing if the worker was
    dropped. With several pools, ``pools`` names the row's kind: a unified, prefill or decode worker, or workers of
    several pools. Their settings are then joined by " + ".
    """
    import pandas as pd

    ranks = {id(candidate): rank for rank, candidate in enumerate(report.kept, start=1)}
    clusters = [candidate for candidate in report.kept if isinstance(candidate, Cluster)]
    rows = [_candidate_row(candidate.sides, ranks.get(id(candidate))) for candidate in (*report.sized, *report.sides)]
    rows += [
        _candidate_row(cluster.sides, ranks[id(cluster)]) | _estimates(cluster) | {"doubt": cluster.shortfall}
        for cluster in clusters
    ]
    frame = pd.DataFrame(rows).astype({"rank": "Int64"})
    if clusters or report.sides:
        kinds = [candidate.pool.role for candidate in (*report.sized, *report.sides)]
        frame.insert(1, "pools", [*kinds, *(candidate.shape for candidate in clusters)])
    return frame


def _candidate_row(workers: Sequence[Candidate], rank: int | None) -> dict[str, Any]:
    """Settings and estimates of a worker, or of the workers of several pools."""
    rows = [
        {name: value for name, value in worker_parameters(worker.pool).items() if name != "replicas"}
        | {"estimated_replicas": worker.replicas}
        | _estimates(worker)
        | {"batch": worker.estimate.batch, "batch_limit": worker.estimate.limit, "doubt": worker.shortfall}
        for worker in workers
    ]
    if len(rows) == 1:
        return {"rank": rank, **rows[0]}
    return {"rank": rank} | {name: " + ".join(str(row[name]) for row in rows) for name in rows[0]}


def _estimates(candidate: Kept) -> dict[str, Any]:
    """Estimates of a worker's replicas, or of the combined pools."""
    estimate = candidate.estimate
    return {
        "estimated_usd_per_hour": candidate.usd_per_hour,
        "estimated_ttft_s": estimate.ttft_s,
        "estimated_tpot_s": estimate.tpot_s,
        "estimated_capacity_rps": estimate.capacity_rps,
        "estimated_hit_rate": estimate.hit_rate,
    }
