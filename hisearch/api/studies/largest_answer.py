"""The answer of ``hisearch.largest_rate``."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.api.provenance import price_notes, profile_note
from hisearch.hardware.price_book import PER_GIB_HOUR
from hisearch.score.steady_state import CONFIDENCE
from hisearch.score.terms import Check, check_to_dict
from hisearch.search.evaluate.simulation import Simulation
from hisearch.search.model.trial import Trial

if TYPE_CHECKING:
    from hisearch.api.studies.study import Study
    from hisearch.report.data.inputs import PriceNote, ProfileNote

#: Least share by which more of a resource must raise the rate for it to hold the deployment back: twice the tolerance
#: within which rates are searched.
LEAST_GAIN = 0.02


@dataclass(frozen=True)
class CurvePoint:
    """Latencies at a rate, seconds at the SLO's percentiles by term; feasible: whether it holds for good."""

    rate_rps: float
    values: dict[str, float]
    queue_growth_rps: float
    feasible: bool


@dataclass(frozen=True)
class Compared:
    """What another deployment, or the same under another SLO, carries; NaN if it cannot be simulated."""

    what: str
    rate_rps: float


@dataclass(frozen=True)
class AssuredRate:
    """The largest rate that a deployment carries with a required probability, where step times err as is stated.

    rate_rps: 0.0 if none was found. probability: that it holds, the share of ``draws``; at_edge: that the largest rate
    as simulated does, None if a limit left that open. ended: the limit that ended the search early: "work", "seconds"
    or "".
    """

    rate_rps: float
    at_least: float
    probability: float
    at_edge: float | None
    draws: int
    simulations: int
    ended: str


@dataclass(frozen=True, repr=False)
class LargestRate:
    """The answer: what the accelerators carry within the SLO, and with which settings.

    trial: the winner at its largest rate, ``rate_rps``; None if nothing carries any. missed_rps: the smallest rate that
    was simulated and did not hold; binds: the check that breaks there. relieved: what a quarter more of each resource
    would carry. curve: rising. simpler, more: other settings, and what more hardware or a looser SLO would bring.
    entrants: deployments of the space; tried: of these and of the winner's neighbours. ended: the limit that left some
    untried: "work", "seconds" or "". warnings: of the runs at the assured rate and at ``rate_rps``.
    """

    study: Study
    simulation: Simulation
    trial: Trial | None
    rate_rps: float
    missed_rps: float
    binds: Check | None
    relieved: tuple[Compared, ...]
    curve: tuple[CurvePoint, ...]
    simpler: tuple[Compared, ...]
    more: tuple[Compared, ...]
    entrants: int
    tried: int
    simulations: int
    wall_s: float
    ended: str
    assured: AssuredRate | None = None
    warnings: tuple[str, ...] = ()
    run_dir: Path | None = None

    @property
    def limit(self) -> Compared | None:
        """The resource that raises the rate most; None if none does by ``LEAST_GAIN``, or none was tried."""
        known = [relief for relief in self.relieved if not math.isnan(relief.rate_rps)]
        best = max(known, key=lambda relief: relief.rate_rps, default=None)
        return best if best is not None and best.rate_rps >= (1.0 + LEAST_GAIN) * self.rate_rps else None

    @property
    def profile(self) -> ProfileNote:
        """The latency profile that priced the winner's steps, or the space's where nothing carries any rate."""
        return profile_note(self.study.resolved, self.trial)

    @property
    def prices(self) -> tuple[PriceNote, ...]:
        """Prices behind the dollars of its figures; of media, those of the winner's tiers."""
        pools = [] if self.trial is None else self.trial.deployment.pools
        media = {tier.medium for pool in pools for tier in pool.tiers}
        of_study = price_notes(self.study.resolved)
        return tuple(note for note in of_study if note.unit != PER_GIB_HOUR or note.item in media)

    @property
    def nothing_assured(self) -> bool:
        """Whether a probability is required and no rate was found that has it."""
        return self.assured is not None and self.assured.rate_rps == 0.0

    def to_dict(self) -> dict[str, Any]:
        """The answer for machines; see docs/json.md."""
        trial, profile, limit = self.trial, self.profile, self.limit
        return {
            "study": self.study.name,
            "run_dir": None if self.run_dir is None else str(self.run_dir),
            "feasible": trial is not None,
            "rate_rps": self.rate_rps,
            "missed_rps": None if math.isinf(self.missed_rps) else self.missed_rps,
            "binds": None if self.binds is None else check_to_dict(self.binds),
            "limit": "" if limit is None else limit.what,
            "relieved": [asdict(relief) for relief in self.relieved],
            "deployment": None if trial is None else trial.deployment.model_dump(mode="json"),
            "metrics": {} if trial is None else trial.metrics,
            "slo": [] if trial is None else [check_to_dict(check) for check in trial.slo],
            "curve": [asdict(point) for point in self.curve],
            "simpler": [asdict(other) for other in self.simpler],
            "more": [asdict(other) for other in self.more],
            "entrants": self.entrants,
            "tried": self.tried,
            "simulations": self.simulations,
            "wall_s": self.wall_s,
            "ended": self.ended,
            "assured": None if self.assured is None else asdict(self.assured),
            "overload_confidence": CONFIDENCE,
            "profile": {
                "name": profile.name,
                "evidence": profile.evidence,
                "relative_error": profile.relative_error,
            },
            "prices": [asdict(price) for price in self.prices],
            "warnings": list(self.warnings),
        }
