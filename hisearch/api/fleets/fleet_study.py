"""Studies of several models behind one router from Python: ``hisearch.load_fleet_study(path).run()``.

Each model is searched by a study of its own, in a folder of its own. Their fronts are then combined
(``hisearch.search.select.fleet_front``), and the recommended combination is simulated once on all traffic.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.fleets.fleet_outcome import FleetOutcome
from hisearch.api.runs.run_folder import (
    JOURNAL,
    MODELS,
    REPORT,
    check_one_of_several,
    check_writable,
    default_run_dir,
    replace_with,
    write_text,
    write_tree,
)
from hisearch.specs.documents.resolve_fleet import ResolvedFleetStudy
from hisearch.specs.documents.resolve_fleet import load_fleet_study as resolve_fleet_study

if TYPE_CHECKING:
    import pandas as pd

    from hisearch.api.fleets.fleet_whole import CombinedDeployment
    from hisearch.api.studies.result import StudyResult
    from hisearch.api.studies.study import Study
    from hisearch.search.records.interrupts import Interrupts
    from hisearch.search.records.progress import Progress

RESULT = "fleet.json"


def load_fleet_study(path: str | Path, overrides: Iterable[str] = ()) -> FleetStudy:
    """Load a study of several models and all it names.

    Args:
        path: a catalogue name or a path.
        overrides: ``key.path=value`` settings, as of ``--set``.

    Raises:
        SpecError: with file, line and key.
    """
    return FleetStudy(resolve_fleet_study(path, tuple(overrides)))


class FleetStudy:
    """A study of several models that can be run."""

    def __init__(self, resolved: ResolvedFleetStudy) -> None:
        """Wrap a resolved study."""
        self.resolved = resolved

    @property
    def name(self) -> str:
        """The study's name."""
        return self.resolved.name

    @cached_property
    def studies(self) -> dict[str, Study]:
        """The study of each model alone."""
        from hisearch.api.studies.study import Study

        return {name: Study(resolved) for name, resolved in self.resolved.parts.items()}

    def run(
        self,
        workers: int | None = None,
        run_dir: str | Path | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        *,
        backend: str = "threads",
        scheduler: str | None = None,
        interrupts: Interrupts | None = None,
    ) -> FleetResult:
        """Search model by model, combine, and write the run folder; arguments and errors as of ``Study.run``.

        An interrupt ends the run: models not yet searched are skipped.
        """
        folder = Path(run_dir) if run_dir is not None else default_run_dir(self.name)
        if resume:
            check_one_of_several(folder)
        check_writable(folder)
        for study in self.studies.values():
            study.trace  # noqa: B018  (an unreadable trace is refused before the first search)
        self._check_all_served()
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "study.yaml", self.resolved.to_yaml())
        results: dict[str, StudyResult] = {}
        for name, study in self.studies.items():
            model_dir = folder / MODELS / name
            results[name] = study.run(
                workers,
                model_dir,
                resume and (model_dir / JOURNAL).is_file(),
                progress,
                backend=backend,
                scheduler=scheduler,
                interrupts=interrupts,
            )
            if results[name].stopped == "interrupted":
                break
        result = FleetResult(self.resolved, results, folder)
        result.write()
        return result

    def _check_all_served(self) -> None:
        """Refuse a shared workload with requests that no model serves.

        Raises:
            SpecError: requests ask for an unknown model, or for one that has a workload of its own.
        """
        from hisearch.traces.load import load_reference

        spec = self.resolved.study
        sharing = [name for name in spec.models if not spec.own(name, "workload")]
        if not sharing:
            return
        resolved = self.resolved.parts[sharing[0]]
        trace = load_reference(resolved.study.workload.model_copy(update={"models": []}), resolved.workload, spec.seed)
        served_names = {alias for name in sharing for alias in self.resolved.names_of(name)}
        unserved = [
            alias for alias in (() if trace.models is None else trace.models.names) if alias not in served_names
        ]
        if unserved:
            raise self.resolved.document.error(
                ("spec", "workload", "trace"),
                f"requests ask for {', '.join(unserved)}: no model that shares this workload goes by that name; "
                f"those that do are {', '.join(sharing)} (other names: asked_as)",
            )


