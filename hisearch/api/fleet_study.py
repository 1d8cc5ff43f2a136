"""Studies of several models behind one router from Python: ``hisearch.load_fleet_study(path).run()``.

Each model is searched by a study of its own, in a folder of its own. Their fronts are then combined
(``hisearch.search.select.fleet_front``), and the recommended combination is simulated once on all traffic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.fleet_cautions import cautions_of, chosen_by_limits, exceeded, past_limits
from hisearch.api.run_folder import (
    JOURNAL,
    MODELS,
    REPORT,
    check_unused,
    check_writable,
    default_run_dir,
    plain,
    replace_with,
    write_text,
    write_tree,
)
from hisearch.api.run_lock import lock_run
from hisearch.base.shown import Shown
from hisearch.search.model.deployments import describe
from hisearch.search.select.fleet_front import Combination, cheapest, combine
from hisearch.specs.documents.kept import keep_documents
from hisearch.specs.documents.resolve_fleet import ResolvedFleetStudy
from hisearch.specs.documents.resolve_fleet import load_fleet_study as resolve_fleet_study
from hisearch.specs.wording import listed

if TYPE_CHECKING:
    import pandas as pd

    from hisearch.api.fleet_combined import CombinedDeployment, ModelChoice
    from hisearch.api.studies.result import StudyResult
    from hisearch.api.studies.study import Study
    from hisearch.report.pages.fleet_page import FleetReport, SearchPart
    from hisearch.report.words.terms import TermLine
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
        from hisearch.search.records.journal import JournalError

        folder = Path(run_dir) if run_dir is not None else default_run_dir(self.name)
        if resume and not (folder / "study.yaml").is_file():
            raise JournalError(f"{folder}: expected the folder of a run to go on with, found no study.yaml")
        check_writable(folder)
        for study in self.studies.values():
            study.trace  # noqa: B018  (an unreadable trace is refused before the first search)
        self._check_all_served()
        check_unused(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with lock_run(folder):
            keep_documents(self.resolved.parts.values(), folder)
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


@dataclass(frozen=True, repr=False)
class FleetResult(Shown):
    """The result of a study of several models. results: of each model's own study that was begun."""

    resolved: ResolvedFleetStudy
    results: Mapping[str, StudyResult]
    run_dir: Path

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        parts = {name: result.facts()["recommendation"] for name, result in self.results.items()}
        return parts | {"missed": listed(self.missed)} if self.missed else parts

    @property
    def stopped(self) -> str:
        """What stopped a model's search before it was complete; "" where nothing did."""
        return next((result.stopped for result in self.results.values() if result.stopped), "")

    @property
    def missed(self) -> tuple[str, ...]:
        """Models without a deployment that meets the SLO, and those that were not searched."""
        return tuple(
            name
            for name in self.resolved.parts
            if name not in self.results or self.results[name].recommendation is None
        )

    @property
    def refusal(self) -> str:
        """Why nothing is recommended, as a sentence; "" where something is."""
        if self.recommendation is not None:
            return ""
        if self.missed:
            return f"Nothing that was simulated meets the SLO of {listed(self.missed)}."
        return exceeded(self.combinations, list(self.resolved.study.limits_by_name))

    @property
    def unsure(self) -> bool:
        """True where no assessed deployment of some model reaches the requested probability, or limits left none."""
        return any(result.unsure for result in self.results.values()) or bool(self.chosen_by_limits)

    @cached_property
    def chosen_by_limits(self) -> tuple[str, ...]:
        """Models whose deployment the limits chose as simulated, in place of that with the requested probability."""
        if self.recommendation is None or not self.resolved.study.confidence.at_least:
            return ()
        return chosen_by_limits(self.choices(self.recommendation))

    @cached_property
    def cautions(self) -> tuple[str, ...]:
        """What each model's own report would caution about its part of the recommendation, and how likely it holds."""
        if self.recommendation is None:
            return ()
        said, wanted = cautions_of(self.choices(self.recommendation)), self.resolved.study.confidence.at_least
        if not self.chosen_by_limits or not wanted:
            return said
        return (*said, past_limits(self.chosen_by_limits, wanted, self.resolved.study.coupling))

    @cached_property
    def tokens(self) -> tuple[float, ...]:
        """Prompt and output tokens of each model's workload."""
        traces = [result.simulation.world.trace.arrays for result in self.results.values()]
        return tuple(float(arrays.input_tokens.sum() + arrays.output_tokens.sum()) for arrays in traces)

    @cached_property
    def combinations(self) -> tuple[Combination, ...]:
        """The combined front, before limits apply; empty where a model has no feasible deployment."""
        if self.missed:
            return ()
        return combine([result.front for result in self.results.values()], self.resolved.study.axes, self.tokens)

    @cached_property
    def front(self) -> tuple[Combination, ...]:
        """The combined front, of combinations within the limits."""
        limits = self.resolved.study.limits_by_name
        return tuple(combination for combination in self.combinations if combination.within(limits))

    @cached_property
    def recommendation(self) -> Combination | None:
        """The deployment to buy: each model's own recommendation, or the cheapest combination within the limits.

        None where a model has no recommendation, or no combination is within the limits.
        """
        if self.missed:
            return None
        limits = self.resolved.study.limits_by_name
        trials = [result.recommendation.trial for result in self.results.values() if result.recommendation is not None]
        (combination,) = combine([[trial] for trial in trials], self.resolved.study.axes, self.tokens)
        return combination if combination.within(limits) else cheapest(self.combinations, limits)

    def choices(self, combination: Combination) -> list[ModelChoice]:
        """A combination's deployment of each model."""
        from hisearch.api.fleet_combined import ModelChoice

        return [
            ModelChoice(name, result, trial)
            for (name, result), trial in zip(self.results.items(), combination.trials, strict=True)
        ]

    @cached_property
    def whole(self) -> CombinedDeployment | None:
        """The recommended deployment, simulated on the traffic of all models; None without one."""
        from hisearch.api.fleet_combined import simulate_combined

        best = self.recommendation
        return None if best is None else simulate_combined(self.resolved, self.choices(best))

    def to_pandas(self) -> pd.DataFrame:
        """The front: a row per combination with its figures, and each model's deployment as text and trial number."""
        import pandas as pd

        rows = []
        for combination in self.front:
            row: dict[str, Any] = dict(combination.figures)
            for name, _, trial in self.choices(combination):
                row |= {f"{name}.trial": trial.number, f"{name}.deployment": describe(trial.deployment)}
                row |= {f"{name}.{axis}": trial.objective(axis) for axis in self.resolved.study.axes}
            rows.append(row)
        return pd.DataFrame(rows)

    def to_dict(self) -> dict[str, Any]:
        """As plain values; see docs/json.md."""
        models = [
            {
                "model": name,
                "feasible": result.recommendation is not None,
                "run_dir": str(result.run_dir.relative_to(self.run_dir)),
                "simulations": result.simulations,
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
                    for name, _, trial in self.choices(best)
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

    def report_input(self) -> FleetReport:
        """The input of the report."""
        from hisearch.report.pages.fleet_page import Combined, FleetReport, ModelPart
        from hisearch.report.words.terms import term_lines

        best, simulated = self.recommendation, self.whole
        parts: list[ModelPart] = []
        if best is not None and simulated is not None:
            parts = [
                ModelPart(
                    name=name,
                    deployment=describe(trial.deployment),
                    usd_per_hour=share.cost.total,
                    requests=share.arrived,
                    attainment=share.score.metrics["attainment"],
                    terms=term_lines(share.score.slo),
                    report=f"{MODELS}/{name}/{REPORT}",
                )
                for (name, _, trial), share in zip(self.choices(best), simulated.shares, strict=True)
            ]
        return FleetReport(
            name=self.resolved.name,
            description=self.resolved.document.description,
            axes=self.resolved.study.axes,
            feasible=simulated is not None and simulated.score.feasible,
            usd_per_hour=best.figures["usd_per_hour"] if best is not None else 0.0,
            parts=tuple(parts),
            coupled=self._coupled(),
            searches=tuple(self._search(name) for name in self.resolved.parts),
            front=tuple(
                Combined(
                    combination.figures,
                    tuple(describe(trial.deployment) for trial in combination.trials),
                    combination == best,
                )
                for combination in sorted(self.front, key=lambda combination: combination.figures["usd_per_hour"])
            ),
            refused=self.refusal,
            cautions=(*self.cautions, *dict.fromkeys(simulated.warnings)) if simulated is not None else (),
        )

    def _coupled(self) -> tuple[TermLine, ...]:
        """Limits on all models together, checked for the recommendation."""
        from hisearch.report.words.terms import term_lines
        from hisearch.score.terms import LimitCheck

        best = self.recommendation
        return term_lines(
            LimitCheck(name, best.figures[name], limit.bound, at_least=limit.at_most is None)
            for name, limit in self.resolved.study.limits_by_name.items()
            if best is not None and name in best.figures
        )

    def _search(self, name: str) -> SearchPart:
        from hisearch.report.pages.fleet_page import SearchPart

        result = self.results.get(name)
        if result is None:
            return SearchPart(name, 0, 0, "not begun", "", "")
        failure = result.failure.text if result.failure is not None else ""
        ended, report = result.outcome.ending.describe(), f"{MODELS}/{name}/{REPORT}"
        return SearchPart(name, result.simulations, len(result.front), ended, failure, report)

    def write(self) -> None:
        """Write the run folder's own documents: ``fleet.json``, ``front.csv``, ``report.html``, ``recommended/``."""
        from hisearch.api.fleet_combined import export_combined
        from hisearch.report.pages.fleet_page import render_fleet

        write_text(self.run_dir / RESULT, json.dumps(plain(self.to_dict()), indent=2) + "\n")
        frame = self.to_pandas()
        replace_with(self.run_dir / "front.csv", lambda path: frame.to_csv(path, index=False))
        write_text(self.run_dir / REPORT, render_fleet(self.report_input()))
        best, whole = self.recommendation, self.whole
        if best is not None and whole is not None:
            write_tree(self.run_dir / "recommended", lambda path: export_combined(whole, self.choices(best), path))
