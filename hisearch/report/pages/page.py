"""The report's text and tables as plain values; the template only lays them out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

from hisearch.report.data.confidence import Confidence
from hisearch.report.data.inputs import ReportInput
from hisearch.report.words.describe import NO_ROUTER, carried, sentence, used_settings
from hisearch.report.words.cautions import Caution, Verdict, may_miss, thin_margin, verdict_of
from hisearch.report.words.terms import TermLine, term_lines
from hisearch.score.quantities import HOURS_PER_MONTH, UNDEFINED, notes, percent, quantity, significant, usd
from hisearch.score.terms import REJECTED
from hisearch.search.model.deployments import describe_each, differences, stores
from hisearch.search.model.trial import Trial, metric_of
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.wording import counted, format_percent, listed


class Promise(NamedTuple):
    """A term of the SLO. chance: the probability that it holds, as text, or ""."""

    line: TermLine
    chance: str
    verdict: Verdict


class Fact(NamedTuple):
    """A key figure and what it means."""

    name: str
    value: str
    unit: str
    meaning: str


class Option(NamedTuple):
    """A runner-up. differences: (quantity, its value, change against the recommendation)."""

    number: int
    label: str
    trade: str
    differences: tuple[tuple[str, str, str], ...]


class Cell(NamedTuple):
    """A table cell; key sorts it."""

    text: str
    key: float | str


class FrontTable(NamedTuple):
    """The front, one row per trial. columns: (title, numeric); chosen marks the highlighted trial's row."""

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[bool, tuple[Cell, ...]], ...]


class Counts(NamedTuple):
    """Numbers of trials by kind."""

    trials: int
    whole: int
    slices: int
    failed: int
    feasible: int
    front: int


def verdict(data: ReportInput) -> str:
    """The recommendation in one sentence, or that there is none."""
    if data.recommendation is not None:
        chosen = sentence(data.recommendation.trial, data.model_id)
        begins = "Deploy" if data.so_far is None else "Of what has been simulated so far:"
        return f"{begins} {chosen}.{carried(data.recommendation.trial)}"
    if data.nearest_miss is None:
        return data.failure
    return f"{data.failure} The nearest miss is {sentence(data.nearest_miss, data.model_id)}."


def kind(data: ReportInput) -> str:
    """The answer's colour: ``ok``, ``unsure`` where it may miss the SLO, ``miss``."""
    if data.recommendation is None:
        return "miss"
    return "unsure" if may_miss(data.confidence) else "ok"


def counts(data: ReportInput) -> Counts:
    """Numbers of trials by kind."""
    comparable = [trial for trial in data.trials if trial.comparable]
    failed = sum(1 for trial in data.trials if trial.error)
    return Counts(
        trials=len(data.trials),
        whole=len(comparable),
        slices=len(data.trials) - len(comparable) - failed,
        failed=failed,
        feasible=sum(1 for trial in comparable if trial.feasible),
        front=len(data.front),
    )


def slo_lines(data: ReportInput) -> tuple[Promise, ...]:
    """Each term of the highlighted trial, with the probability that it holds."""
    if data.highlighted is None:
        return ()
    chances = data.confidence.terms if data.confidence is not None else {}
    return tuple(
        Promise(
            line,
            format_percent(chances[line.label]) if line.label in chances else "",
            verdict_of(line, chances.get(line.label)),
        )
        for line in term_lines(data.highlighted.slo)
    )


def key_facts(trial: Trial, confidence: Confidence | None = None) -> tuple[Fact, ...]:
    """Cost, goodput and the figures that explain them; figures that the trial lacks are left out.

    A known range is stated with the figure's meaning.
    """
    metrics = trial.metrics
    values = {key: metrics.get(key, math.nan) for key in _FACTS}
    month = metrics.get("usd_per_hour", math.nan) * HOURS_PER_MONTH
    facts = [Fact("Cost", usd(month), "per month", f"{HOURS_PER_MONTH:g} hours: accelerators, hosts, cache tiers")]
    for key, (name, show, unit, meaning) in _FACTS.items():
        if not math.isnan(values[key]):
            ends = confidence.intervals.get(key) if confidence is not None else None
            spread = f"; {show(ends[0])} to {show(ends[1])} {_with_what(confidence)}" if ends is not None else ""
            facts.append(Fact(name, show(values[key]), unit, meaning + spread))
    return tuple(fact for fact in facts if fact.value != UNDEFINED)


def _with_what(confidence: Confidence | None) -> str:
    level = confidence.level if confidence is not None else None
    return "with confidence" if level is None else f"with a probability of {format_percent(level)}"


def growth(data: ReportInput) -> tuple[Fact, ...]:
    """The largest simulated load at which every term holds, and the term that breaks next; () without loads."""
    points = sorted((point for point in data.capacity if point.terms), key=lambda point: point.load)
    held_points = list(itertools.takewhile(lambda point: all(term.holds for term in point.terms), points))
    if not held_points:
        return ()
    beyond = points[len(held_points)].load if len(held_points) < len(points) else math.inf
    reach = f"{_largest_load(data, held_points[-1].load, beyond):.3g} ×"
    if len(held_points) == len(points):
        return (Fact("Holds up to", f"≥ {reach}", "this load", "every SLO term; more was not tried"),)
    broken = points[len(held_points)]
    missed = listed([line.term for line in term_lines(broken.terms) if not line.met])
    return (Fact("Holds up to", reach, "this load", f"at {broken.load:.3g} × {missed} breaks"),)


