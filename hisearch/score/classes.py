"""What requests of each priority, or of each tenant, get, and what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hisearch.score.evaluate import PERCENTILES, good_requests, latencies_of, latency_values
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.studies.slo import ModelSloSpec, SloSpec
from hisearch.specs.wording import listed
from hisearch.traces.compiled import TraceArrays

#: Classes of a trace that a message names.
_NAMED = 8


@dataclass(frozen=True)
class ClassShare:
    """The requests of one class.

    number: their priority or tenant in the trace. arrived, finished: requests. latencies: ``ttft_p95_s`` and the like,
    seconds, NaN where undefined. goodput_rps: requests within all bounds that concern them, per second; attainment:
    their share. Both are NaN without an SLO. occupancy: share of KV tokens times seconds in service. usd_per_hour: that
    share of the deployment's dollars.
    """

    number: int
    arrived: int
    finished: int
    latencies: dict[str, float]
    goodput_rps: float
    attainment: float
    occupancy: float
    usd_per_hour: float


def term_without_requests(slo: ModelSloSpec, trace: TraceArrays, counted: np.ndarray | None = None) -> tuple[int, str]:
    """Index of the first term about a class that no request of a trace has, and what is wrong; (-1, "") if none is.

    counted: mask of the requests that the SLO is about, shape (N,); all of them where absent.
    """
    for index, term in enumerate(slo.terms):
        for name, number in term.of_class.items():
            known = np.unique(getattr(trace, name)[slice(None) if counted is None else counted])
            if number not in known:
                there = listed([str(other) for other in known[:_NAMED].tolist()])
                more = f" and {len(known) - _NAMED:,} more" if len(known) > _NAMED else ""
                return index, f"{term.label}: no request of the workload has {name} {number}; it has {there}{more}"
    return -1, ""


def shares_of_classes(
    result: Result, by: str, slos: Sequence[tuple[np.ndarray, SloSpec]], usd_per_hour: float
) -> list[ClassShare]:
    """A share for each class that arrived, by its number.

    Dollars go by what holds the accelerators' memory: a request's tokens times the seconds from when it was first
    scheduled until its end. Requests in flight when a simulation stopped carry none.

    Args:
        result: a finished simulation.
        by: ``priority`` or ``tenant``.
        slos: SLO of the requests of each mask, shape (N,), by which good ones are counted; none for no such figures.
        usd_per_hour: of the deployment, with electricity.

    Raises:
        ValueError: the table of requests does not know their classes.
    """
    requests = result.requests
    numbers = getattr(requests, by)
    if numbers is None:
        raise ValueError(f"the requests' {by} is not known here")
    values, finished = latency_values(requests), requests.finished
    good = np.zeros(len(finished), dtype=bool)
    for mask, slo in slos:
        within = np.zeros(len(finished), dtype=bool)
        within[finished] = good_requests(requests, values, slo)
        good |= within & mask
    held = np.zeros(len(finished))
    in_service_s = requests.finish_s[finished] - requests.scheduled_s[finished]
    held[finished] = (requests.input_tokens + requests.output_tokens)[finished] * in_service_s
    total = float(held.sum())
    arrived = requests.outcome != Outcome.UNREACHED
    shares = []
    for number in np.unique(numbers[arrived]):
        mine = numbers == number
        count = int((mine & arrived).sum())
        latencies = latencies_of(requests, values, mine)
        occupancy = float(held[mine].sum()) / total if total > 0 else math.nan
        good_count = int(good[mine].sum()) if slos else math.nan
        shares.append(
            ClassShare(
                number=int(number),
                arrived=count,
                finished=int((mine & finished).sum()),
                latencies={
                    f"{name.removesuffix('_s')}_p{percent}_s": math.nan if of is None else of.percentile(percent)
                    for name, of in latencies.items()
                    if name != "ttfo_s" or requests.thinking_tokens is not None
                    for percent in PERCENTILES
                },
                goodput_rps=good_count / result.makespan_s if result.makespan_s > 0 else math.nan,
                attainment=good_count / count,
                occupancy=occupancy,
                usd_per_hour=occupancy * usd_per_hour,
            )
        )
    return shares
