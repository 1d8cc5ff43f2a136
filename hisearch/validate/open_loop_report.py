"""Errors of simulated open-loop runs, by metric and group of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hisearch.specs.documents.catalogue import Catalogue
from hisearch.validate import errors
from hisearch.validate.errors import Errors
from hisearch.validate.open_loop import Figure, OpenLoopScore, score_folders
from hisearch.validate.open_loop_file import METRICS, OpenLoopFailure

#: Keys by which runs are grouped.
GROUPS: dict[str, Callable[[OpenLoopScore], str]] = {
    "accelerator": lambda score: score.run.accelerator,
    "model": lambda score: score.run.model,
    "workload": lambda score: score.run.workload,
}


@dataclass(frozen=True)
class OpenLoopReport:
    """Runs of all folders.

    scores: runs that were simulated. failed: runs, and folders, that were not.
    """

    scores: tuple[OpenLoopScore, ...]
    failed: tuple[OpenLoopFailure, ...]

    @property
    def summary(self) -> dict[str, Errors]:
        """Over all runs, by metric."""
        return errors_of(self.scores)

    def groups(self, by: str) -> dict[str, tuple[OpenLoopScore, ...]]:
        """Runs by one of ``GROUPS``, in order of first appearance."""
        names = dict.fromkeys(map(GROUPS[by], self.scores))
        return {name: tuple(score for score in self.scores if GROUPS[by](score) == name) for name in names}

    @property
    def unmeasured(self) -> tuple[OpenLoopScore, ...]:
        """Runs without any measured metric."""
        return tuple(score for score in self.scores if not score.measured)

    @property
    def overloaded(self) -> tuple[OpenLoopScore, ...]:
        """Runs that overload in the simulation alone."""
        return tuple(score for score in self.scores if score.overloaded)

    def document(self) -> dict[str, Any]:
        """As ``--json`` prints it; docs/formats.md states the form."""
        return {
            "runs": [_row(score) for score in self.scores],
            "summary": self.summary,
            "groups": {by: {name: errors_of(scores) for name, scores in self.groups(by).items()} for by in GROUPS},
            "unmeasured": len(self.unmeasured),
            "overloaded": len(self.overloaded),
            "unfinished": sum(score.unfinished for score in self.scores),
            "failed": self.failed,
            "ok": not self.failed,
        }


def validate_open_loop(
    folders: Sequence[Path], profile: str | None = None, note: Callable[[str], None] = lambda _: None
) -> OpenLoopReport:
    """Simulate every run of ``folders`` and compare it with its measurement.

    Args:
        folders: see ``open_loop_file``.
        profile: name or path of one LatencyProfile for all runs; where None, that of each run's engine and accelerator.
        note: called with a line before each run is simulated.

    Raises:
        SpecError: no such profile.
    """
    entries = list(score_folders(folders, Catalogue(), "auto" if profile is None else profile, note))
    return OpenLoopReport(
        tuple(entry for entry in entries if isinstance(entry, OpenLoopScore)),
        tuple(entry for entry in entries if isinstance(entry, OpenLoopFailure)),
    )


def errors_of(scores: Iterable[OpenLoopScore]) -> dict[str, Errors]:
    """Errors by metric of whole runs; metrics that no run has are left out."""
    all_scores = list(scores)
    signed = {name: [s.metrics[name].error for s in all_scores if name in s.metrics] for name in METRICS}
    finite = {name: [error for error in values if np.isfinite(error)] for name, values in signed.items()}
    return {name: errors.errors_of(values) for name, values in finite.items() if values}


def _row(score: OpenLoopScore) -> dict[str, Any]:
    run = score.run
    return {
        "id": run.id,
        "set": run.set,
        "model": run.model,
        "accelerator": run.accelerator,
        "tensor_parallel": run.tensor_parallel,
        "workload": run.workload,
        "profile": score.profile,
        "metrics": {name: _figure(figure) for name, figure in score.metrics.items()},
        "stages": [
            {
                "stage": stage,
                "requests_per_s": rate,
                "duration_s": duration_s,
                "metrics": {
                    name: _figure(score.stages[stage, name]) for name in METRICS if (stage, name) in score.stages
                },
            }
            for stage, (rate, duration_s) in enumerate(run.stages)
        ],
        "kv_capacity_tokens": score.predicted_kv_tokens,
        "measured_kv_tokens": run.measured_kv_tokens,
        "requests": score.requests,
        "unfinished": score.unfinished,
        "overloaded": score.overloaded,
    }


def _figure(figure: Figure) -> dict[str, float]:
    return asdict(figure) | {"error": figure.error}
