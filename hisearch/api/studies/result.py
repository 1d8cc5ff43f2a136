"""The result of a study: trials, front, recommendation, and their confidence, figures, documents and exports."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.provenance import format_simulations, profile_note
from hisearch.api.run_folder import (
    CLOSEUP,
    ENDED,
    NOT_EXPORTED,
    PROVENANCE,
    REPORT,
    keep_former,
    replace_with,
    write_text,
    write_tree,
)
from hisearch.api.studies.figures import Figures
from hisearch.base.shown import Shown
from hisearch.search.model.deployments import describe
from hisearch.search.model.trial import price_of
from hisearch.specs.documents.resolved import ResolvedStudy
from hisearch.specs.wording import format_percent

if TYPE_CHECKING:
    import pandas as pd

    from hisearch.api.deployments.replay import Replay
    from hisearch.api.studies.on_engine import Choice
    from hisearch.export.trial_status import TrialStatus
    from hisearch.report.data.closeup import Closeup
    from hisearch.report.data.confidence import Confidence
    from hisearch.report.data.inputs import ReportInput
    from hisearch.score.capacity import Capacity
    from hisearch.search.driver import SearchOutcome
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.model.trial import Recommendation, Trial
    from hisearch.search.records.progress import Progress
    from hisearch.search.select.failure import Failure

_ENGINES = ("sglang", "vllm", "trtllm")


@dataclass(frozen=True, repr=False)
class StudyResult(Shown):
    """The result of a study.

    provenance: plain data, as in ``provenance.json``. run_dir: the run folder. closeup: details of the highlighted
    deployment; None where they were not simulated. kept_in: the folder that documents were read from, if not run_dir:
    of a run that was resumed and has not ended again. former: paths kept of an earlier, different recommendation.
    unwritten: why the run folder's documents could not be written; "" where they were.
    """

    resolved: ResolvedStudy
    outcome: SearchOutcome
    simulation: Simulation
    provenance: dict[str, Any]
    run_dir: Path
    closeup: Closeup | None = None
    kept_in: Path | None = None
    former: tuple[Path, ...] = ()
    unwritten: str = ""

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        feasible = sum(trial.meets_slo for trial in self.trials)
        facts = {"study": self.resolved.name}
        if self.recommendation is None:
            facts["recommendation"] = "none: " + (self.failure.text if self.failure else "nothing meets the SLO")
        else:
            trial = self.recommendation.trial
            facts["recommendation"] = describe(trial.deployment)
            facts["price"] = f"${price_of(trial):,.2f} per hour"
        if self.confidence is not None and self.confidence.chance is not None:
            facts["chance to hold the SLO"] = format_percent(self.confidence.chance)
        facts["trials"] = f"{len(self.trials):,}, {feasible:,} within the SLO, {len(self.front):,} on the front"
        return facts | {"folder": str(self.run_dir)}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every simulation, slices and other loads included, in order."""
        return self.outcome.trials

    @property
    def simulations(self) -> int:
        """Simulations that the trials took."""
        return sum(trial.simulations for trial in self.trials)

    @property
    def front(self) -> tuple[Trial, ...]:
        """The Pareto front of feasible deployments on the whole trace (of all, if none is feasible)."""
        return self.outcome.front

    @property
    def recommendation(self) -> Recommendation | None:
        """The deployment to buy; None where nothing meets the SLO."""
        return self.outcome.recommendation

    def recommend(self) -> Recommendation | None:
        """Same as ``recommendation``."""
        return self.outcome.recommendation

    @property
    def nearest_miss(self) -> Trial | None:
        """Where nothing meets the SLO, the deployment whose worst miss is smallest."""
        return self.outcome.nearest_miss

    @property
    def highlighted(self) -> Trial | None:
        """The recommended trial, or the nearest miss where there is none."""
        return self.recommendation.trial if self.recommendation is not None else self.nearest_miss

    @property
    def headroom(self) -> Capacity | None:
        """The largest load that the highlighted trial holds: the search's, else the closer look's; None without one."""
        return self.outcome.headroom or (self.closeup.headroom if self.closeup is not None else None)

    @property
    def stopped(self) -> str:
        """What stopped the search before it was complete; "" where nothing did.

        It is "simulations", "seconds", "usd" or "interrupted". ``outcome.ending`` lists what was left out.
        """
        return self.outcome.stopped

    @cached_property
    def confidence(self) -> Confidence | None:
        """The confidence in the recommendation, and what would change it; None where it was not assessed.

        Raises:
            ValueError: the run folder's ``confidence.json`` is invalid.
        """
        from hisearch.report.data.confidence import read_confidence
        from hisearch.report.data.stored import CONFIDENCE

        return read_confidence((self.kept_in or self.run_dir) / CONFIDENCE)

    @cached_property
    def drift(self) -> tuple[str, ...]:
        """What is another one today than in the run: prices, documents, the trace file. The run uses its own."""
        from hisearch.api.studies.drift import drift_notes

        return drift_notes(self.resolved)

    @property
    def unsure(self) -> bool:
        """True where nothing found is as likely as the study requires, or holds where its load is carried on."""
        return self.confidence is not None and False in (self.confidence.lasts, self.confidence.satisfied)

    @cached_property
    def failure(self) -> Failure | None:
        """Why nothing is recommended; None where something is."""
        from hisearch.search.select.failure import explain

        return explain(self.trials, self.outcome.execution.hopeless) if self.recommendation is None else None

    @property
    def caution(self) -> str:
        """A caution about a search or checks of its answer that were cut short, as sentences; "" for complete ones."""
        hopeless, run = self.failure is not None and self.failure.hopeless, shlex.quote(str(self.run_dir))
        ended = self.outcome.ending.caution(self.recommendation is not None, hopeless, run)
        return ended if self.confidence is None else f"{ended} {self.confidence.unchecked}".strip()

    @property
    def formats(self) -> str:
        """A note on formats narrower than the checkpoint's in the highlighted deployment; "" without any."""
        return self.formats_of(self.highlighted)

    def formats_of(self, trial: Trial | None) -> str:
        """The same note for any trial; the baseline counts as one that may keep the checkpoint's formats."""
        from hisearch.search.select.formats import describe_formats

        baseline = self.recommendation.baseline if self.recommendation is not None else None
        simulated = [*self.trials, *([baseline] if baseline is not None else [])]
        execution = self.resolved.space.spec.execution
        likely = self._likely_own_formats if trial is self.highlighted else None
        return describe_formats(self.resolved.model.spec, trial, simulated, execution, likely)

    @property
    def _likely_own_formats(self) -> tuple[Trial, float] | None:
        """The cheapest that keeps the checkpoint's formats and is as likely as required, with its probability."""
        own = self.confidence.own_formats if self.confidence is not None else None
        return None if own is None else (self.trial(own.trial), own.chance)

    def status_of(self, trial: Trial) -> TrialStatus:
        """A trial's status in the study, its predicted figures and their confidence."""
        from hisearch.export.trial_status import Ground, rest_holds, trial_status

        profile = profile_note(self.resolved, trial)
        ground = Ground(profile.name, profile.evidence, profile.relative_error)
        best = self.recommendation.trial if self.recommendation is not None else None
        status = trial_status(trial, best, ground, self.confidence, interrupted=self.outcome.ending.interrupted)
        return status._replace(rest_holds=rest_holds(trial, self.trials, self.resolved.study.availability))

    def best_on(self, engine: str | None) -> Trial:
        """The recommended trial, or the best feasible one on an engine that the recommendation does not use.

        Raises:
            ValueError: there is none; the message says whether any was tried.
        """
        return self.choice_on(engine).trial

    def choice_on(self, engine: str | None) -> Choice:
        """What ``best_on`` chooses, and by what, as text."""
        from hisearch.api.studies.on_engine import Asked, Choice, choose_on, refusal
        from hisearch.report.data.confidence import Confidence
        from hisearch.search.model.deployments import engines_of

        best, study = self.recommendation.trial if self.recommendation is not None else None, self.resolved.study
        if best is not None and (engine is None or engines_of(best.deployment) == {engine}):
            return Choice(best, "recommended by the run")
        required, known = study.confidence.required, self.confidence or Confidence()
        asked = Asked(study.objectives, study.recommend, required, best, known)
        choice = choose_on(engine, self.trials, asked)
        if choice is None:
            tried = any(engine is None or engines_of(trial.deployment) == {engine} for trial in self.trials)
            raise ValueError(refusal(engine, tried, self.resolved.space.spec.execution.engines))
        return choice

    def trial(self, number: int) -> Trial:
        """The trial with a number.

        Raises:
            ValueError: there is none.
        """
        if not 0 <= number < len(self.trials):
            raise ValueError(f"{self.run_dir}: no trial {number}; there are {len(self.trials)}, from 0")
        return self.trials[number]

    def replay_of(self, trial: Trial) -> Replay:
        """A trial's deployment, ready to be simulated again."""
        from hisearch.api.deployments.replay import Replay, pool_prices

        deployment = trial.deployment
        prices = pool_prices(self.resolved.hardware, deployment)
        return Replay(deployment, self.simulation.fleet(deployment), prices, self.resolved.slo.spec)

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial, as in ``trials.parquet``."""
        from hisearch.search.tables import trials_frame

        return trials_frame(self.trials)

    @property
    def figure(self) -> Figures:
        """The report's figures, as plotly figures."""
        return Figures(self.report_input)

    def report_input(self) -> ReportInput:
        """The input of the report.

        Raises:
            ValueError: the run folder's ``confidence.json`` is invalid.
        """
        from hisearch.api.studies.reporting import basic_input
        from hisearch.report.data.spare import likely_spare
        from hisearch.search.select.formats import brief_formats

        facts, failure, chosen, space = self.provenance, self.failure, self.highlighted, self.resolved.space
        refused = self.run_dir / NOT_EXPORTED if self.recommendation is not None else None
        basis = basic_input(
            self.resolved, self.trials, self.front, self.recommendation, self.nearest_miss, facts["trace"]["name"]
        )
        record = replace(
            basis.provenance,
            versions=facts["versions"],
            seeds=facts["seeds"],
            inputs=facts["inputs"],
            wall_time_s=facts["run"]["wall_time_s"],
            cpu_cores=facts["cpu_cores"],
            warnings=(*self.drift, *facts["trace"]["warnings"], *(chosen.warnings if chosen is not None else ())),
            settings={
                "Requests": f"{facts['trace']['requests']:,}",
                **({"Read as": " ".join(facts["trace"]["notes"])} if facts["trace"].get("notes") else {}),
                **basis.provenance.settings,
                "Simulated": format_simulations(facts),
                "Stage 1": self.outcome.execution.summary(),
                "Ended": self.outcome.ending.describe(),
            },
        )
        return replace(
            basis,
            provenance=record,
            failure=failure.text if failure is not None else "",
            failure_heading=failure.heading if failure is not None else "",
            cut_short=self.caution,
            interrupted=self.outcome.ending.interrupted,
            caveats=self._caveats(),
            cut_short_brief=self.outcome.ending.brief(
                self.recommendation is not None, bool(failure and failure.hopeless), shlex.quote(str(self.run_dir))
            ),
            not_exported=refused.read_text(encoding="utf-8").strip() if refused and refused.is_file() else "",
            formats=self.formats,
            formats_brief=brief_formats(self.resolved.model.spec, chosen, self._likely_own_formats),
            headroom=self.headroom,
            closeup=self.closeup,
            confidence=self.confidence,
            run=shlex.quote(str(self.run_dir)),
            spare=likely_spare(self.trials, best.trial, self.confidence, self.simulation.usd_per_hour, space)
            if (best := self.recommendation) is not None and not self.resolved.study.availability.replicas_down
            else None,
        )

    def _caveats(self) -> tuple[str, ...]:
        """What makes the highlighted trial's figures other than they seem."""
        from hisearch.simulate import agent_use, grammar_use, lora_use

        if self.highlighted is None:
            return ()
        pools = self.highlighted.deployment.pools
        plans, trace = [self.simulation.plan(pool) for pool in pools], self.simulation.world.trace
        return tuple(text for use in (agent_use, lora_use, grammar_use) for text in use.caveats(plans, trace))

    def with_closeup(self, workers: int | None = None, progress: Progress | None = None) -> StudyResult:
        """The result with the report's details of the highlighted deployment, which is simulated for them.

        Args:
            workers: threads; all cores where absent.
            progress: notified of each simulation.
        """
        from hisearch.api.studies.closeup import Subject, close_up
        from hisearch.search.records.progress import SilentProgress

        if (trial := self.highlighted) is None:
            return replace(self, closeup=None)
        subject = Subject(trial, self.simulation, self.replay_of(trial), self.outcome.headroom)
        return replace(self, closeup=close_up(subject, workers or os.cpu_count() or 1, progress or SilentProgress()))

    def write(self, run_dir: str | Path) -> tuple[Path, ...]:
        """Write the run folder's documents (not the journal and the database, which belong to the run).

        Returns:
            Paths kept of an earlier, different recommendation of the run.

        Raises:
            OSError: the folder cannot be written.
        """
        from hisearch.export.engines.launch import ExportError
        from hisearch.report.pages.html import write_report
        from hisearch.search.tables import candidates_frame, trials_frame

        folder = Path(run_dir)
        folder.mkdir(parents=True, exist_ok=True)
        best = self.recommendation.trial if self.recommendation is not None else None
        kept = keep_former(folder, best.number if best is not None else None)
        trials, candidates = self.to_pandas(), candidates_frame(self.outcome.execution)
        front = trials_frame(self.front).drop(columns="deployment", errors="ignore")
        write_text(folder / "study.yaml", self.resolved.to_yaml())
        write_text(folder / PROVENANCE, json.dumps(self.provenance, indent=2) + "\n")
        replace_with(folder / "trials.parquet", lambda path: trials.to_parquet(path, index=False))
        replace_with(folder / "candidates.csv", lambda path: candidates.to_csv(path, index=False))
        replace_with(folder / "front.csv", lambda path: front.to_csv(path, index=False))
        if self.closeup is not None:
            write_text(folder / CLOSEUP, self.closeup.to_json())
        if best is not None:
            (folder / NOT_EXPORTED).unlink(missing_ok=True)
            try:
                write_tree(folder / "recommended", lambda path: self.export_trial(best, path))
            except ExportError as error:
                write_text(folder / NOT_EXPORTED, f"The recommendation was not exported: {error}\n")
        replace_with(folder / REPORT, lambda path: write_report(self.report_input(), path))
        shutil.rmtree(folder / ENDED, ignore_errors=True)
        return kept

    def export(self, target: str | Path) -> list[Path]:
        """Write launch scripts.

        Args:
            target: an engine (``sglang``, ``vllm``, ``trtllm``) exports the best feasible deployment on it into
                ``recommended-<engine>`` of the run folder. Anything else is a folder for the recommendation's scripts.

        Raises:
            ValueError: there is no feasible deployment (on that engine).
            ExportError: the deployment cannot be expressed as launch commands.
        """
        if str(target) not in _ENGINES:
            if self.recommendation is None:
                raise ValueError("nothing to export: no deployment meets the SLO")
            return self.export_trial(self.recommendation.trial, Path(target))
        return self.export_trial(self.best_on(str(target)), self.run_dir / f"recommended-{target}")

    def export_trial(self, trial: Trial, folder: Path, first_host: int = 0) -> list[Path]:
        """Write the launch scripts of any trial's deployment into ``folder``, hosts numbered from ``first_host``.

        Raises:
            ExportError: the deployment cannot be expressed as launch commands, or ``folder`` holds other files where
                these belong.
        """
        from hisearch.api.studies.exporting import export_trial

        formats, status = self.formats_of(trial), self.status_of(trial)
        return export_trial(self.resolved, self.simulation, trial, folder, status, formats, first_host)
