"""The report's tables and figures as plain values; the templates word them and lay them out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from hisearch.report.data.confidence import Chance, Confidence
from hisearch.report.data.inputs import ReportInput
from hisearch.report.words.cautions import PROVISIONAL, may_miss, shortcoming, thin_margin
from hisearch.report.words.chances import format_chance
from hisearch.report.words.settings import NO_ROUTER, format_setting, in_front, used_settings
from hisearch.report.words.templating import text
from hisearch.report.words.terms import term_lines
from hisearch.score.metrics import front_end_note, joules_per_generated_token
from hisearch.score.quantities import HOURS_PER_MONTH, UNDEFINED, notes, percent, quantity, significant, usd
from hisearch.score.terms import REJECTED
from hisearch.search.model.demand import PEAK_WINDOW_S, Rates
from hisearch.search.model.deployments import differences, stores
from hisearch.search.model.trial import Trial, metric_of, price_of
from hisearch.search.select.speculation import brief_speculation, describe_speculation
from hisearch.specs.base import ENGINE_TITLES
from hisearch.specs.studies.study import OF_ENERGY
from hisearch.specs.wording import capitalised, counted, format_percent, listed


class Fact(NamedTuple):
    """A key figure and what it means."""

    name: str
    value: str
    unit: str
    meaning: str


class Cell(NamedTuple):
    """A table cell; key sorts it."""

    text: str
    key: float | str


class FrontTable(NamedTuple):
    """The front, one row per trial. columns: (title, numeric); chosen marks the highlighted trial's row."""

    columns: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[bool, tuple[Cell, ...]], ...]


class Caution(NamedTuple):
    """A caution: a short title, sentences, the same in one line, and the tab of the report that explains it."""

    title: str
    text: str
    brief: str = ""
    tab: str = "provenance"


def kind(data: ReportInput) -> str:
    """The answer's colour: ``ok``, ``unsure`` where it may miss the SLO, ``miss``."""
    if data.recommendation is None:
        return "miss"
    return "unsure" if data.interrupted or may_miss(data.confidence) or shortcoming(data.confidence) else "ok"


def answer_heading(data: ReportInput) -> str:
    """The heading over a deployment that was found: recommended, or the nearest, with what it lacks."""
    if data.so_far:
        return "Cheapest so far that meets the SLO"
    if data.interrupted:
        return f"{PROVISIONAL}: best so far"
    lacks = shortcoming(data.confidence)
    return f"Nearest that was found: it {lacks}" if lacks else "Recommendation"


def funnel(data: ReportInput) -> tuple[tuple[str, int, float], ...]:
    """From all trials to the front: what they are, how many, and their share of all."""
    numbers = counts(data)
    on_front = len(data.front) if data.recommendation is not None else 0
    rows = (
        ("Trials", len(data.trials)),
        ("On the whole trace", numbers["whole"]),
        ("Meet the SLO", numbers["feasible"]),
    )
    most = max(len(data.trials), 1)
    return tuple((name, count, count / most) for name, count in (*rows, ("On the front", on_front)))


def counts(data: ReportInput) -> Mapping[str, int]:
    """Numbers of trials: of the ``whole`` trace, ``feasible`` among them, of ``slices`` or other loads, ``failed``."""
    kinds = Counter("failed" if t.error else "whole" if t.comparable else "slices" for t in data.trials)
    kinds["feasible"] = sum(1 for trial in data.trials if trial.comparable and trial.feasible)
    return kinds


def key_facts(trial: Trial, confidence: Confidence | None = None) -> tuple[Fact, ...]:
    """Cost, goodput and the figures that explain them; figures that the trial lacks are left out.

    A known range is stated with the figure's meaning.
    """
    known = confidence or Confidence()
    sure = "confidence" if known.level is None else f"a probability of {format_percent(known.level)}"
    month = trial.metrics.get("usd_per_hour", math.nan) * HOURS_PER_MONTH
    facts = [Fact("Cost", usd(month), "per month", f"{HOURS_PER_MONTH:g} hours: accelerators, hosts, cache tiers")]
    for key, (name, show, unit, meaning) in _FACTS.items():
        ends = known.intervals.get(key)
        spread = f"; {show(ends[0])} to {show(ends[1])} with {sure}" if ends is not None else ""
        facts.append(Fact(name, show(trial.metrics.get(key, math.nan)), unit, meaning + spread))
    return tuple(fact for fact in facts if fact.value != UNDEFINED)


