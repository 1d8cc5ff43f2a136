"""Tables with bars: why this deployment, and every alternative against it."""

from __future__ import annotations

import math
from typing import NamedTuple

from hisearch.report.data.confidence import Chance, Confidence
from hisearch.report.data.inputs import ReportInput
from hisearch.report.pages.trades import chance_of, price_change, trades
from hisearch.report.words.cautions import Verdict, verdict_on
from hisearch.report.words.chances import format_chance
from hisearch.report.words.terms import violation_of
from hisearch.score.quantities import UNDEFINED, quantity, usd
from hisearch.score.stated import LATENCIES
from hisearch.search.model.deployments import describe_each, hardware
from hisearch.search.model.trial import Trial, metric_of, price_of
from hisearch.search.select.other_hardware import OtherHardware, hardware_kind
from hisearch.search.select.rules import WITHIN_PRICE
from hisearch.specs.wording import capitalised, counted

#: Cheaper trials that miss the SLO, at most, on the ladder of prices.
_CHEAPER = 3

#: Between the parts of a deployment's description.
_BETWEEN = " · "

#: Rules for people.
RULES = {
    "cheapest": "Cheapest",
    "best_value": "Best value",
    "lowest_latency": "Lowest latency",
    "most_headroom": "Most headroom",
    "least_energy": "Least energy",
}


class Rung(NamedTuple):
    """A price. kind: ``chosen`` or its verdict's; share: of the longest bar, 0 to 1."""

    kind: str
    line: str
    who: str
    price: str
    share: float
    verdict: Verdict


class Ladder(NamedTuple):
    """common: what all of the deployments have, left out of their lines; ""."""

    rungs: tuple[Rung, ...]
    common: str


class BarCell(NamedTuple):
    """A figure in a table, with a bar; share: of the longest of its column, 0 to 1, None without a bar."""

    text: str
    share: float | None


class AlternativeRow(NamedTuple):
    """A deployment against the recommendation. roles: what it is best in."""

    roles: str
    line: str
    number: int
    chosen: bool
    verdict: Verdict
    change: str
    cells: tuple[BarCell, ...]


class Alternatives(NamedTuple):
    """The table: titles of the columns with bars, and the rows, cheapest first. common: as of ``Ladder``."""

    columns: tuple[str, ...]
    rows: tuple[AlternativeRow, ...]
    common: str


def ladder(data: ReportInput) -> Ladder:
    """Prices of the cheaper ones that miss most narrowly, of what is recommended, and of the engine's defaults."""
    if data.recommendation is None:
        return _misses(data)
    best, baseline = data.recommendation.trial, data.recommendation.baseline
    chance = chance_of(best.number, data)
    known = chance is not None
    less = [t for t in data.trials if t.comparable and not t.feasible and price_of(t) < price_of(best)]
    entries = [(trial, "", _verdict(trial, None)) for trial in _nearest(less)]
    entries.append((best, data.title_of_chosen, _verdict(best, chance)))
    entries += [
        (
            trial,
            capitalised(trade.partition(":")[0].strip("., ")),
            _verdict(trial, chance_of(trial.number, data), chances_known=known),
        )
        for trial, trade in data.recommendation.runner_ups
        if len(trade.partition(":")[0]) < 50
    ]
    if baseline is not None and baseline.metrics:
        entries.append((baseline, "Engine's defaults", _verdict(baseline, None, chances_known=known)))
    return _rungs(entries, best.number)


def _verdict(trial: Trial, chance: Chance | None, *, chances_known: bool = False) -> Verdict:
    """Whether it meets the SLO; where not, what it misses most. chances_known: as of ``verdict_on``."""
    verdict = verdict_on(trial.feasible, chance, chances_known=chances_known)
    return verdict if trial.feasible else verdict._replace(words=violation_of(trial))


def _misses(data: ReportInput) -> Ladder:
    trials = [trial for trial in data.trials if trial.comparable]
    chosen = data.nearest_miss
    return _rungs(
        [(trial, data.title_of_chosen if trial is chosen else "", _verdict(trial, None)) for trial in _nearest(trials)]
    )


def _nearest(trials: list[Trial]) -> list[Trial]:
    """Of each price the nearest miss, and of these the nearest ones."""
    by_price: dict[float, Trial] = {}
    for trial in trials:
        known = by_price.get(price_of(trial))
        if math.isfinite(trial.worst_violation) and (known is None or trial.worst_violation < known.worst_violation):
            by_price[price_of(trial)] = trial
    return sorted(by_price.values(), key=lambda trial: trial.worst_violation)[:_CHEAPER]


