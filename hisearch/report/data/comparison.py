"""Two deployments, or two runs, side by side: the changes, their effect, and the reasons.

The mean time of a request (E2E) is split without remainder, seconds:

    queueing    from arrival to the first batch, and, of preempted requests, from losing its KV to the next batch
    misses      prefill caused by prompt tokens that no cache had:
                (missed tokens of B - of A) x A's prefill seconds per missed token
    prefill     the rest of prefill: missed tokens of B x (B's seconds per missed token - A's)
    decode      from a request's token to its last one, without preemptions
    transfers   the reduction of the four above if all media and links moved KV at once, KV transfers from prefill to
                decode workers included. A separate simulation without transfer times gives it and the four above.
                0 where no KV moves
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from hisearch.report.data.intervals import CONFIDENCE, bootstrap_interval, paired_interval
from hisearch.score.stated import USUAL, spoken_of, stated
from hisearch.score.terms import Check, check_to_dict

#: Figures that are compared, with the better direction: +1 more, -1 less, 0 neither. A latency's p99 is replaced
#: by the percentiles that the SLO states, if any.
COMPARED: Mapping[str, int] = {
    "usd_per_hour": -1,
    "usd_per_million_tokens": -1,
    "goodput_rps": 1,
    "attainment": 1,
    "throughput_rps": 1,
    "ttft_mean_s": -1,
    "ttft_p50_s": -1,
    "ttft_p99_s": -1,
    "ttfo_mean_s": -1,
    "ttfo_p50_s": -1,
    "ttfo_p99_s": -1,
    "tpot_p50_s": -1,
    "tpot_p99_s": -1,
    "itl_p99_s": -1,
    "e2e_mean_s": -1,
    "e2e_p99_s": -1,
    "hit_rate": 1,
    "preemptions": -1,
    "joules_per_token": -1,
}

Better = Literal["A", "B", "same", "neither", "unsure"]


@dataclass(frozen=True)
class Change:
    """A setting that differs. key: its path; a, b: its values as text, "" where absent."""

    key: str
    a: str
    b: str


@dataclass(frozen=True)
class Figure:
    """A metric on both sides: means over the seeds, or of a recording as it is.

    low, high: of the difference B - A, at ``CONFIDENCE``; None where seeds do not vary it, or of one seed. better:
    which side is, "unsure" where the interval holds 0, "neither" where no direction is better.
    """

    name: str
    a: float
    b: float
    low: float | None
    high: float | None
    better: Better

    @property
    def difference(self) -> float:
        """B - A."""
        return self.b - self.a

    @property
    def relative(self) -> float | None:
        """(B - A) / A; None where A is 0 or either is not finite."""
        defined = math.isfinite(self.a) and math.isfinite(self.b) and self.a != 0
        return self.difference / self.a if defined else None


@dataclass(frozen=True)
class ModelFigures:
    """Metrics on both sides of the requests for one of several models."""

    model: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class TimeRow:
    """Part of the mean time of a request on both sides, seconds."""

    name: str
    a_s: float
    b_s: float


@dataclass(frozen=True)
class Part:
    """One cause's share of the difference in mean time, seconds; positive where it makes B slower."""

    name: str
    difference_s: float


@dataclass(frozen=True)
class Driver:
    """A figure that explains the parts. unit: of both values, "" of a number, "%" of a share (0 to 1)."""

    name: str
    a: float
    b: float
    unit: str = ""


@dataclass(frozen=True)
class Side:
    """One side. label: its name; source: its file or run folder."""

    label: str
    source: str
    description: str
    slo: tuple[Check, ...]
    feasible: bool | None
    chance: float | None = None


@dataclass(frozen=True)
class Fronts:
    """Fronts of two runs on one question. beaten: of its trials, how many a trial of the other front dominates."""

    a: int
    b: int
    a_beaten: int
    b_beaten: int