def _largest_load(data: ReportInput, low: float, high: float) -> float:
    """The largest load between at which the search saw the recommendation hold; ``low`` without one."""
    if data.recommendation is None:
        return low
    best = data.recommendation.trial.deployment
    held_loads = (t.load for t in data.trials if t.deployment == best and t.slice_fraction == 1.0 and t.feasible)
    return max((load for load in held_loads if low < load < high), default=low)


#: Metric -> name, format, unit, meaning.
_FACTS: dict[str, tuple[str, Callable[[float], str], str, str]] = {
    "agents_per_accelerator": (
        "Agents per accelerator",
        significant,
        "",
        "of the largest population of this kind that meets the SLO, within 5 %; all other figures are those of the "
        "workload's own population",
    ),
    "usd_per_agent_hour": ("Cost of an agent", usd, "per hour", "of that largest population"),
    "usd_per_hour": ("Cost", usd, "per hour", "at the prices under Provenance"),
    "goodput_rps": (
        "Goodput",
        significant,
        "requests/s",
        "requests that meet every SLO term, over the time to the last answer: the drain after the last arrival counts",
    ),
    "attainment": ("Attainment", percent, "", "share of requests that meet every SLO term"),
    "usd_per_million_tokens": ("Cost of tokens", usd, "per million", "prompt and output, at the replayed load"),
    "hit_rate": ("Prefix-cache hit rate", percent, "", "prompt tokens that were not computed again"),
    "utilisation": (
        "Utilisation",
        percent,
        "",
        "share of the time in which a step runs, of however few requests: no measure of how much more is carried",
    ),
}


def options(data: ReportInput) -> tuple[Option, ...]:
    """The runner-ups, each with its differences from the recommendation."""
    if data.recommendation is None:
        return ()
    chosen = data.recommendation.trial
    names = [*data.objectives, *(["usd_per_hour"] if "usd_per_hour" not in data.objectives else [])]
    shown = [chosen, *(trial for trial, _ in data.recommendation.runner_ups)]
    labels = describe_each([trial.deployment for trial in shown])
    return tuple(
        Option(
            trial.number,
            label,
            trade,
            tuple(_difference(name, trial, chosen) for name in names),
        )
        for (trial, trade), label in zip(data.recommendation.runner_ups, labels[1:], strict=True)
    )


def _difference(name: str, trial: Trial, chosen: Trial) -> tuple[str, str, str]:
    shown = quantity(name)
    value, reference = trial.metrics.get(metric_of(name), math.nan), chosen.metrics.get(metric_of(name), math.nan)
    change = value / reference - 1 if reference and math.isfinite(reference) and math.isfinite(value) else math.nan
    if math.isnan(change):
        text = ""
    elif abs(change) < 0.0005:
        text = "same"
    else:
        better = (change > 0) == shown.maximised
        text = f"{'+' if change > 0 else ''}{percent(change)}, {'better' if better else 'worse'}"
    return shown.label, shown.show(value), text


class Headings(NamedTuple):
    """Headings of the answer: in the table of contents, and above it."""

    contents: str
    answer: str


def headings(data: ReportInput) -> Headings:
    """Headings of the answer; a study that has not ended has no final one."""
    if data.recommendation is not None:
        words = "Recommendation" if data.so_far is None else "Cheapest so far that meets the SLO"
        return Headings("Recommendation" if data.so_far is None else "Cheapest so far", words)
    if data.so_far is not None:
        return Headings("Nearest miss" if data.highlighted else "Nothing yet", data.failure_heading)
    return Headings("Nearest miss" if data.highlighted else "No answer", data.failure_heading)


def progress_so_far(data: ReportInput) -> str:
    """When an unfinished study began and its last simulation ended; "" for a finished study."""
    at = data.so_far
    if at is None:
        return ""
    when = f"It began at {at.begun}; "
    if at.latest:
        when += f"its last simulation ended at {at.latest}, {_age(at.age_s)} before this page was made."
    else:
        when += "no simulation has ended."
    if at.unknown:
        when += f" {counted(at.unknown, 'simulation')} cannot be shown: an earlier version did not note of what."
    return when


