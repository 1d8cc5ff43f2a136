"""Trials as tables."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hisearch.search.deployments import describe
from hisearch.search.execution import ExecutionReport
from hisearch.search.trial import Trial

if TYPE_CHECKING:
    import pandas as pd


#: Columns that a table of no trials has as well.
_ALWAYS = [
    "number",
    "stage",
    "slice_fraction",
    "load",
    "simulations",
    "feasible",
    "error",
    "description",
    "warnings",
    "deployment",
]


def trials_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row per trial, in order: what was simulated, its parameters, its metrics, a margin per SLO term.

    ``deployment`` holds the whole deployment as JSON. Parameters that do not apply, metrics of failed trials, undefined
    figures and margins where none may be rejected are missing.
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
    """Stage 1's estimates, one row per worker that can be built.

    ``rank``: place among those that go on to stage 2, from 1, in the order in which they are simulated; missing where
    the worker does not go on.
    """
    import pandas as pd

    ranks = {id(candidate): rank for rank, candidate in enumerate(report.kept, start=1)}
    rows = [
        {
            "rank": ranks.get(id(candidate)),
            "accelerator": candidate.pool.accelerator,
            "engine": candidate.pool.engine.name,
            "tensor_parallel": candidate.pool.tensor_parallel,
            "pipeline_parallel": candidate.pool.pipeline_parallel,
            "attention_data_parallel": candidate.pool.attention_data_parallel,
            "expert_parallel": candidate.pool.expert_parallel,
            "weight_dtype": candidate.pool.weight_dtype or "model",
            "kv_dtype": candidate.pool.kv_dtype,
            "chunk_tokens": candidate.pool.engine.chunk_tokens,
            "max_running_requests": candidate.pool.engine.max_running_requests,
            "estimated_replicas": candidate.replicas,
            "estimated_usd_per_hour": candidate.usd_per_hour,
            "estimated_ttft_s": candidate.estimate.ttft_s,
            "estimated_tpot_s": candidate.estimate.tpot_s,
            "estimated_capacity_rps": candidate.estimate.capacity_rps,
            "estimated_hit_rate": candidate.estimate.hit_rate,
            "batch": candidate.estimate.batch,
            "batch_limit": candidate.estimate.limit,
            "doubt": candidate.doubt,
        }
        for candidate in report.sized
    ]
    return pd.DataFrame(rows).astype({"rank": "Int64"})
