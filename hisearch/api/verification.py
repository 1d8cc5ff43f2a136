"""The result of comparing a deployment with measurements."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hisearch.base.shown import Shown
from hisearch.specs.wording import counted, format_percent
from hisearch.verify.diagnosis import Diagnosis
from hisearch.verify.findings import format_finding, unexplained
from hisearch.verify.recalibrated import Recalibrated, write_profiles

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Row:
    """One figure, seconds or per second. error: predicted / measured - 1. corrected: by the corrected model."""

    figure: str
    measured: float
    predicted: float
    error: float
    corrected: float
    corrected_error: float


@dataclass(frozen=True)
class Compared:
    """A measurement and its prediction.

    pacing: how the client sent its requests. hit_rate: predicted share of prompt tokens that hit the cache.
    growing_wait: median TTFT, seconds, of the first and last quarter of the requests where waits kept growing; None
    where they did not, or that is not known. notes: where the simulated requests are from, and what the tool's names
    mean.
    """

    tool: str
    source: str
    requests: int
    failed: int
    pacing: str
    hit_rate: float
    growing_wait: tuple[float, float] | None
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class CrossCheck:
    """Error on held-out data before and after the correction. how: the split, as text."""

    how: str
    error_before: float
    error_after: float


@dataclass(frozen=True)
class Standing:
    """Whether a trial still meets its study's SLO under the corrected profile.

    trial: its number. stands: None where the correction does not explain the measurements, so that nobody can say.
    terms: of the SLO, as ``score.terms`` lists them: limits and values under the corrected profile. text: the same in
    words.
    """

    trial: int
    stands: bool | None
    terms: tuple[dict[str, Any], ...]
    text: str


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """The result of ``verify_run`` and ``verify_deployment``.

    deployment: its name. run_dir, trial: the run, and the trial whose deployment was measured; None outside a run.
    profile: name of the latency profile that predicted. stated_error: of that profile. agrees: the measurements are
    within it. cross_check: None where there is too little data to hold out. profiles: recalibrated, one for each that
    prices pools; empty where no term of a profile is corrected. profile_name: of the profile to use for all pools.
    standing: of the trial in its study; None outside a run.
    """

    deployment: str
    run_dir: Path | None
    trial: int | None
    measurements: tuple[Compared, ...]
    diagnosis: Diagnosis
    cross_check: CrossCheck | None
    profile: str
    stated_error: float
    agrees: bool
    profile_name: str
    profiles: tuple[Recalibrated, ...]
    standing: Standing | None

    def facts(self) -> dict[str, str]:
        """See ``Shown``."""
        verdict = "within" if self.agrees else "beyond"
        facts = {"measured": f"{counted(len(self.measurements), 'run')} of {self.deployment}"}
        facts["verdict"] = f"{verdict} the stated error of {format_percent(self.stated_error)}"
        return facts | {f"finding {place}": text for place, text in enumerate(self.findings[:3], start=1)}

    @property
    def findings(self) -> list[str]:
        """The corrected terms as sentences, the largest effect first."""
        return [format_finding(name, self.diagnosis) for name in self.diagnosis.terms]

    @property
    def unexplained(self) -> str | None:
        """What the corrections leave, as a sentence; None where the measurements are explained."""
        return unexplained(self.diagnosis, self.stated_error)

    @property
    def overloads(self) -> list[str]:
        """How far corrections hold for measurements whose waits kept growing, as sentences."""
        return [
            f"{measurement.source}: requests waited ever longer (median TTFT {measurement.growing_wait[0]:.2g} s in "
            f"the first quarter, {measurement.growing_wait[1]:.2g} s in the last), so that the deployment is beyond "
            "its limit at this load. Which prompts lose their hits decides such a queue, and prefill, lost hits and "
            "decode stand in for each other: take what is named as a direction, not as a value, and measure at a lower "
            "load"
            for measurement in self.measurements
            if measurement.growing_wait is not None and self.diagnosis.terms
        ]

    def write_profile(self, path: Path) -> list[Path]:
        """Write the recalibrated profile, and those that it chooses among where there are several.

        Returns:
            The files, ``path`` the first.

        Raises:
            ValueError: no term of a profile is corrected.
            FileExistsError: a file exists; none is overwritten.
        """
        return write_profiles(self.profile_name, self.profiles, path)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; see docs/json.md."""
        data = asdict(self)
        del data["profiles"]
        data["diagnosis"]["alternatives"] = [alternative.name for alternative in self.diagnosis.alternatives]
        return data | {
            "findings": self.findings,
            "unexplained": self.unexplained,
            "overloads": self.overloads,
            "recalibrated": bool(self.profiles),
        }
