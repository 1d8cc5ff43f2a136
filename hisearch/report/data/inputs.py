"""Input of a report: a study's results, without the code that ran it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hisearch.hardware.prices import WholeHosts
from hisearch.report.data.closeup import Closeup, LoadPoint
from hisearch.report.data.confidence import Confidence
from hisearch.report.data.spare import Spare
from hisearch.score.capacity import Capacity
from hisearch.score.quantities import percent
from hisearch.score.terms import Check
from hisearch.search.model.demand import Rates
from hisearch.search.model.trial import Recommendation, Trial, metric_of
from hisearch.search.select.other_hardware import OtherHardware
from hisearch.specs.base import Evidence
from hisearch.specs.studies.slo import SloTerm

__all__ = ["CostRow", "LoadPoint", "PriceNote", "ProfileNote", "ReportInput", "RunRecord", "SoFar"]


@dataclass(frozen=True)
class CostRow:
    """A deployment's costs by item, and its power.

    trial: its number. parts: (item, dollars per hour). mean_w: watts over the simulated time; None where unknown.
    """

    trial: int
    parts: tuple[tuple[str, float], ...]
    mean_w: float | None


@dataclass(frozen=True)
class PriceNote:
    """A price behind the costs, and its evidence. as_of: ISO date."""

    item: str
    price: float
    unit: str
    evidence: Evidence
    source: str
    as_of: str


@dataclass(frozen=True)
class ProfileNote:
    """The latency profile behind every figure.

    relative_error: stated error of one step (0.2 = 20 %). served: a sentence on how far served runs were off,
    served_spans: the same in short; empty where none is known.
    """

    name: str
    evidence: Evidence
    relative_error: float
    source: str
    served: str = ""
    served_spans: str = ""

    @property
    def error(self) -> str:
        """What draws of the step times rest on, in short: the error of served runs, else that of a step."""
        step = f"error of a step about {percent(self.relative_error)}"
        return f"{step}; {self.served_spans}" if self.served_spans else step


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
    """Progress of a study that has not ended.

    simulations: finished. budget: of simulations. stage: the current one, as text. begun: when the run began or was
    resumed, as text. latest: when its last simulation ended, as text; "" before the first. age_s: seconds from latest
    to the report. resume: the command that resumes a killed run. unknown: simulations not shown because the journal
    lacks their deployment. refresh_s: seconds between reloads of the page; 0: it does not reload. other: address of
    the same page with (without) reloading, "" without one. running: whether a process works on it; None where that
    cannot be seen.
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
    running: bool | None = None


@dataclass(frozen=True)
class ReportInput:
    """A study, ready to be drawn.

    title: the report's heading. study, workload: names. model_id: the model as its users call it.
    objectives: two to four names (``hisearch.specs.studies.study.Objective``), in the study's order.
    slo: the latency terms.
    trials: every trial, slices and failures included. front: the Pareto front among them.
    recommendation: None where nothing meets the SLO; nearest_miss is then the trial that comes closest, failure the
    reason, failure_heading its heading. cut_short: a note on a search cut short by its budget, or "". not_exported:
    why the recommendation has no launch scripts, or "". formats: a note on formats narrower than the checkpoint's,
    or "". cut_short_brief, formats_brief: the same in half a line.
    headroom: the largest load that the highlighted trial holds and the smallest that it misses; None where no other
    load was tried.
    progress: simulation number -> hypervolume of the front so far.
    costs: of the recommendation and its runner-ups, or of the nearest miss. closeup: of the highlighted deployment, if
    made. confidence: how sure the recommendation is, if known. so_far: of a study that has not ended; its
    recommendation is then the best so far. run: the run's folder, quoted for a shell. replicas_down: of each pool, away
    in every simulation. spare: what one more replica costs, where none is away and something is recommended.
    whole_hosts: of the highlighted deployment. other_hardware: that was not chosen. interrupted: somebody ended the
    search before its answer was checked. caveats: what makes the figures other than they seem, as text.

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
    cut_short_brief: str = ""
    not_exported: str = ""
    formats: str = ""
    formats_brief: str = ""
    headroom: Capacity | None = None
    progress: Mapping[int, float] = field(default_factory=dict)
    costs: tuple[CostRow, ...] = ()
    closeup: Closeup | None = None
    confidence: Confidence | None = None
    so_far: SoFar | None = None
    run: str = "RUN"
    replicas_down: int = 0
    spare: Spare | None = None
    whole_hosts: WholeHosts | None = None
    other_hardware: tuple[OtherHardware, ...] = ()
    interrupted: bool = False
    caveats: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 2 <= len(self.objectives) <= 4:
            raise ValueError(f"a report needs two to four objectives, not {len(self.objectives)}")
        numbers = {trial.number for trial in self.trials}
        for trial in self.front:
            if trial.number not in numbers:
                raise ValueError(f"trial {trial.number} is on the front but not among the trials")
            missing = [name for name in self.objectives if metric_of(name) not in trial.metrics]
            if missing:
                raise ValueError(f"trial {trial.number} is on the front without a value of {', '.join(missing)}")
        if self.recommendation is not None and self.recommendation.trial.number not in numbers:
            raise ValueError(f"the recommended trial {self.recommendation.trial.number} is not among the trials")

    @property
    def highlighted(self) -> Trial | None:
        """The recommended trial, else the nearest miss."""
        return self.recommendation.trial if self.recommendation is not None else self.nearest_miss

    @property
    def loads(self) -> tuple[LoadPoint, ...]:
        """The highlighted trial at other loads, if that was simulated."""
        return self.closeup.loads if self.closeup is not None else ()

    @property
    def rates(self) -> Rates | None:
        """Arrivals at the study's load, if the closer look saw them."""
        return self.closeup.rates if self.closeup is not None else None

    @property
    def breaks(self) -> tuple[Check, ...]:
        """What is missed at the smallest load that is; empty where that load's terms are unknown, or nothing is."""
        least = math.inf if self.headroom is None else self.headroom.infeasible_load
        point = next((point for point in self.loads if point.load == least), None)
        return () if point is None else tuple(term for term in point.terms if not term.holds)

    @property
    def title_of_chosen(self) -> str:
        """Label of the highlighted trial."""
        if self.recommendation is None:
            return "Nearest miss"
        return "Recommended" if self.so_far is None else "Cheapest so far"

    @property
    def format_chosen(self) -> str:
        """The same within a sentence, without its article."""
        if self.recommendation is None:
            return "nearest miss"
        return "recommended deployment" if self.so_far is None else "cheapest deployment so far"
