"""How sure a recommendation is and what would change it, as plain values for the report and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hisearch.report.data.inputs import ReportInput
from hisearch.score.quantities import usd
from hisearch.search.model.deployments import describe_each
from hisearch.search.model.trial import Trial
from hisearch.specs.wording import counted, in_percent, listed

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


class CandidateLine(NamedTuple):
    """A row of the contenders. chosen: the recommendation, under the same few draws as the others.

    chance: in how many draws it meets the SLO; tells: what that says of its probability, "" where that is not known.
    """

    number: int
    label: str
    price: str
    chance: str
    tells: str
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
    """All of it.

    draws: of the contenders; all_draws: of the recommendation, 0 where not known. changes: (heading, sentences).
    within: the price of rules that need one, in words. counts: simulations, in words; or "".
    """

    summary: str
    candidates: tuple[CandidateLine, ...]
    draws: int
    all_draws: int
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
    shown = {one.trial for one in found.candidates} | {one.trial for one in found.rules}
    named = _named([trial for trial in data.trials if trial.number in shown])
    candidates = tuple(
        CandidateLine(
            one.trial, *named[one.trial], _of_draws(one.chance, one.draws), _between(one.chance_range),
            one.trial == chosen.trial.number,
        )
        for one in found.candidates
    )  # fmt: skip
    rules = tuple(
        RuleLine(
            RULES.get(one.rule, one.rule), one.trial, *named[one.trial],
            OF_CHOSEN if one.rule == chosen.rule else f"{one.reason} {one.against_baseline}".strip(),
            one.rule == chosen.rule,
        )
        for one in found.rules
    )  # fmt: skip
    counts = listed([f"{count:,} for {what}" for what, count in found.simulations.items()])
    return Conclusions(
        found.summary,
        candidates,
        found.candidates[0].draws if found.candidates else 0,
        found.draws,
        tuple((HEADINGS.get(kind, kind), texts) for kind, texts in found.sentences.items()),
        rules,
        found.rules_within,
        counts,
    )


def _named(trials: Sequence[Trial]) -> dict[int, tuple[str, str]]:
    """By number: what it is, told apart from the others, and what it costs."""
    lines = describe_each([trial.deployment for trial in trials])
    return {t.number: (line, usd(t.metrics["usd_per_hour"])) for t, line in zip(trials, lines, strict=True)}


def _of_draws(share: float, draws: int) -> str:
    """A count, not a share: the recommendation's own probability comes from more draws than these."""
    return f"{round(share * draws):,} of {draws:,}"


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{in_percent(ends[0]).removesuffix(' %')} to {in_percent(ends[1])}"


def few_draws(found: Conclusions) -> str:
    """What the counts of the contenders are good for."""
    text = (
        f"The same {counted(found.draws, 'draw')} for each of the contenders: so few say little, as the range beside "
        "the count shows"
    )
    return text + (f"; the probability above is from {found.all_draws:,}" if found.all_draws > found.draws else "")