@dataclass(frozen=True)
class Comparison:
    """A whole comparison.

    kind: of the sides. workload: as text. same_workload: both sides saw the same requests. seeds: of both sides'
    simulations. draws: how many of them draw a recording anew; the first has it as it is. question: how the runs'
    studies differ. changes: how the deployments differ. models: figures by model, where a side serves several. notes:
    for the reader.
    """

    kind: Literal["deployments", "runs"]
    a: Side
    b: Side
    workload: str
    same_workload: bool
    seeds: tuple[int, ...]
    question: tuple[Change, ...]
    changes: tuple[Change, ...]
    figures: tuple[Figure, ...]
    times: tuple[TimeRow, ...]
    parts: tuple[Part, ...]
    drivers: tuple[Driver, ...]
    fronts: Fronts | None
    notes: tuple[str, ...]
    models: tuple[ModelFigures, ...] = ()
    draws: int = 0

    @property
    def asked(self) -> tuple[str, ...]:
        """Metrics of the latencies that either side's SLO bounds."""
        return stated(check.label for check in (*self.a.slo, *self.b.slo))

    def figure(self, name: str) -> Figure | None:
        """A figure by its name; None where it was not compared."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them; see docs/json.md."""
        data = asdict(self)
        for key, side in (("a", self.a), ("b", self.b)):
            data[key]["slo"] = [check_to_dict(check) for check in side.slo]
        data["figures"] = [_plain(figure) for figure in self.figures]
        data["models"] = [
            {"model": model.model, "figures": [_plain(figure) for figure in model.figures]} for model in self.models
        ]
        return data | {"confidence": CONFIDENCE}


def _plain(figure: Figure) -> dict[str, Any]:
    return asdict(figure) | {"difference": figure.difference, "relative": figure.relative}


def compare_figures(
    a: Sequence[Mapping[str, float]],
    b: Sequence[Mapping[str, float]],
    slo_metrics: Iterable[str] = (),
    *,
    kept_up: bool = False,
    recorded: bool = False,
) -> tuple[Figure, ...]:
    """Every figure of ``COMPARED`` that both sides have.

    Args:
        a: one mapping per seed.
        b: likewise, seed by seed.
        slo_metrics: metrics of the latencies that the SLO bounds, as ``score.stated.stated`` gives them.
        kept_up: both sides kept up with arrivals that do not wait for them. Then the load decides how much is served
            per second, and rates over a finite trace differ by how long its last requests take.
        recorded: the first pair is of a recording, the others are of draws of it, see ``bootstrap_interval``.
    """
    by_load = {"throughput_rps"} if kept_up else set()
    if kept_up and all(m.get("attainment") == other.get("attainment") for m, other in zip(a, b, strict=True)):
        by_load.add("goodput_rps")
    stated_names = [name for name in slo_metrics if all(name in metrics for metrics in (*a, *b))]
    names = [name for name in _compared(stated_names) if all(name in metrics for metrics in (*a, *b))]
    return tuple(
        _figure(
            name, [m[name] for m in a], [m[name] for m in b], 0 if name in by_load else COMPARED.get(name, -1), recorded
        )
        for name in names
        if not all(math.isnan(m[name]) for m in (*a, *b))
    )


def _compared(stated_names: Sequence[str]) -> Iterator[str]:
    """The names of ``COMPARED``, with stated percentiles in place of p99; each once."""
    yielded: set[str] = set()
    for name in COMPARED:
        instead = spoken_of(name.partition("_")[0], stated_names) if name.endswith(f"_{USUAL}_s") else (name,)
        yield from (metric for metric in instead if metric not in yielded)
        yielded.update(instead)


def _figure(name: str, a: Sequence[float], b: Sequence[float], direction: int, recorded: bool) -> Figure:
    low, high = bootstrap_interval(a, b) if recorded else paired_interval(a, b)
    at_a, at_b = (float(values[0] if recorded else np.mean(values)) for values in (a, b))
    return Figure(name, at_a, at_b, low, high, _better(direction, at_b - at_a, low, high))


