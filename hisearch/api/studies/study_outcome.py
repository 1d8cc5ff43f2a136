"""What a study came to: trials, front, recommendation and what is to be known of them."""

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


#: Beside a run's documents: why its recommendation was not exported.
NOT_EXPORTED = "recommended.txt"


@dataclass(frozen=True)
class StudyOutcome:
    """What a study came to.

    provenance: plain data, as in ``provenance.json``. run_dir: the folder that was written. closeup: the highlighted
    deployment looked at closely; None where it was not. kept_in: where its documents were read,
    if that is not run_dir: of a run that had ended and was gone on with, without having ended anew. former: what was
    kept of another answer, to which the run had come before.
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
        """What ended the search before it had simulated all that it wanted to, "" where nothing did.

        It is "simulations", "seconds", "usd" or "interrupted". ``outcome.ending`` says what was left out.
        """
        return self.outcome.stopped

    @cached_property
    def confidence(self) -> Confidence | None:
        """How sure the recommendation is, and what would change it; None where that was not looked into.

        Raises:
            ValueError: the run folder's ``confidence.json`` is not one.
        """
        from hisearch.report.data.confidence import CONFIDENCE, read_confidence

        return read_confidence((self.kept_in or self.run_dir) / CONFIDENCE)

    @property
    def unsure(self) -> bool:
        """True where a probability was asked for that nothing has which was looked at."""
        return self.confidence is not None and self.confidence.satisfied is False

    @cached_property
    def failure(self) -> Failure | None:
        """Why nothing is recommended; None where something is."""
        from hisearch.search.select.failure import explain

        return explain(self.trials, self.outcome.execution.hopeless) if self.recommendation is None else None

    @property
    def caution(self) -> str:
        """What to know of a search that was cut short, as sentences; "" of one that was not."""
        hopeless = self.outcome.execution.hopeless
        beyond_hope = bool(hopeless) and self.failure is not None and self.failure.text.endswith(hopeless)
        return self.outcome.ending.caution(self.recommendation is not None, beyond_hope)

    def to_pandas(self) -> pd.DataFrame:
        """One row per trial, as in ``trials.parquet``."""
        from hisearch.search.tables import trials_frame

        return trials_frame(self.trials)

    def best_on(self, engine: str | None) -> Trial:
        """The best feasible trial, on an engine alone where one is named.

        Raises:
            ValueError: there is none, and whether any was tried.
        """
        from hisearch.search.select.recommend import recommend

        on_it = [trial for trial in self.trials if engine is None or trial.deployment.pool.engine.name == engine]
        found = recommend(on_it, self.resolved.study.objectives)
        if found is not None:
            return found.trial
        if on_it:
            where = f" on {engine}" if engine else ""
            raise ValueError(f"no deployment{where} meets the SLO; name one with --trial (see trials.parquet)")
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
        """What formats narrower than the checkpoint's mean for the highlighted deployment; "" where it has none."""
        return self.formats_of(self.highlighted)

    def formats_of(self, trial: Trial | None) -> str:
        """Likewise of any trial; the baseline is one of those that may keep the checkpoint's formats."""
        from hisearch.search.select.formats import describe_formats

        baseline = self.recommendation.baseline if self.recommendation is not None else None
        simulated = [*self.trials, *([baseline] if baseline is not None else [])]
        return describe_formats(self.resolved.model.spec, trial, simulated, self.resolved.space.spec.execution)
