"""How sure a recommendation is and what would change it, as plain values for the report and the terminal."""

from __future__ import annotations

from typing import NamedTuple

from hisearch.report.data import ReportInput
from hisearch.report.quantities import usd
from hisearch.search.deployments import describe
from hisearch.search.trial import Trial
from hisearch.specs.wording import listed

#: Headings of what would change the answer, by kind of sentence.
HEADINGS = {
    "steps": "Step times",
    "prices": "Prices",
    "settings": "Settings",
    "load": "Load",
}

#: Why the study's own rule recommends what it does.
OF_CHOSEN = "The recommendation: see above."

RULES = {
    "cheapest": "Cheapest",
    "best_value": "Best value",
    "lowest_latency": "Lowest latency",
    "most_headroom": "Most headroom",
}


class ContenderLine(NamedTuple):
    """A row of the contenders. chosen: the recommendation, under the same few draws as the others."""

    number: int
    label: str
    price: str
    chance: str
    cheapest: str
    chosen: bool


class RuleLine(NamedTuple):
    """What a rule recommends. chosen: the recommendation."""

    title: str
    number: int
    label: str
    price: str
    reason: str
    chosen: bool


class Conclusions(NamedTuple):
    """All of it. draws: of the contenders. changes: (heading, sentences). counts: simulations, in words; or ""."""

    summary: str
    contenders: tuple[ContenderLine, ...]
    draws: int
    changes: tuple[tuple[str, tuple[str, ...]], ...]
    rules: tuple[RuleLine, ...]
    within: str
    counts: str


def conclusions(data: ReportInput) -> Conclusions | None:
    """What ``confidence.json`` says beyond the terms and intervals; None where it says nothing of that.

    Raises:
        KeyError: it names a trial that is not the study's.
    """
    found, chosen = data.confidence, data.recommendation
    if found is None or chosen is None or not (found.summary or found.rules or found.sentences):
        return None
    trials = {trial.number: trial for trial in data.trials}
    contenders = tuple(
        ContenderLine(
            one.trial, *_named(trials[one.trial]), f"{one.chance:.0%}", f"{one.cheapest:.0%}",
            one.trial == chosen.trial.number,
        )
        for one in found.contenders
    )  # fmt: skip
    rules = tuple(
        RuleLine(
            RULES.get(one.rule, one.rule), one.trial, *_named(trials[one.trial]),
            OF_CHOSEN if one.rule == chosen.rule else f"{one.reason} {one.against_baseline}".strip(),
            one.rule == chosen.rule,
        )
        for one in found.rules
    )  # fmt: skip
    counts = listed([f"{count:,} for {what}" for what, count in found.simulations.items()])
    return Conclusions(
        found.summary,
        contenders,
        found.contenders[0].draws if found.contenders else 0,
        tuple((HEADINGS.get(kind, kind), texts) for kind, texts in found.sentences.items()),
        rules,
        "" if found.rules_within_usd is None else f"{usd(found.rules_within_usd)} per hour",
        counts,
    )


def _named(trial: Trial) -> tuple[str, str]:
    return describe(trial.deployment), usd(trial.metrics["usd_per_hour"])
