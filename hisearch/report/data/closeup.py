"""Closeup of the recommended deployment: data of the figures that need additional simulations.

``api.studies.closeup`` makes them; a run keeps them in ``closeup.json``, so that its report can be drawn again without
simulating.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import AliasChoices, Field

from hisearch.report.data.stored import read_stored
from hisearch.score.capacity import Capacity
from hisearch.score.fairness import ServiceDifference
from hisearch.score.terms import Check
from hisearch.search.model.demand import Rates

#: Version of ``closeup.json``, as in ``_Version``.
CLOSEUP_VERSION = 1

#: Shares of requests at which a latency curve is sampled: every hundredth, and every thousandth of the last tenth.
SHARES: tuple[float, ...] = tuple(
    float(share) for share in np.round(np.concatenate([np.arange(0.0, 0.9, 0.01), np.arange(0.9, 1.0005, 0.001)]), 3)
)


@dataclass(frozen=True)
class LoadPoint:
    """The deployment at another load.

    load: factor on the study's load. attainment: share of good requests, 0 to 1. terms: each term of the SLO then.
    """

    load: float
    attainment: float
    goodput_rps: float
    terms: tuple[Check, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether every term holds."""
        return all(term.holds for term in self.terms)


@dataclass(frozen=True)
class LatencyCurve:
    """A latency's distribution at the study's load.

    metric: one of ``score.stated.LATENCIES``. values_s: at each of ``SHARES``, of shape (len(SHARES),). count:
    number of samples: finished requests, or gaps between tokens.
    """

    metric: str
    values_s: tuple[float, ...]
    count: int


@dataclass(frozen=True)
class WorkerSeries:
    """One worker over time, a value per interval: busy and kv_held as shares, waiting in requests."""

    busy: tuple[float, ...]
    kv_held: tuple[float, ...]
    waiting: tuple[int, ...]


@dataclass(frozen=True)
class WorkerTimeline:
    """Workers over time. interval_s: of each value, seconds, from 0 on. omitted: workers that are left out."""

    interval_s: float
    workers: tuple[WorkerSeries, ...]
    omitted: int = 0


@dataclass(frozen=True)
class TierPoint:
    """The deployment with one tier of another size, all else as it is.

    gib: of the tier, all its stores together. hit_rate: over all tiers, 0 to 1; own_hit_rate: of this one. busy_s:
    device time of all workers. usd_per_hour: of the tier. ttft_s: the curve's percentile; folders of versions that knew
    p99 alone call it so.
    """

    gib: float
    hit_rate: float
    own_hit_rate: float
    ttft_s: Annotated[float, Field(validation_alias=AliasChoices("ttft_s", "ttft_p99_s"))]
    busy_s: float
    usd_per_hour: float


@dataclass(frozen=True)
class TierCurve:
    """Effect of the size of one tier. name: the tier's. points: by size; chosen_gib: the deployment's.

    device_s: simulated time times workers. machines_usd_per_hour: accelerators and hosts. ttft_percentile: the one that
    the SLO bounds.
    """

    name: str
    chosen_gib: float
    points: tuple[TierPoint, ...]
    device_s: float
    machines_usd_per_hour: float
    ttft_percentile: float = 99.0

    def returns(self) -> tuple[float | None, ...]:
        """Dollars of machine time that a dollar for more of the tier frees, from each point to the next.

        None where the sizes cost the same. Freed time is priced like the machines. It saves money only when
        enough is freed to give up a machine.
        """
        ratios: list[float | None] = []
        for less, more in zip(self.points, self.points[1:], strict=False):
            spent = more.usd_per_hour - less.usd_per_hour
            freed = self.machines_usd_per_hour * (less.busy_s - more.busy_s) / self.device_s if self.device_s else 0.0
            ratios.append(freed / spent if spent > 0 else None)
        return tuple(ratios)