def _better(direction: int, difference: float, low: float | None, high: float | None) -> Better:
    if math.isnan(difference):  # both infinite, or undefined on one side
        return "unsure"
    if difference == 0.0 and low is None:
        return "same"
    if direction == 0:
        return "neither"
    if low is not None and high is not None and low <= 0.0 <= high:
        return "unsure"
    return "B" if difference * direction > 0 else "A"


@dataclass(frozen=True)
class MeanTimes:
    """Means per finished request, seconds, of one simulation.

    missed_tokens: prompt tokens computed. front_end_s: on the way to the router, and of tokens to the client.
    """

    queued_s: float
    prefill_s: float
    decode_s: float
    missed_tokens: float
    front_end_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Mean E2E."""
        return self.queued_s + self.prefill_s + self.decode_s + self.front_end_s

    @property
    def prefill_s_per_token(self) -> float:
        """Prefill seconds per missed token."""
        return self.prefill_s / self.missed_tokens if self.missed_tokens else 0.0


def explain(a: MeanTimes, b: MeanTimes, a_transfers_s: float, b_transfers_s: float) -> tuple[Part, ...]:
    """The parts of the difference in mean E2E; see the module.

    Args:
        a: of A's simulation without transfer times, if A has transfers.
        b: the same for B.
        a_transfers_s: increase of A's mean E2E by transfers.
        b_transfers_s: increase of B's mean E2E by transfers.
    """
    misses = (b.missed_tokens - a.missed_tokens) * a.prefill_s_per_token
    pace = b.missed_tokens * (b.prefill_s_per_token - a.prefill_s_per_token)
    return (
        Part("queueing", b.queued_s - a.queued_s),
        Part("misses", misses),
        Part("prefill", pace),
        Part("decode", b.decode_s - a.decode_s),
        Part("transfers", b_transfers_s - a_transfers_s),
        Part("front_end", b.front_end_s - a.front_end_s),
    )


def time_rows(a: MeanTimes, b: MeanTimes, a_transfers_s: float, b_transfers_s: float) -> tuple[TimeRow, ...]:
    """The mean times of each side; arguments as of ``explain``."""
    return (
        TimeRow("queueing", a.queued_s, b.queued_s),
        TimeRow("prefill", a.prefill_s, b.prefill_s),
        TimeRow("decode", a.decode_s, b.decode_s),
        TimeRow("transfers", a_transfers_s, b_transfers_s),
        TimeRow("front_end", a.front_end_s, b.front_end_s),
    )


#: What each part means, for readers.
PART_MEANINGS = {
    "queueing": "waiting for a batch, and again after a preemption",
    "misses": "more or fewer prompt tokens that no cache had",
    "prefill": "the time each of those tokens takes",
    "decode": "making the output tokens",
    "transfers": "waiting for KV to move between tiers, or from prefill to decode workers",
    "front_end": "reading the request, and streaming tokens to the client",
}


def changes_between(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    """Every leaf that differs between two trees of plain values, by its dotted path."""
    leaves_a, leaves_b = flatten(a), flatten(b)
    keys = dict.fromkeys([*leaves_a, *leaves_b])
    return tuple(
        Change(key, leaves_a.get(key, ""), leaves_b.get(key, ""))
        for key in keys
        if leaves_a.get(key, "") != leaves_b.get(key, "")
    )


def flatten(tree: Any, path: str = "") -> dict[str, str]:
    """Leaves as text by dotted path; a list of plain values is one leaf; empty containers and nulls are left out."""
    if isinstance(tree, list | tuple) and tree and not any(isinstance(item, Mapping | list | tuple) for item in tree):
        return {path: ", ".join(_text(item) for item in tree)}
    if isinstance(tree, Mapping):
        items = [(str(key), value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        items = [(str(index), value) for index, value in enumerate(tree)]
    elif tree is None:
        return {}
    else:
        return {path: _text(tree)}
    leaves: dict[str, str] = {}
    for key, value in items:
        leaves |= flatten(value, f"{path}.{key}" if path else key)
    return leaves


def _text(value: Any) -> str:
    """A plain value; numbers without trailing zeros."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)
