"""The first screen: big figures, the SLO as gauges, cautions of one line."""

from __future__ import annotations

import math
from typing import NamedTuple

from hisearch.report.data.confidence import Confidence
from hisearch.report.data.inputs import ReportInput
from hisearch.report.pages import page
from hisearch.report.words.cautions import Verdict, verdict_of
from hisearch.report.words.chances import format_range
from hisearch.report.words.terms import term_lines
from hisearch.score.metrics import metric_of
from hisearch.score.quantities import HOURS_PER_MONTH, quantity, usd
from hisearch.score.terms import Check, LimitCheck, RejectionCheck, TermCheck
from hisearch.search.model.trial import Trial
from hisearch.search.select.recommend import is_near
from hisearch.specs.wording import counted, format_percent

#: Place of the bound on a gauge, as a share of its width.
BOUND_AT = 0.62


class BigFact(NamedTuple):
    """A big figure. key: names it for the style sheet; ends: its interval on a scale from 0 to 1, or None."""

    key: str
    name: str
    value: str
    unit: str
    lines: tuple[str, ...]
    at: float | None = None
    ends: tuple[float, float] | None = None


class Bar(NamedTuple):
    """Places on a gauge, in per cent of its width. low, high: of the interval; beyond: its end lies further right."""

    value: float
    bound: float
    low: float | None
    high: float | None
    beyond: bool


class Gauge(NamedTuple):
    """A term of the SLO. interval, chance: as text, or "". bar: None where there is nothing to draw."""

    term: str
    meaning: str
    value: str
    bound: str
    interval: str
    chance: str
    verdict: Verdict
    bar: Bar | None


def big_facts(data: ReportInput) -> tuple[BigFact, ...]:
    """Price, accelerators, probability, and up to which load it holds; () where nothing comes near the SLO."""
    trial = data.highlighted
    if trial is None or "usd_per_hour" not in trial.metrics or (data.recommendation is None and not is_near(trial)):
        return ()
    known = data.confidence or Confidence()
    facts = [_price(trial, known), _accelerators(trial)]
    if trial.metrics.get("agents"):
        agents = f"{trial.metrics['agents']:,.0f}"
        facts.append(
            BigFact("agents", "Agents", agents, "", (f"{usd(trial.metrics['usd_per_agent_hour'])} an hour each",))
        )
    if data.recommendation is not None:
        facts.append(_probability(known, ended=data.so_far is None))
    if (load := page.growth(data)) is not None:
        facts.append(BigFact("load", *load))
    if words := page.energy_words(data):
        facts.append(BigFact("energy", "Energy", words[0].partition(" ")[0], words[0].partition(" ")[2], words[1:]))
    return tuple(facts)


def _price(trial: Trial, known: Confidence) -> BigFact:
    hourly = trial.metrics["usd_per_hour"]
    lines = [f"{usd(hourly * HOURS_PER_MONTH)} a month ({HOURS_PER_MONTH:g} h)"]
    ends = known.intervals.get("usd_per_hour")
    if ends is not None:
        lines.append(f"{_level(known)}: {usd(ends[0])} to {usd(ends[1])}")
    return BigFact("price", "Price", usd(hourly), "an hour", tuple(lines))


def _accelerators(trial: Trial) -> BigFact:
    pools = trial.deployment.pools
    together: dict[str, int] = {}
    for pool in pools:
        together[pool.accelerator] = together.get(pool.accelerator, 0) + pool.accelerators
    value = " + ".join(f"{count} × {name}" for name, count in together.items())
    lines = [
        counted(pool.replicas, "replica")
        + (f" for {pool.role}" if pool.role != "unified" else "")
        + (f", {pool.parallelism.short}" if pool.parallelism.ranks > 1 else "")
        for pool in pools
    ]
    return BigFact("gpus", "Accelerators", value, "", tuple(dict.fromkeys(lines)))


def _probability(known: Confidence, *, ended: bool) -> BigFact:
    if known.chance is None:
        why = "Probability was not looked into" if ended else "Follows when the study ends"
        return BigFact("chance", "Meets the SLO", "not known", "", (why,))
    lines = [f"{_level(known)}: {format_range(known.chance_range)}"] if known.chance_range is not None else []
    lines += [f"{round(known.chance * known.draws)} of {known.draws} draws"] if known.draws else []
    lines += [known.misses.sentence] if known.misses is not None else []
    value = format_percent(known.chance)
    return BigFact("chance", "Meets the whole SLO", value, "likely", tuple(lines), known.chance, known.chance_range)


def _level(known: Confidence) -> str:
    return "interval" if known.level is None else f"{format_percent(known.level)} interval"


def interval_name(data: ReportInput) -> str:
    """``90 % interval``."""
    return _level(data.confidence or Confidence())


def gauges(data: ReportInput) -> tuple[Gauge, ...]:
    """A gauge per term of the highlighted trial."""
    checks = data.highlighted.slo if data.highlighted is not None else ()
    known = data.confidence if data.recommendation is not None and data.confidence is not None else Confidence()
    rows = []
    for check, line in zip(checks, term_lines(checks), strict=True):
        chance, ends = known.terms.get(line.label), _ends(check, known)
        show = quantity(check.label).show
        rows.append(
            Gauge(
                line.term,
                line.meaning,
                line.value,
                line.bound,
                "" if ends is None else f"{show(ends[0])} to {show(ends[1])}",
                "" if chance is None else format_percent(chance),
                verdict_of(line, chance),
                _bar(check, ends),
            )
        )
    return tuple(rows)


def _ends(check: Check, known: Confidence) -> tuple[float, float] | None:
    if check.model or isinstance(check, RejectionCheck):
        return None
    return known.intervals.get(metric_of(check.label))


def _bar(check: Check, ends: tuple[float, float] | None) -> Bar | None:
    """None of terms without a positive bound or a finite value."""
    bound = check.bound_s if isinstance(check, TermCheck) else check.bound
    value = check.value_s if isinstance(check, TermCheck) else check.value
    if value is None or bound <= 0.0 or math.isnan(value) or (isinstance(check, LimitCheck) and check.at_least):
        return None

    def place(at: float) -> float:
        return round(100.0 * min(max(BOUND_AT * at / bound, 0.0), 1.0), 2)

    low, high = (None, None) if ends is None else (place(ends[0]), place(ends[1]))
    furthest = max(value, ends[1]) if ends is not None else value
    return Bar(place(value), 100.0 * BOUND_AT, low, high, BOUND_AT * furthest / bound > 1.0)