def _age(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3 h``, ``5 days``."""
    for unit, length in (("day", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            number = int(seconds // length)
            return counted(number, unit) if unit == "day" else f"{number} {unit}"
    return f"{seconds:.0f} s"


def front_heading(data: ReportInput) -> str:
    """Heading of the front, by whether it meets the SLO."""
    if data.recommendation is None:
        return "No front, as nothing meets the SLO" + (" so far" if data.so_far is not None else "")
    return "The front" if data.so_far is None else "The front so far"


def front_caption(data: ReportInput) -> str:
    """Caption of ``ReportInput.front``: if nothing is feasible, its deployments all miss the SLO."""
    which = counted(len(data.front), "deployment")
    if data.recommendation is None:
        return f"{which} that no other beats in every objective; all miss the SLO"
    return f"{which} on the whole trace within the SLO, which no other beats in every objective"


def front_table(data: ReportInput) -> FrontTable:
    """The front, cheapest first."""
    extra = [name for name in ("goodput", "usd_per_hour") if name not in data.objectives]
    names = [*data.objectives, *extra]
    fixed: tuple[str, ...] = ("Trial", "Stage", "Accelerators", "TP", "Replicas", "Engine", "Router", "Cache tiers")
    rejecting = any(trial.metrics[REJECTED] > 0 for trial in data.front)
    rows = sorted(data.front, key=lambda trial: (trial.metrics.get("usd_per_hour", math.inf), trial.number))
    cell_texts = [" ".join(cell.text for cell in _deployment_cells(trial)) for trial in rows]
    settings_that_differ = differences([trial.deployment for trial in rows], cell_texts)
    fixed = (*fixed, *(["Differs in"] * any(settings_that_differ)))
    titles = (*fixed, *(quantity(name).title for name in names), "Latency margin", *(["Rejected"] * rejecting))
    chosen = data.highlighted
    return FrontTable(
        tuple(
            (title, title not in ("Accelerators", "Engine", "Router", "Cache tiers", "Differs in")) for title in titles
        ),
        tuple(
            (
                chosen is not None and trial.number == chosen.number,
                _front_row(trial, [Cell(settings, settings)] * any(settings_that_differ), names, rejecting),
            )
            for trial, settings in zip(rows, settings_that_differ, strict=True)
        ),
    )


def _deployment_cells(trial: Trial) -> tuple[Cell, ...]:
    """Hardware, engines, router and cache tiers of a trial's deployment."""
    pools = trial.deployment.pools
    router = trial.deployment.router.policy if sum(p.replicas for p in pools if p.role != "decode") > 1 else NO_ROUTER
    engines = list(dict.fromkeys(ENGINE_TITLES[pool.engine.name] for pool in pools))
    return (
        Cell(
            " + ".join(f"{pool.accelerators} × {pool.accelerator}" for pool in pools),
            " ".join(f"{pool.accelerator} {pool.accelerators:06d}" for pool in pools),
        ),
        Cell(" + ".join(pool.parallelism.short.removeprefix("TP ") for pool in pools), pools[0].parallelism.ranks),
        Cell(" + ".join(str(pool.replicas) for pool in pools), sum(pool.replicas for pool in pools)),
        Cell(" + ".join(engines), " ".join(engines)),
        Cell(router, router),
        Cell(
            ", ".join(text for pool in pools for text in stores(pool)) or "none",
            sum(tier.gib for pool in pools for tier in pool.tiers),
        ),
    )


def _front_row(trial: Trial, settings_that_differ: list[Cell], names: list[str], rejecting: bool) -> tuple[Cell, ...]:
    cells = [
        Cell(str(trial.number), trial.number),
        Cell(str(trial.stage), trial.stage),
        *_deployment_cells(trial),
        *settings_that_differ,
    ]
    for name in names:
        value = trial.metrics.get(metric_of(name), math.nan)
        cells.append(Cell(quantity(name).number(value), value))
    margin = trial.worst_margin
    cells.append(Cell(percent(margin) if math.isfinite(margin) else UNDEFINED, margin))
    if rejecting:
        cells.append(Cell(percent(trial.metrics[REJECTED]), trial.metrics[REJECTED]))
    return tuple(cells)


def chosen_settings(data: ReportInput) -> tuple[tuple[str, str], ...]:
    """Every setting of the highlighted deployment that applies to it."""
    if data.highlighted is None:
        return ()
    return tuple(
        (name, f"{value:,.6g}" if isinstance(value, int | float) else value)
        for name, value in used_settings(data.highlighted.deployment).items()
    )


def cautions(data: ReportInput) -> tuple[Caution, ...]:
    """Cautions: whether the SLO holds, the highlighted terms, missing launch scripts, a search cut short.

    Without a known probability, a margin below the profile's stated error is reported.
    """
    result = []
    unsure = may_miss(data.confidence, data.run)
    thin = ""
    if data.recommendation is not None and not unsure:
        thin = thin_margin(data.recommendation.trial, data.provenance.profile.relative_error)
    if unsure:
        result.append(Caution("May miss the SLO", unsure))
    elif thin:
        result.append(Caution("Thin margin", thin))
    if data.highlighted is not None:
        noted = " ".join(f"{note}." for note in notes(data.highlighted.slo))
        if noted:
            result.append(Caution("SLO terms", noted))
    if data.formats:
        result.append(Caution("Changes the model", data.formats))
    if data.not_exported:
        text = f"{data.not_exported.removesuffix('.')}. hisearch export RUN --trial N exports another one of the front."
        result.append(Caution("No launch scripts", text))
    if data.cut_short:
        result.append(Caution("Search cut short", data.cut_short))
    return tuple(result)


def caution(data: ReportInput) -> str | None:
    """``cautions`` as one text; None without cautions."""
    return " ".join(entry.text for entry in cautions(data)) or None