@dataclass(frozen=True)
class TierUse:
    """What a tier did at the study's load, HBM first.

    name: its medium, with its number where two tiers use the same medium. hit_rate: share of prompt tokens hit
    in it, 0 to 1. peak: largest share of its capacity in use, all stores together, 0 to 1. stored_gib, read_gib: moved
    into it, and out of it. write_busy, read_busy: share of the time that its busiest link was busy, 0 to 1. The last
    four are None of HBM.
    """

    name: str
    hit_rate: float
    peak: float
    stored_gib: float | None = None
    read_gib: float | None = None
    write_busy: float | None = None
    read_busy: float | None = None


@dataclass(frozen=True)
class StoreSeries:
    """A store over time, or a tier's stores together. tier: 1 below HBM, …; held: share of its capacity, 0 to 1."""

    name: str
    tier: int
    held: tuple[float, ...]


@dataclass(frozen=True)
class TierTimeline:
    """Stores over time. time_s: of each value of ``held``."""

    time_s: tuple[float, ...]
    stores: tuple[StoreSeries, ...]


@dataclass(frozen=True)
class CacheMark:
    """What a deployment's memory holds: name, and KV tokens of all stores up to it together."""

    name: str
    tokens: int


@dataclass(frozen=True)
class IdealCache:
    """Hit rate by capacity of one LRU cache that serves all requests in order: the bound that memory sets.

    capacity_tokens, hit_rate: of equal length. bytes_per_token: of KV in HBM. marks: the deployment's memory.
    """

    capacity_tokens: tuple[int, ...]
    hit_rate: tuple[float, ...]
    bytes_per_token: float
    marks: tuple[CacheMark, ...]
    simulated_hit_rate: float


@dataclass(frozen=True)
class ClassFigures:
    """What the requests of a class get and cost at the study's load.

    name: ``priority 0``, ``tenant 3``. requests: that arrived. ttft_p95_s, tpot_p95_s: None where undefined.
    attainment: share that meets its terms, 0 to 1. usd_per_hour: by the seconds that its tokens held KV memory.
    """

    name: str
    requests: int
    ttft_p95_s: float | None
    tpot_p95_s: float | None
    attainment: float
    goodput_rps: float
    usd_per_hour: float


@dataclass(frozen=True)
class Closeup:
    """All data of the closeup.

    trial: the number of the examined trial. notes: what could not be examined, and why. tier_uses: empty
    with HBM alone, and in run folders of earlier versions; tier_timeline: None then. too_short: where the trace is too
    short to show a steady state, what one shows, and how long it takes; or "". rates: of arrivals at the study's load,
    follow-ups when this deployment let them come; None in a closed loop, and in run folders of earlier versions.
    classes: of each priority and each tenant, where there are several; service_difference: of two tenants.
    """

    trial: int
    loads: tuple[LoadPoint, ...]
    latencies: tuple[LatencyCurve, ...]
    timeline: WorkerTimeline | None
    tiers: tuple[TierCurve, ...]
    ideal: IdealCache | None
    notes: tuple[str, ...] = ()
    tier_uses: tuple[TierUse, ...] = ()
    tier_timeline: TierTimeline | None = None
    too_short: str = ""
    rates: Rates | None = None
    classes: tuple[ClassFigures, ...] = ()
    service_difference: ServiceDifference | None = None

    @property
    def headroom(self) -> Capacity | None:
        """The largest load before the first that misses, among those looked at; None without any."""
        points = sorted((point for point in self.loads if point.terms), key=lambda point: point.load)
        held = list(itertools.takewhile(lambda point: point.holds, points))
        if not points:
            return None
        missed = points[len(held)].load if len(held) < len(points) else math.inf
        load, goodput_rps = (held[-1].load, held[-1].goodput_rps) if held else (0.0, 0.0)
        return Capacity(load, goodput_rps, missed, len(points))

    def to_json(self) -> str:
        """The text of ``closeup.json``; infinite figures as ``Infinity``, as Python writes them."""
        return json.dumps({"closeup": CLOSEUP_VERSION, **asdict(self)}, separators=(",", ":")) + "\n"


@dataclass(frozen=True)
class _Version:
    """Which version of the form a file has."""

    closeup: Literal[1]


def read_closeup(path: Path) -> Closeup:
    """Read ``closeup.json``.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not one, or another version's; says where.
    """
    read_stored(path, _Version)
    return read_stored(path, Closeup)