def _rungs(entries: list[tuple[Trial, str, Verdict]], chosen: int | None = None) -> Ladder:
    entries = sorted({entry[0].number: entry for entry in reversed(entries)}.values(), key=_price_of)
    lines, common = _without_common(describe_each([trial.deployment for trial, _, _ in entries]))
    most = max((trial.metrics["usd_per_hour"] for trial, _, _ in entries), default=1.0) or 1.0
    rungs = tuple(
        Rung(
            "chosen" if trial.number == chosen else verdict.kind,
            line,
            who,
            usd(trial.metrics["usd_per_hour"]),
            trial.metrics["usd_per_hour"] / most,
            verdict,
        )
        for (trial, who, verdict), line in zip(entries, lines, strict=True)
    )
    return Ladder(rungs, common)


def _without_common(lines: list[str]) -> tuple[list[str], str]:
    """The lines without the parts that all of them have after the first, and these parts."""
    parts = [line.split(_BETWEEN) for line in lines]
    common = [part for part in parts[0][1:] if all(part in other[1:] for other in parts)] if len(parts) > 1 else []
    return [_BETWEEN.join(p for p in line if p not in common) for line in parts], _BETWEEN.join(common)


def _price_of(entry: tuple[Trial, str, Verdict]) -> float:
    return entry[0].metrics["usd_per_hour"]


def alternatives(data: ReportInput) -> Alternatives | None:
    """The recommendation, the three trades, runner-ups, candidates and what other rules choose; None without any."""
    if data.recommendation is None:
        return None
    best = data.recommendation.trial
    roles = _roles(data)
    by_number = {trial.number: trial for trial in data.trials}
    trials = sorted(
        (by_number[number] for number in roles if number in by_number), key=lambda t: (price_of(t), t.number)
    )
    if len(trials) < 2:
        return None
    names = _columns(data, trials)
    lines, common = _without_common(describe_each([trial.deployment for trial in trials]))
    tops = {name: max((v for t in trials if math.isfinite(v := _value(t, name))), default=1.0) or 1.0 for name in names}
    chances = {trial.number: chance_of(trial.number, data) for trial in trials}
    rows = []
    for trial, line in zip(trials, lines, strict=True):
        cells = [
            BarCell(quantity(name).show(_value(trial, name)), _share(_value(trial, name), tops[name])) for name in names
        ]
        if any(chances.values()):
            chance = chances[trial.number]
            cells.append(BarCell(format_chance(chance) or UNDEFINED, None if chance is None else chance.value))
        change = "" if trial is best else price_change(trial, best)
        named = " · ".join(dict.fromkeys(roles[trial.number]))
        verdict = verdict_on(trial.feasible, chances[trial.number], chances_known=any(chances.values()))
        rows.append(AlternativeRow(named, line, trial.number, trial is best, verdict, change, tuple(cells)))
    columns = (*(quantity(name).label for name in names), *(["Chance to hold"] if any(chances.values()) else []))
    return Alternatives(columns, tuple(rows), common)


class HardwareRow(NamedTuple):
    """Hardware that was not chosen, as text: what it is, its deployment and price, and when it would win.

    trials: that the search gave it. attached: whether it is a device that is attached.
    """

    hardware: str
    line: str
    price: str
    wins: str
    meets: bool
    trials: int
    attached: bool


def hardware_rows(data: ReportInput) -> tuple[HardwareRow, ...]:
    """How other hardware fared, the cheapest within the SLO first."""
    rows = []
    for other in data.other_hardware:
        trial, attached = other.trial, " with " in other.hardware
        if trial is None:
            shown = (UNDEFINED, UNDEFINED, "not simulated on the whole trace", False)
        else:
            shown = (hardware(trial.deployment), usd(price_of(trial)), _wins(other, trial, data), trial.feasible)
        rows.append(HardwareRow(other.hardware, *shown, other.trials, attached))
    return tuple(rows)


def _wins(other: OtherHardware, trial: Trial, data: ReportInput) -> str:
    """The price, and the bandwidth, at which it would win, or why none does."""
    text = _price_wins(other, trial, data) if trial.feasible else violation_of(trial) or "misses the SLO"
    for win in data.confidence.bandwidths if data.confidence is not None else ():
        if win.hardware != other.hardware:
            continue
        its = "its bandwidth" if other.item and other.item in text else f"the bandwidth of {win.item}"
        if win.factor is None:
            text += f"; not with {win.most:g} times {its}{' either' if trial.feasible else ''}"
        else:
            text += f"; {counted(win.replicas, 'replica')} {'does' if win.replicas == 1 else 'do'} with "
            text += f"{win.factor:.1f} times {its}"
    return text


