"""From a simulation's result to its figures and its verdict under an SLO."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hisearch.score.energy import energy_usd_per_hour, energy_use, mean_w, paid_workers
from hisearch.score.metrics import front_end_note, metric_of
from hisearch.score.percentiles import Latencies, requests_needed
from hisearch.score.quantities import notes
from hisearch.score.terms import (
    LOST,
    OVER_KV_MEMORY,
    OVER_WINDOW,
    REJECTED,
    SHED,
    TOO_LARGE,
    Check,
    LimitCheck,
    RejectionCheck,
    TermCheck,
)
from hisearch.score.terms import worst_margin as worst_margin_of
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome, RequestTable
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.studies.study import LimitSpec

#: Requests rejected although a worker could have served them, by reason.
TURNED_AWAY = {Outcome.SHED: SHED, Outcome.LOST: LOST}
#: Outcomes of requests that are not served.
REJECTIONS = (Outcome.TOO_LARGE, *TURNED_AWAY)

#: Percentiles in every score, in addition to those of the SLO.
PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Score:
    """Figures of one simulation, see ``hisearch.score.metrics`` for the keys of ``metrics``.

    slo: one check per SLO term, in the SLO's order, one per limit, and last the check of rejected requests. feasible:
    every check holds.
    """

    metrics: dict[str, float]
    slo: tuple[Check, ...]
    feasible: bool

    @property
    def worst_margin(self) -> float:
        """Smallest margin over the SLO's latency terms; infinite if no term has a value."""
        return worst_margin_of(self.slo)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notes on the terms (rejections, percentiles of few requests, undefined values), and on a busy front end."""
        return tuple(filter(None, (*notes(self.slo), front_end_note(self.metrics))))


def evaluate(
    result: Result,
    slo: SloSpec,
    *,
    usd_per_hour: float = math.nan,
    accelerators: float = 0,
    over_window: np.ndarray | None = None,
    window_tokens: int = 0,
    limits: Mapping[str, LimitSpec] | None = None,
) -> Score:
    """Score a simulation.

    Rejected and unfinished requests are not good. Requests still in flight when the simulation stopped count as
    infinitely late in every percentile and mean (``hisearch.score.percentiles``). Requests that had not arrived by then
    are left out. TPOT covers requests with two or more output tokens. If requests finished and none has two, TPOT is
    NaN among the metrics and None in its terms, and its terms hold. So it is with TTFO, which covers requests with a
    visible token. Figures of TTFO are there where requests think, or a term or limit names it.

    Args:
        result: a finished simulation.
        slo: the SLO to check.
        usd_per_hour: price of the deployment, to which electricity is added; the cost figures are NaN without it.
        accelerators: number in the deployment, averaged over time if workers come and go.
        over_window: mask of the requests that exceed the model's window, shape (N,) (see
            ``hisearch.traces.stats.requests_over_window``); without it, rejections are not split by reason.
        window_tokens: that window; 0 where there are several, or it is not known.
        limits: bounds by objective, see ``hisearch.specs.studies.study.StudySpec``.
    """
    requests = result.requests
    counts = np.bincount(requests.outcome, minlength=len(Outcome))
    unfinished = int(counts[Outcome.IN_FLIGHT])
    rejected = int(sum(counts[outcome] for outcome in REJECTIONS))
    arrived = int(counts[Outcome.FINISHED]) + unfinished + rejected

    values = latency_values(requests)
    latencies = latencies_of(requests, values)
    good = int(good_requests(requests, values, slo).sum())

    reasons = _rejection_reasons(requests.outcome == Outcome.TOO_LARGE, over_window)
    reasons |= {text: int(counts[outcome]) for outcome, text in TURNED_AWAY.items() if counts[outcome]}
    rejection = RejectionCheck(slo.max_rejected_fraction, arrived, reasons, window_tokens=window_tokens)

    checks_of_terms = [_check(term, latencies[term.metric], requests, values) for term in slo.terms]
    names = (*(term.label for term in slo.terms), *(limits or ()))
    with_ttfo = requests.thinking_tokens is not None or any(name.startswith("ttfo") for name in names)
    metrics = _latency_metrics(latencies, slo.terms, with_ttfo)
    metrics |= _class_metrics(slo.terms, checks_of_terms)
    metrics |= _gap_metrics(result)
    metrics |= _rates(result, good, arrived)
    metrics[REJECTED] = rejection.value
    metrics |= _costs(result, usd_per_hour, metrics["total_tokens_per_s"])
    metrics["accelerators"] = float(accelerators)
    kept = (
        LimitCheck(name, metrics[metric_of(name)], limit.bound, at_least=limit.at_most is None)
        for name, limit in (limits or {}).items()
    )
    checks: tuple[Check, ...] = (*checks_of_terms, *kept, rejection)
    return Score(metrics, checks, all(check.holds for check in checks))


def _check(
    term: SloTerm, latencies: Latencies | None, requests: RequestTable, values: Mapping[str, np.ndarray]
) -> TermCheck:
    """Check a latency term, with a note if its value is undefined or rests on too few requests.

    latencies: of all requests. A term about a class takes its requests' alone.
    """
    if term.of_class:
        of_class = class_mask(requests, term)
        if not (of_class & (requests.outcome != Outcome.UNREACHED)).any():
            return TermCheck(term.label, None, term.at_most_s, "undefined, as no such request arrived; it holds")
        latencies = latencies_of(requests, values, of_class)[term.metric]
    if latencies is None:
        lacks = "a second output token" if term.metric == "tpot_s" else "a visible token"
        note = f"undefined, as no request has {lacks}; it holds"
        return TermCheck(term.label, None, term.at_most_s, note)
    needed = requests_needed(term.percentile)
    note = (
        "no request thinks, so that it is TTFT" if term.metric == "ttfo_s" and requests.thinking_tokens is None else ""
    )
    if 0 < len(latencies) < needed:
        note = (
            f"rests on {len(latencies):,} request{'s' if len(latencies) > 1 else ''}; of fewer than {needed:,}, "
            f"percentile {term.percentile:g} is little more than the slowest one"
        )
    return TermCheck(term.label, latencies.percentile(term.percentile), term.at_most_s, note)


def class_mask(requests: RequestTable, term: SloTerm) -> np.ndarray:
    """Mask of the requests that a term is about, shape (N,).

    Raises:
        ValueError: the term is about a class, and the table does not know the requests' classes.
    """
    mask = np.ones(len(requests.outcome), dtype=bool)
    for name, number in term.of_class.items():
        known = getattr(requests, name)
        if known is None:
            raise ValueError(f"term {term.label}: the requests' {name} is not known here")
        mask &= known == number
    return mask


def _class_metrics(terms: Sequence[SloTerm], checks: Sequence[TermCheck]) -> dict[str, float]:
    """Values of the terms about classes, seconds, by label; NaN (``math.nan`` itself) if undefined."""
    pairs = ((term, check) for term, check in zip(terms, checks, strict=True) if term.of_class)
    return {metric_of(term.label): math.nan if check.value_s is None else check.value_s for term, check in pairs}


def _rejection_reasons(rejected: np.ndarray, over_window: np.ndarray | None) -> dict[str, int]:
    """Count rejected requests by reason; reasons without requests are left out."""
    if over_window is None:
        counts = {TOO_LARGE: int(rejected.sum())}
    else:
        counts = {
            OVER_WINDOW: int((rejected & over_window).sum()),
            OVER_KV_MEMORY: int((rejected & ~over_window).sum()),
        }
    return {reason: count for reason, count in counts.items() if count}


def latency_values(requests: RequestTable) -> dict[str, np.ndarray]:
    """Latencies in seconds of finished requests, by metric, shape (finished,); NaN: of no visible token."""
    finished = requests.finished
    return {
        "ttft_s": requests.ttft_s[finished],
        "ttfo_s": requests.ttfo_s[finished],
        "tpot_s": requests.tpot_s[finished],
        "e2e_s": requests.e2e_s[finished],
    }


def latencies_of(
    requests: RequestTable, values: Mapping[str, np.ndarray], counted: np.ndarray | None = None
) -> dict[str, Latencies | None]:
    """Sorted latencies by metric; None if undefined.

    TPOT is only over requests with at least two output tokens, TTFO over those with a visible token.

    values: of ``latency_values``. counted: mask of the requests that count, shape (N,); all of them where absent.
    """
    several = requests.output_tokens >= 2
    counted = np.ones(len(several), dtype=bool) if counted is None else counted
    values = {name: seconds[counted[requests.finished]] for name, seconds in values.items()}
    in_flight = (requests.outcome == Outcome.IN_FLIGHT) & counted
    tpot_s = values["tpot_s"][several[requests.finished & counted]]
    tpot = Latencies.of(tpot_s, int((in_flight & several).sum()))
    undefined = len(tpot) == 0 and len(values["tpot_s"]) > 0
    unfinished = int(in_flight.sum())
    ttft = Latencies.of(values["ttft_s"], unfinished)
    return {
        "ttft_s": ttft,
        "ttfo_s": ttft if requests.thinking_tokens is None else _ttfo(requests, values["ttfo_s"], in_flight),
        "tpot_s": None if undefined else tpot,
        "e2e_s": Latencies.of(values["e2e_s"], unfinished),
    }


def _ttfo(requests: RequestTable, values_s: np.ndarray, in_flight: np.ndarray) -> Latencies | None:
    """TTFO of requests with a visible token; ``values_s``: of finished ones; ``in_flight``: mask of shape (N,)."""
    assert requests.thinking_tokens is not None
    visible_s = values_s[~np.isnan(values_s)]
    ttfo = Latencies.of(visible_s, int((in_flight & (requests.thinking_tokens < requests.output_tokens)).sum()))
    return None if len(ttfo) == 0 and len(values_s) > 0 else ttfo


def good_requests(requests: RequestTable, values: Mapping[str, np.ndarray], slo: SloSpec) -> np.ndarray:
    """Mask over finished requests, shape (finished,): true if all its latencies are within the SLO's bounds.

    A request with a single output token has no TPOT and passes every bound on it, as do others of a class's bounds. So
    do requests without a visible token pass bounds on TTFO.
    """
    good = np.ones(len(values["ttft_s"]), dtype=bool)
    single = requests.output_tokens[requests.finished] < 2
    for term in slo.terms:
        within = values[term.metric] <= term.at_most_s
        if term.metric == "tpot_s":
            within |= single
        elif term.metric == "ttfo_s":
            within |= np.isnan(values[term.metric])
        if term.of_class:
            within |= ~class_mask(requests, term)[requests.finished]
        good &= within
    return good


def _latency_metrics(
    latencies: Mapping[str, Latencies | None], terms: Sequence[SloTerm], with_ttfo: bool
) -> dict[str, float]:
    """Means and percentiles, seconds; NaN (the object ``math.nan`` itself, so that scores compare) if undefined."""
    metrics: dict[str, float] = {}
    for name, values in latencies.items():
        stem = name.removesuffix("_s")
        if stem == "ttfo" and not with_ttfo:
            continue
        metrics[f"{stem}_mean_s"] = math.nan if values is None else values.mean()
        slo_percentiles = (term.percentile for term in terms if term.metric == name)
        for percent in dict.fromkeys((*PERCENTILES, *slo_percentiles)):
            metrics[f"{stem}_p{percent:g}_s"] = math.nan if values is None else values.percentile(percent)
    return metrics


def _gap_metrics(result: Result) -> dict[str, float]:
    """Inter-token latencies: mean gap of finished requests, percentiles of all gaps."""
    requests, finished = result.requests, result.requests.finished
    gaps = int((requests.output_tokens[finished] - 1).sum())
    total_s = float((requests.finish_s - requests.first_token_s)[finished].sum())
    metrics = {"itl_mean_s": total_s / gaps if gaps else math.nan}
    return metrics | {f"itl_p{percent}_s": result.itl_s(percent / 100.0) for percent in PERCENTILES}


def _rates(result: Result, good: int, arrived: int) -> dict[str, float]:
    """Figures per second and per request."""
    requests, workers = result.requests, result.workers
    finished = requests.finished
    count = int(finished.sum())
    output = int(requests.output_tokens[finished].sum())
    prompt = int(requests.input_tokens[finished].sum())
    span_s = result.makespan_s
    per_s = 1.0 / span_s if span_s > 0 else 0.0
    _, host_hits, *storage_hits = result.tier_hit_tokens
    return {
        "goodput_rps": good * per_s,
        "attainment": good / arrived if arrived else 0.0,
        "throughput_rps": count * per_s,
        "output_tokens_per_s": output * per_s,
        "total_tokens_per_s": (prompt + output) * per_s,
        "hit_rate": result.hit_rate,
        "host_hit_rate": host_hits / result.prompt_tokens if result.prompt_tokens else 0.0,
        "storage_hit_rate": sum(storage_hits) / result.prompt_tokens if result.prompt_tokens else 0.0,
        "preemptions": float(requests.preemptions.sum()) / count if count else 0.0,
        "utilisation": float(workers.busy_s.sum()) * per_s / max(paid_workers(result), 1e-9),
        "front_end_busy": result.front_end_busy,
        "makespan_s": span_s,
    }


def _costs(result: Result, usd_per_hour: float, total_tokens_per_s: float) -> dict[str, float]:
    """Dollars, watts and joules; figures per token are infinite if no token was served."""
    energy_usd = energy_usd_per_hour(result)
    usd_per_hour += energy_usd
    tokens = total_tokens_per_s * result.makespan_s
    usd_per_token = usd_per_hour / 3600.0 / total_tokens_per_s if total_tokens_per_s > 0 else math.inf
    return {
        "usd_per_hour": usd_per_hour,
        "usd_per_million_tokens": usd_per_token * 1e6,
        "energy_usd_per_hour": energy_usd,
        "mean_w": mean_w(result),
        "joules_per_token": energy_use(result).total_j / tokens if tokens > 0 else math.inf,
    }
