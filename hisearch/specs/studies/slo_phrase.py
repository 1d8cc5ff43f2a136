"""SLOs written as a phrase: ``ttft p95 < 1s, tpot p95 < 50ms, rejected < 1%``.

Grammar
    phrase    term, then any number of ``,`` ``;`` or ``and`` with a further term
    term      metric percentile under bound, or percentile metric under bound, or ``rejected`` under share
    class     behind a bound: ``for priority 0``, ``for tenant 3``: of these requests alone
    metric    ``ttft``, ``ttfo``, ``tpot``, ``e2e``; also ``ttft_p95`` as one word
    percentile  ``p50`` to ``p99.9``, any above 0 and up to 100; ``median`` is p50
    under     ``<``, ``<=``, ``≤``, ``under``, ``below``: all of them mean at most
    bound     a number and ``s``, ``ms``, ``us`` or ``m`` (minutes)
    share     a number and ``%``, or a number below 1
"""

from __future__ import annotations

import math
import re

from hisearch.specs.phrases import Phrase, Word
from hisearch.specs.studies.slo import LatencyMetric, SloSpec, SloTerm

_PATTERN = re.compile(
    r"(?P<separator>,|;|and\b|&&?)"
    r"|(?P<under><=|<|≤|under\b|below\b)"
    r"|(?P<metric>(?:ttft|ttfo|tpot|e2e)(?![a-z0-9]))[_-]?"
    r"|(?P<unbounded>(?:itl|mean|avg|average)(?![a-z0-9]))[_-]?"
    r"|(?P<rejected>rejected\b)"
    r"|(?P<of>(?:for|of)\b)"
    r"|(?P<class>(?:priority|tenant)\b)"
    r"|(?P<percentile>p\d+(?:\.\d+)?(?![\w.])|median\b)"
    r"|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
    r"|(?P<unit>(?:ms|us|µs|μs|s|min|m|seconds?|minutes?)\b)"
    r"|(?P<percent>%)",
    re.IGNORECASE,
)

_UNIT_S = {
    "s": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
}  # fmt: skip

_LATENCY = "ttft, ttfo, tpot or e2e"
_TERM = "ttft, ttfo, tpot, e2e or rejected"
_PERCENTILE = "a percentile from p50 to p99.9, or median"
_UNDER = "<, <= or under"

#: What an SLO does not bound -> what to write instead.
_INSTEAD = {
    "itl": f"{_LATENCY} (an SLO bounds the mean time between a request's tokens: tpot)",
    "mean": f"{_PERCENTILE} (an SLO bounds percentiles, not means)",
}


def parse_slo(phrase: str) -> SloSpec:
    """The SLO that a phrase states; the module has the grammar.

    Raises:
        PhraseError: marks the place and says what was expected.
    """
    reader = Phrase(phrase, _PATTERN)
    terms: dict[str, SloTerm] = {}
    rejected: float | None = None
    while True:
        start = reader.word
        if reader.take_if("rejected"):
            if rejected is not None:
                raise reader.error("each term once", start)
            rejected = _share(reader)
        else:
            term = _term(reader)
            if term.label in terms:
                raise reader.error("each metric, percentile and class once", start)
            terms[term.label] = term
        if reader.word.kind == "end":
            break
        reader.expect("a comma, 'and' or the end", "separator")
    if not terms:
        raise reader.error(f"a latency too: {_LATENCY}")
    return SloSpec(terms=list(terms.values()), max_rejected_fraction=rejected or 0.0)


def is_phrase(text: str) -> bool:
    """Whether a text is meant as a phrase, and not as a name or path: it has a blank or a comparison, and no slash."""
    return (
        "/" not in text
        and not text.endswith((".yaml", ".yml", ".json"))
        and any(mark in text.strip() for mark in ("<", "≤", " ", "\t", "\n"))
    )


def _term(reader: Phrase) -> SloTerm:
    percent: float | None = None
    if (word := reader.take_if("percentile")) is not None:
        percent = _percent(reader, word)
    _refuse_unbounded(reader)
    metric = reader.expect(_TERM if percent is None else _LATENCY, "metric")
    if percent is None:
        _refuse_unbounded(reader)
        percent = _percent(reader, reader.expect(_PERCENTILE, "percentile"))
    reader.expect(_UNDER, "under")
    number = reader.expect("a bound such as 1s or 50ms", "number")
    unit = reader.expect("a unit: s, ms, us or m (minutes)", "unit")
    at_most_s = float(number.text) * _UNIT_S[unit.text.lower()]
    if not (math.isfinite(at_most_s) and at_most_s > 0):
        raise reader.error("a bound above 0", number)
    kind = _class(reader)
    return SloTerm(metric=_metric(metric.text), percentile=percent, at_most_s=_shortest(at_most_s), **kind)


def _class(reader: Phrase) -> dict[str, int]:
    """The class of requests that a term is about; {} where it names none."""
    if not reader.take_if("of"):
        return {}
    name = reader.expect("priority or tenant", "class")
    number = reader.expect("its number in the trace", "number")
    if not number.text.isdigit():
        raise reader.error("a whole number", number)
    return {name.text.lower(): int(number.text)}


def _metric(text: str) -> LatencyMetric:
    names: dict[str, LatencyMetric] = {"ttft": "ttft_s", "ttfo": "ttfo_s", "tpot": "tpot_s", "e2e": "e2e_s"}
    return names[text.lower().rstrip("_-")]


def _refuse_unbounded(reader: Phrase) -> None:
    if reader.word.kind == "unbounded":
        name = reader.word.text.lower().rstrip("_-")
        raise reader.error(_INSTEAD["itl" if name == "itl" else "mean"])


def _percent(reader: Phrase, word: Word) -> float:
    percent = 50.0 if word.text.lower() == "median" else float(word.text[1:])
    if not 0.0 < percent <= 100.0:
        raise reader.error("a percentile above 0 and up to 100", word)
    return percent


def _share(reader: Phrase) -> float:
    reader.expect(_UNDER, "under")
    number = reader.expect("a share such as 1%", "number")
    share = float(number.text) / (100.0 if reader.take_if("percent") else 1.0)
    if not 0.0 <= share < 1.0:
        raise reader.error("a share below 100 %", number)
    return _shortest(share)


def _shortest(value: float) -> float:
    """Without the last bits of a product: 50 ms is 0.05 s."""
    return float(f"{value:.15g}")
