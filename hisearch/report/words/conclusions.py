"""A recommendation's confidence and what would change it, as plain values for the report and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hisearch.report.data.inputs import ReportInput
from hisearch.score.quantities import usd
from hisearch.search.model.deployments import describe_each
from hisearch.search.model.trial import Trial
from hisearch.specs.wording import counted, format_percent, listed

#: Headings of the sentences on what would change the answer, by kind.
HEADINGS = {
    "steps": "Step times",
    "prices": "Prices",
    "settings": "Settings",
    "load": "Load",
}

#: Reason shown for the study's own rule.
OF_CHOSEN = "The recommendation: see above."

RULES = {
    "cheapest": "Cheapest",
    "best_value": "Best value",
    "lowest_latency": "Lowest latency",
    "most_headroom": "Most headroom",
}


class CandidateLine(NamedTuple):
    """A row of the candidates. chosen: the recommendation, under the same few draws as the others.

    chance: in how many draws it meets the SLO; tells: the confidence interval of its probability, or "".
    """

    number: int
    label: str
    price: str
    chance: str
    tells: str
    chosen: bool


class RuleLine(NamedTuple):
    """A rule's recommendation. chosen: whether it is the study's."""

    title: str
    number: int
    label: str
    price: str
    reason: str
    chosen: bool


class Conclusions(NamedTuple):
    """All conclusions.

    draws: of the candidates; all_draws: of the recommendation, 0 where not known. changes: (heading, sentences).
    within: the price limit of rules that need one, as text. counts: simulations, as text; or "".
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
    """Conclusions of ``confidence.json`` beyond terms and intervals; None without any.

    Raises:
        KeyError: it names a trial that the study does not have.
    """
    confidence, chosen = data.confidence, data.recommendation
    if confidence is None or chosen is None or not (confidence.summary or confidence.rules or confidence.sentences):
        return None
    shown = {row.trial for row in confidence.candidates} | {row.trial for row in confidence.rules}
    named = _named([trial for trial in data.trials if trial.number in shown])
    candidates = tuple(
        CandidateLine(
            row.trial, *named[row.trial], _of_draws(row.chance, row.draws), _between(row.chance_range),
            row.trial == chosen.trial.number,
        )
        for row in confidence.candidates
    )  # fmt: skip
    rules = tuple(
        RuleLine(
            RULES.get(row.rule, row.rule), row.trial, *named[row.trial],
            OF_CHOSEN if row.rule == chosen.rule else f"{row.reason} {row.against_baseline}".strip(),
            row.rule == chosen.rule,
        )
        for row in confidence.rules
    )  # fmt: skip
    counts = listed([f"{count:,} for {purpose}" for purpose, count in confidence.simulations.items()])
    return Conclusions(
        confidence.summary,
        candidates,
        confidence.candidates[0].draws if confidence.candidates else 0,
        confidence.draws,
        tuple((HEADINGS.get(kind, kind), texts) for kind, texts in confidence.sentences.items()),
        rules,
        confidence.rules_within,
        counts,
    )


def _named(trials: Sequence[Trial]) -> dict[int, tuple[str, str]]:
    """By number: a description that distinguishes the deployment from the others, and its price."""
    lines = describe_each([trial.deployment for trial in trials])
    return {t.number: (line, usd(t.metrics["usd_per_hour"])) for t, line in zip(trials, lines, strict=True)}


def _of_draws(share: float, draws: int) -> str:
    """A count, not a share: the recommendation's own probability comes from more draws than these."""
    return f"{round(share * draws):,} of {draws:,}"


def _between(ends: tuple[float, float] | None) -> str:
    return "" if ends is None else f"{format_percent(ends[0]).removesuffix(' %')} to {format_percent(ends[1])}"


def few_draws(conclusion: Conclusions) -> str:
    """A caution about the candidates' counts, which come from few draws."""
    text = (
        f"The same {counted(conclusion.draws, 'draw')} for each of the candidates. So few say little, as the range "
        "beside the count shows"
    )
    return text + (
        f"; the probability above is from {conclusion.all_draws:,}" if conclusion.all_draws > conclusion.draws else ""
    )
