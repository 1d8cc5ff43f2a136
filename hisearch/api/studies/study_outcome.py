"""The outcome of a study: trials, front, recommendation, and their confidence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.specs.documents.resolved import ResolvedStudy
from hisearch.specs.wording import listed

if TYPE_CHECKING:
    import pandas as pd

    from hisearch.report.data.closeup import Closeup
    from hisearch.report.data.confidence import Confidence
    from hisearch.search.driver import SearchOutcome
    from hisearch.search.evaluate.simulation import Simulation
    from hisearch.search.model.trial import Recommendation, Trial
    from hisearch.search.select.failure import Failure


#: File in a run folder: why its recommendation was not exported.
NOT_EXPORTED = "recommended.txt"


@dataclass(frozen=True)
class StudyOutcome:
    """The outcome of a study.

    provenance: plain data, as in ``provenance.json``. run_dir: the run folder. closeup: details of the highlighted
    deployment; None where they were not simulated. kept_in: the folder that documents were read from, if not run_dir:
    of a run that was resumed and has not ended again. former: paths kept of an earlier, different recommendation.
    """

    resolved: ResolvedStudy
    outcome: SearchOutcome
    simulation: Simulation
    provenance: dict[str, Any]
    run_dir: Path
    closeup: Closeup | None = None
    kept_in: Path | None = None
    former: tuple[Path, ...] = ()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every simulation, slices and other loads included, in order."""
        return self.outcome.trials

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

    @property
    def unsure(self) -> bool:
        """True where no assessed deployment reaches the requested probability."""
        return self.confidence is not None and self.confidence.satisfied is False

    @cached_property
    def failure(self) -> Failure | None:
        """Why nothing is recommended; None where something is."""
        from hisearch.search.select.failure import explain

        return explain(self.trials, self.outcome.execution.hopeless) if self.recommendation is None else None

    @property
    def caution(self) -> str:
        """A caution about a search that was cut short, as sentences; "" for a complete one."""
        hopeless = self.outcome.execution.hopeless
        beyond_hope = bool(hopeless) and self.failure is not None and self.failure.text.endswith(hopeless)
        return self.outcome.ending.caution(self.recommendation is not None, beyond_hope)

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial, as in ``trials.parquet``."""
        from hisearch.search.tables import trials_frame

        return trials_frame(self.trials)

    def best_on(self, engine: str | None) -> Trial:
        """The best feasible trial, on one engine where it is named.

        Raises:
            ValueError: there is none; the message says whether any was tried.
        """
        from hisearch.search.select.recommend import recommend

        trials = [trial for trial in self.trials if engine is None or trial.deployment.pool.engine.name == engine]
        best = recommend(trials, self.resolved.study.objectives)
        if best is not None:
            return best.trial
        if trials:
            on_engine = f" on {engine}" if engine else ""
            raise ValueError(f"no deployment{on_engine} meets the SLO; name one with --trial (see trials.parquet)")
        engines = self.resolved.space.spec.execution.engines
        if engine is not None and engine not in engines:
            raise ValueError(
                f"no deployment on {engine} was tried: the space has {listed(engines)}. Add {engine} to its "
                "execution.engines and run the study"
            )
        raise ValueError(f"no deployment{f' on {engine}' if engine else ''} was simulated, there is nothing to export")

    @property
    def highlighted(self) -> Trial | None:
        """The recommended trial, or the nearest miss where there is none."""
        return self.recommendation.trial if self.recommendation is not None else self.nearest_miss

    @property
    def formats(self) -> str:
        """A note on formats narrower than the checkpoint's in the highlighted deployment; "" without any."""
        return self.formats_of(self.highlighted)

    def formats_of(self, trial: Trial | None) -> str:
        """The same note for any trial; the baseline counts as one that may keep the checkpoint's formats."""
        from hisearch.search.select.formats import describe_formats

        baseline = self.recommendation.baseline if self.recommendation is not None else None
        simulated = [*self.trials, *([baseline] if baseline is not None else [])]
        return describe_formats(self.resolved.model.spec, trial, simulated, self.resolved.space.spec.execution)
