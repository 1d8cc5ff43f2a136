"""What a report is made from: a study, without the machinery that ran it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hisearch.report.data.closeup import Closeup, LoadPoint
from hisearch.report.data.confidence import Confidence
from hisearch.search.model.trial import Recommendation, Trial, metric_of
from hisearch.specs.base import Evidence
from hisearch.specs.studies.slo import SloTerm

__all__ = ["CostRow", "LoadPoint", "PriceNote", "ProfileNote", "ReportInput", "RunRecord", "SoFar"]


@dataclass(frozen=True)
class CostRow:
    """What a deployment costs, by what is bought, and the power that it draws.

    trial: its number. parts: (what, dollars per hour). mean_w: watts over the simulated time; None where unknown.
    """

    trial: int
    parts: tuple[tuple[str, float], ...]
    mean_w: float | None


@dataclass(frozen=True)
class PriceNote:
    """A price the costs are built from, and how it is known. as_of: ISO date."""

    item: str
    price: float
    unit: str
    evidence: Evidence
    source: str
    as_of: str


@dataclass(frozen=True)
class ProfileNote:
    """The latency profile behind every figure.

    relative_error: stated error of one step (0.2 = 20 %). served: a sentence on how far served runs were off; empty
    where none is known.
    """

    name: str
    evidence: Evidence
    relative_error: float
    source: str
    served: str = ""


@dataclass(frozen=True)
class RunRecord:
    """Everything needed to judge and repeat a run.

    versions: component -> version. seeds: stream -> seed. inputs: file -> digest. settings: further lines of text.
    wall_time_s, cpu_cores: None as long as the run goes on.
    """

    profile: ProfileNote
    versions: Mapping[str, str]
    seeds: Mapping[str, int]
    inputs: Mapping[str, str]
    wall_time_s: float | None
    cpu_cores: int | None
    prices: tuple[PriceNote, ...] = ()
    warnings: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def assumed_prices(self) -> tuple[str, ...]:
        """Items whose price is an assumption."""
        return tuple(price.item for price in self.prices if price.evidence == "assumed")


@dataclass(frozen=True)
class SoFar:
    """How far a study is that has not ended.

    simulations: finished. budget: most of them. stage: what it is at, in words. begun, latest: when the run began, or
    was gone on with, and when its last simulation ended, as text; latest is "" before the first. age_s: seconds from
    then until the report was made. resume: the command that goes on with a run that was killed. unknown: simulations
    that are not shown, as the journal does not say of what. refresh_s: the page loads itself anew after so many
    seconds; 0: it does not. other: address of the page that does (not), "" without one.
    """

    simulations: int
    budget: int
    stage: str
    begun: str
    latest: str
    age_s: float
    resume: str
    unknown: int = 0
    refresh_s: int = 0
    other: str = ""


@dataclass(frozen=True)
class ReportInput:
    """A study, ready to be drawn.

    title: the report's heading. study, workload: names. model_id: the model as its users call it.
    objectives: two to four names (``hisearch.specs.studies.study.Objective``), in the study's order.
    slo: the latency terms.
    trials: every trial, slices and failures included. front: the Pareto front among them.
    recommendation: None where nothing meets the SLO; nearest_miss is then the trial that comes closest, failure says
    why, failure_heading what the search came to then. cut_short: what to know of a search that its budget cut short, or
    "". not_exported: why there are no launch scripts of the recommendation, or "". formats: what to know of formats
    narrower than the checkpoint's, or "".
    capacity: the recommendation at other loads, if that was simulated.
    progress: simulation number -> hypervolume of the front so far.
    costs: of the recommendation and its runner-ups, or of the nearest miss. closeup: the highlighted deployment looked
    at closely, if it was. confidence: how sure the recommendation is, if that was looked into. so_far: of a study that
    has not ended; its recommendation is then the best so far. run: the run's folder, as a word of a shell.

    Raises:
        ValueError: the parts contradict each other.
    """

    title: str
    study: str
    workload: str
    model_id: str
    objectives: tuple[str, ...]
    slo: tuple[SloTerm, ...]
    trials: tuple[Trial, ...]
    front: tuple[Trial, ...]
    recommendation: Recommendation | None
    provenance: RunRecord
    nearest_miss: Trial | None = None
    failure: str = ""
    failure_heading: str = ""
    cut_short: str = ""
    not_exported: str = ""
    formats: str = ""
    capacity: tuple[LoadPoint, ...] = ()
    progress: Mapping[int, float] = field(default_factory=dict)
    costs: tuple[CostRow, ...] = ()
    closeup: Closeup | None = None
    confidence: Confidence | None = None
    so_far: SoFar | None = None
    run: str = "RUN"

    def __post_init__(self) -> None:
        if not 2 <= len(self.objectives) <= 4:
            raise ValueError(f"a report needs two to four objectives, not {len(self.objectives)}")
        known = {trial.number for trial in self.trials}
        for trial in self.front:
            if trial.number not in known:
                raise ValueError(f"trial {trial.number} is on the front but not among the trials")
            missing = [name for name in self.objectives if metric_of(name) not in trial.metrics]
            if missing:
                raise ValueError(f"trial {trial.number} is on the front without a value of {', '.join(missing)}")
        if self.recommendation is not None and self.recommendation.trial.number not in known:
            raise ValueError(f"the recommended trial {self.recommendation.trial.number} is not among the trials")

    @property
    def highlighted(self) -> Trial | None:
        """The recommended trial, or the nearest miss where there is none."""
        return self.recommendation.trial if self.recommendation is not None else self.nearest_miss

    @property
    def title_of_chosen(self) -> str:
        """What the highlighted trial is, as a label."""
        if self.recommendation is None:
            return "Nearest miss"
        return "Recommended" if self.so_far is None else "Cheapest so far"

    @property
    def format_chosen(self) -> str:
        """The same within a sentence, without its article."""
        if self.recommendation is None:
            return "nearest miss"
        return "recommended deployment" if self.so_far is None else "cheapest deployment so far"