def _price_wins(other: OtherHardware, trial: Trial, data: ReportInput) -> str:
    """The price at which hardware that meets the SLO would win, or why none does."""
    assert data.recommendation is not None
    likely = _likely_win(other, data)
    if not other.item:
        cheaper = price_of(trial) <= price_of(data.recommendation.trial)
        if not cheaper:
            return likely or "by no price of its own"
        chance = _chance_of_like(trial, data)
        costs = "costs no more; how likely it is to hold was not looked into"
        if chance is not None:
            costs = f"costs no more; {format_chance(chance)} likely to hold"
        return f"{costs}; {likely}" if likely else costs
    if likely:
        return likely
    if other.win_usd is None:
        return f"not even with {other.item} for nothing"
    unit = other.unit.partition("/")[2].replace("/", " and ")
    return f"{other.item} at {usd(other.win_usd)} per {unit} or less, now {usd(other.now_usd)}"


def _chance_of_like(trial: Trial, data: ReportInput) -> Chance | None:
    """The probability of a trial, else of one on as many of the same accelerators for the same price."""
    alike = [
        t
        for t in data.trials
        if price_of(t) == price_of(trial) and hardware(t.deployment) == hardware(trial.deployment)
    ]
    chances = (chance_of(other.number, data) for other in (trial, *alike))
    return next((chance for chance in chances if chance is not None), None)


def _likely_win(other: OtherHardware, data: ReportInput) -> str:
    """The price of its accelerator at which a deployment of the hardware is cheaper that a few draws leave likely."""
    known = data.confidence.sensitivity.get("prices") if data.confidence is not None else None
    by_number = {trial.number: trial for trial in data.trials}
    for row in known or ():
        trial = by_number.get(row.get("trial"))
        if (
            trial is None
            or row.get("dearer")
            or not row.get("draws")
            or hardware_kind(trial.deployment) != other.hardware
        ):
            continue
        draws = f"holds in {row['held']} of {row['draws']} draws"
        return (
            f"{row['item']} at {usd(float(row['usd']))} or less, now {usd(float(row['now_usd']))}: "
            f"{hardware(trial.deployment)} {draws}"
        )
    return ""


def _roles(data: ReportInput) -> dict[int, list[str]]:
    """What each trial of the table is best in, by its number."""
    assert data.recommendation is not None
    roles: dict[int, list[str]] = {data.recommendation.trial.number: [data.title_of_chosen]}
    for trade in trades(data):
        if trade.trial is not None:
            roles.setdefault(trade.trial.number, []).append(capitalised(trade.role))
    known = data.confidence or Confidence()
    for row in known.rules:
        star = "rule: " if row.trial == data.recommendation.trial.number else ""
        roles.setdefault(row.trial, []).append(f"{star}{_rule_words(row.rule, known.rules_within_usd_per_hour)}")
    for trial, words in data.recommendation.runner_ups:
        kind = words.partition(":")[0].strip("., ")
        roles.setdefault(trial.number, []).append(capitalised(kind) if len(kind) < 50 else "Runner-up")
    for candidate in known.candidates:
        roles.setdefault(candidate.trial, ["Candidate"])
    return roles


def _rule_words(rule: str, limit_usd: float | None) -> str:
    """A rule for people; one that looks within a price, with that limit in dollars per hour."""
    words = RULES.get(rule, rule)
    return words if limit_usd is None or rule not in WITHIN_PRICE else f"{words} up to {usd(limit_usd)}"


def _columns(data: ReportInput, trials: list[Trial]) -> list[str]:
    """Price, the latencies of objectives and SLO, goodput."""
    latencies = (*data.objectives, *(term.label for term in data.slo))
    names = ["usd_per_hour", *(n for n in latencies if n.partition("_")[0] in LATENCIES), "goodput"]
    return [n for n in dict.fromkeys(names) if any(math.isfinite(_value(t, n)) for t in trials)]


def _value(trial: Trial, name: str) -> float:
    return trial.metrics.get(metric_of(name), math.nan)


def _share(value: float, most: float) -> float | None:
    return min(value / most, 1.0) if math.isfinite(value) else None