class Load(NamedTuple):
    """A load as a key figure: its meaning in lines."""

    name: str
    value: str
    unit: str
    lines: tuple[str, ...]


def growth(data: ReportInput) -> Load | None:
    """The largest load simulated at which every term holds, and what breaks next, else the load; None without any."""
    known, rates = data.headroom, data.rates
    if known is None or known.load <= 0.0:
        return None if rates is None else Load("Load", significant(rates.mean_rps), "requests/s", (_busiest(rates),))
    if math.isinf(known.infeasible_load):
        at_least, ends = "≥ ", "every SLO term; more was not tried"
    else:
        missed = listed([line.term for line in term_lines(data.breaks)]) or "the SLO"
        at_least, ends = "", f"at {known.infeasible_load:.3g} × {missed} breaks"
    name = "As simulated holds up to"
    if rates is None:
        return Load(name, f"{at_least}{known.load:.3g} ×", "this load", (ends,))
    largest = f"{at_least}{significant(known.load * rates.mean_rps)}"
    now = f"{known.load:.3g} × this load, which is {significant(rates.mean_rps)} {_busiest(rates)}"
    return Load(name, largest, "requests/s", (now, ends))


def load_fact(data: ReportInput) -> tuple[Fact, ...]:
    """``growth`` among the key figures; () without any."""
    load = growth(data)
    return () if load is None else (Fact(load.name, load.value, load.unit, "; ".join(load.lines)),)


def _busiest(rates: Rates) -> str:
    return f"on average, {significant(rates.peak_rps)} in the busiest {PEAK_WINDOW_S:g} s"


def load_words(data: ReportInput) -> str:
    """``18.2 requests/s on average, 21.4 in the busiest 60 s. It holds up to 1.2 times that.``; "" where unknown."""
    if data.rates is None:
        return ""
    words = f"{significant(data.rates.mean_rps)} requests/s {_busiest(data.rates)}."
    known = data.headroom
    if known is None or known.load <= 0.0:
        return words
    beyond = " at least" if math.isinf(known.infeasible_load) else ""
    holds = f"{significant(known.load * data.rates.mean_rps)} requests/s{beyond} ({known.load:.3g} × this load)"
    return f"{words} As simulated, the SLO holds up to {holds}."


def energy_words(data: ReportInput) -> tuple[str, ...]:
    """``3.21 J per generated token`` and what explains it; () unless the rule or an objective is of energy."""
    trial, best = data.highlighted, data.recommendation
    asked = OF_ENERGY.intersection(data.objectives) or (best is not None and best.rule == "least_energy")
    if trial is None or not asked or not math.isfinite(joules := joules_per_generated_token(trial.metrics)):
        return ()
    return (
        f"{significant(joules)} J per generated token",
        f"{significant(trial.metrics['joules_per_token'])} J per token, prompts counted",
        f"{significant(trial.metrics['mean_w'])} W on average",
    )


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
}