@dataclass(frozen=True)
class FleetResult(FleetOutcome):
    """``FleetOutcome`` with the simulated recommendation and its documents."""

    results: Mapping[str, StudyResult]

    @cached_property
    def whole(self) -> CombinedDeployment | None:
        """The recommended deployment, simulated on the traffic of all models; None without one."""
        from hisearch.api.fleets.fleet_whole import simulate_combined

        return None if self.recommendation is None else simulate_combined(self, self.recommendation)

    def to_pandas(self) -> pd.DataFrame:
        """The front: a row per combination with its figures, and each model's deployment as text and trial number."""
        import pandas as pd

        from hisearch.search.model.deployments import describe

        rows = []
        for combination in self.front:
            row: dict[str, Any] = dict(combination.figures)
            for name, trial in zip(self.results, combination.trials, strict=True):
                row |= {f"{name}.trial": trial.number, f"{name}.deployment": describe(trial.deployment)}
                row |= {f"{name}.{axis}": trial.objective(axis) for axis in self.resolved.study.axes}
            rows.append(row)
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; see docs/cli.md, "Several models"."""
        from hisearch.search.model.deployments import describe

        models = [
            {
                "model": name,
                "feasible": result.recommendation is not None,
                "run_dir": str(result.run_dir.relative_to(self.run_dir)),
                "simulations": sum(trial.simulations for trial in result.trials),
                "front": len(result.front),
                "stopped": result.stopped,
            }
            for name, result in self.results.items()
        ]
        best, simulated = self.recommendation, self.whole
        recommendation = None
        if best is not None and simulated is not None:
            recommendation = {
                "figures": dict(best.figures),
                "models": [
                    {"model": name, "trial": trial.number, "deployment": describe(trial.deployment)}
                    for name, trial in zip(self.results, best.trials, strict=True)
                ],
                "simulated": simulated.to_dict(),
            }
        return {
            "study": self.resolved.name,
            "run_dir": str(self.run_dir),
            "models": models,
            "missed": list(self.missed),
            "recommendation": recommendation,
            "front": [dict(combination.figures) for combination in self.front],
        }

    def write(self) -> None:
        """Write the run folder's own documents: ``fleet.json``, ``front.csv``, ``report.html``, ``recommended/``."""
        from hisearch.api.fleets.fleet_reporting import fleet_report
        from hisearch.report.pages.fleet_page import render_fleet

        write_text(self.run_dir / RESULT, json.dumps(_plain(self.to_dict()), indent=2) + "\n")
        frame = self.to_pandas()
        replace_with(self.run_dir / "front.csv", lambda path: frame.to_csv(path, index=False))
        write_text(self.run_dir / REPORT, render_fleet(fleet_report(self, self.whole)))
        if self.whole is not None:
            write_tree(self.run_dir / "recommended", self._export)

    def _export(self, folder: Path) -> None:
        """Write the combined deployment, and launch scripts for each model's part."""
        from hisearch.api.studies.exporting import export_trial
        from hisearch.export.engines.flags import ExportError

        assert self.recommendation is not None
        assert self.whole is not None
        write_text(folder / "deployment.yaml", self.whole.text)
        for (name, result), trial in zip(self.results.items(), self.recommendation.trials, strict=True):
            try:
                export_trial(result, trial, folder / name)
            except ExportError as error:
                write_text(folder / f"{name}.txt", f"This part was not exported: {error}\n")


def _plain(data: Any) -> Any:
    """Plain values for JSON; numbers that are not finite become null."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    return _finite(data) if isinstance(data, float) else data


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