def front_table(data: ReportInput) -> FrontTable:
    """The front, cheapest first: price, latencies, goodput and probability, then settings."""
    rows = sorted(data.front, key=lambda trial: (trial.metrics.get("usd_per_hour", math.inf), trial.number))
    chosen = data.highlighted.number if data.highlighted is not None else None
    columns: dict[str, tuple[bool, Callable[[Trial], Cell]]] = {
        "Trial": (True, lambda trial: Cell(str(trial.number), trial.number))
    }
    for name in dict.fromkeys(["usd_per_hour", *(o for o in data.objectives if o != "goodput"), "goodput"]):
        columns[quantity(name).title] = True, partial(_figure, name)
    columns["Latency margin"] = True, lambda trial: _margin(trial.worst_margin)
    confidence = data.confidence
    if confidence is not None and any(confidence.chance_of(trial.number, chosen) for trial in rows):
        columns["Chance to hold"] = True, lambda trial: _chance(confidence.chance_of(trial.number, chosen))
    if any(trial.metrics[REJECTED] > 0 for trial in data.front):
        columns["Rejected"] = True, lambda trial: Cell(percent(trial.metrics[REJECTED]), trial.metrics[REJECTED])
    alike = [" ".join(cell(trial).text for _, cell in _SETTING_COLUMNS.values()) for trial in rows]
    settings_that_differ = dict(
        zip((trial.number for trial in rows), differences([trial.deployment for trial in rows], alike), strict=True)
    )
    columns |= {
        title: (numeric, cell)
        for title, (numeric, cell) in _SETTING_COLUMNS.items()
        if title not in _ODD or len({cell(trial).text for trial in rows}) > 1
    }
    if any(settings_that_differ.values()):
        columns["Differs in"] = False, lambda trial: Cell(*[settings_that_differ[trial.number]] * 2)
    return FrontTable(
        tuple((title, numeric) for title, (numeric, _) in columns.items()),
        tuple((trial.number == chosen, tuple(cell(trial) for _, cell in columns.values())) for trial in rows),
    )


def _chance(chance: Chance | None) -> Cell:
    return Cell(format_chance(chance) or UNDEFINED, -1.0 if chance is None else chance.value)


def _figure(name: str, trial: Trial) -> Cell:
    value = trial.metrics.get(metric_of(name), math.nan)
    return Cell(quantity(name).number(value), value)


def _margin(margin: float) -> Cell:
    return Cell(percent(margin) if math.isfinite(margin) else UNDEFINED, margin)


def _accelerators(trial: Trial) -> Cell:
    pools = trial.deployment.pools
    return Cell(
        " + ".join(f"{pool.accelerators} × {pool.accelerator}" for pool in pools),
        " ".join(f"{pool.accelerator} {pool.accelerators:06d}" for pool in pools),
    )


def _parallelism(trial: Trial) -> Cell:
    pools = trial.deployment.pools
    return Cell(" + ".join(p.parallelism.short.removeprefix("TP ") for p in pools), pools[0].parallelism.ranks)


def _replicas(trial: Trial) -> Cell:
    counts_by_pool = [pool.replicas for pool in trial.deployment.pools]
    return Cell(" + ".join(map(str, counts_by_pool)), sum(counts_by_pool))


def _engines(trial: Trial) -> Cell:
    engines = dict.fromkeys(ENGINE_TITLES[pool.engine.name] for pool in trial.deployment.pools)
    return Cell(" + ".join(engines), " ".join(engines))


def _router(trial: Trial) -> Cell:
    return Cell(*[trial.deployment.router.policy if in_front(trial.deployment) > 1 else NO_ROUTER] * 2)


def _tiers(trial: Trial) -> Cell:
    pools = trial.deployment.pools
    names = ", ".join(store for pool in pools for store in stores(pool))
    return Cell(names or "none", sum(tier.gib for pool in pools for tier in pool.tiers))


#: Columns of settings: title -> whether numeric, and the cell of a trial.
_SETTING_COLUMNS: dict[str, tuple[bool, Callable[[Trial], Cell]]] = {
    "Accelerators": (False, _accelerators),
    "TP": (True, _parallelism),
    "Replicas": (True, _replicas),
    "Engine": (False, _engines),
    "Router": (False, _router),
    "Cache tiers": (False, _tiers),
}
#: Of these, those that are left out where all deployments are alike in them.
_ODD = frozenset({"Engine", "Router", "Cache tiers"})


def chosen_settings(data: ReportInput) -> dict[str, str]:
    """Every setting of the highlighted deployment that applies to it."""
    chosen = used_settings(data.highlighted.deployment) if data.highlighted is not None else {}
    return {name: format_setting(value) for name, value in chosen.items()}


def _likely(data: ReportInput, trial: Trial) -> str:
    """`` (22 % likely to meet the SLO)``, as far as it is known of a deployment beside the recommended one."""
    best = data.recommendation.trial.number if data.recommendation is not None else None
    chance = data.confidence.chance_of(trial.number, best) if data.confidence is not None else None
    known = f"{format_chance(chance)} likely to meet the SLO" if chance is not None else "as simulated, without draws"
    return f" ({known})"


def cautions(data: ReportInput) -> tuple[Caution, ...]:
    """Cautions: whether the SLO holds, the highlighted terms, missing launch scripts, a search cut short.

    Without a known probability, a margin below the profile's stated error is reported.
    """
    unsure, best = may_miss(data.confidence, data.run), data.recommendation
    error = data.provenance.profile.relative_error
    thin = thin_margin(best.trial, error) if best is not None and not unsure else ""
    remarks = notes(data.highlighted.slo if data.highlighted is not None else ())
    busy = front_end_note(data.highlighted.metrics) if data.highlighted is not None else ""
    short = data.closeup.too_short if data.closeup is not None else ""
    drafts = describe_speculation(data.highlighted, data.trials, partial(_likely, data))
    exported = data.not_exported and text("report", "not_exported", data.not_exported.removesuffix("."))
    candidates = (
        *(
            Caution("Workload and deployment differ", f"{capitalised(caveat)}.", caveat, "why")
            for caveat in data.caveats
        ),
        Caution(
            "May miss the SLO", unsure, unsure and text("cautions", "brief_chance", data.confidence), "sensitivity"
        ),
        Caution("Too few requests", short, short.removesuffix("."), "why"),
        Caution("Busy front end", f"{capitalised(busy)}." if busy else "", busy, "why"),
        Caution("Thin margin", thin, text("cautions", "brief_margin", error), "sensitivity"),
        Caution("SLO terms", " ".join(f"{note}." for note in remarks), "; ".join(remarks[:1]), "why"),
        Caution("Drafted tokens", drafts, brief_speculation(data.highlighted) or drafts, "trades"),
        Caution("Changes the model", data.formats, data.formats_brief or data.formats, "trades"),
        Caution("No launch scripts", exported, "it cannot be written as launch commands", "why"),
        availability(data),
        idle_accelerators(data),
        Caution(
            "Search cut short", data.cut_short, (data.cut_short_brief or data.cut_short).removesuffix("."), "provenance"
        ),
    )
    return tuple(entry for entry in candidates if entry.text)


def availability(data: ReportInput) -> Caution:
    """A single replica that nothing stands in for, or what is away in every figure; without text where neither is."""
    if data.replicas_down:
        down = f"with {counted(data.replicas_down, 'replica')} of each pool away, as spec.availability asks"
        return Caution("Availability", f"All figures are {down}; the price counts them.", f"figures are {down}", "why")
    alone = data.recommendation is not None and any(p.replicas == 1 for p in data.recommendation.trial.deployment.pools)
    outage = "nothing answers while it is updated, drained or restarted"
    if not alone:
        return Caution("Single replica", "")
    if data.spare is None:
        return Caution("Single replica", f"There is one replica: {outage}.", outage, "trades")
    costs = usd(data.spare.usd_per_hour)
    return Caution(
        "Single replica",
        f"There is one replica: {outage}. The cheapest with a spare costs {costs} an hour. A study asks for it with "
        "spec.availability.replicas_down: 1.",
        f"{outage}; with a spare it costs {costs} an hour",
        "trades",
    )


def idle_accelerators(data: ReportInput) -> Caution:
    """Accelerators that the highlighted deployment leaves idle on its hosts, and their cost; without text if none."""
    whole, trial = data.whole_hosts, data.highlighted
    if whole is None or trial is None or whole.slots == whole.used:
        return Caution("Idle accelerators", "")
    hosts = "host" if whole.hosts == 1 else f"{whole.hosts:,} hosts"
    idle = f"{whole.slots - whole.used} of the {whole.slots} accelerators of its {hosts}"
    costs = f"{usd(price_of(trial) + whole.idle_usd_per_hour)} an hour"
    return Caution(
        "Idle accelerators",
        f"It leaves {idle} idle. Its price is that of the {whole.used} in use; where whole hosts are paid for, it is "
        f"{costs}.",
        f"{idle}; where whole hosts are paid for, it costs {costs}",
        "trades",
    )


def caution(data: ReportInput) -> str | None:
    """``cautions`` as one text; None without cautions."""
    return " ".join(entry.text for entry in cautions(data)) or None
