"""Token counts written as a phrase: ``2000``, ``2000 exactly``, ``p50=1500,p99=8000``, ``mean=1800,p99=6000``.

Grammar
    phrase  number: a lognormal distribution with this mean and a given spread
            number ``exactly``: each request has this many
            percentile ``=`` number: a lognormal distribution with this percentile and the given spread
            two of these, with a comma or blank between them: the lognormal distribution through both
            ``mean`` ``=`` number, alone or with a percentile above p50: the lognormal distribution with both
"""

from __future__ import annotations

import math
import re
from statistics import NormalDist

from hisearch.specs.phrases import Phrase, Word
from hisearch.specs.workloads.distributions import LengthSpec

_PATTERN = re.compile(
    r"(?P<exactly>exactly\b)"
    r"|(?P<mean>mean\b)"
    r"|(?P<percentile>p\d+(?:\.\d+)?(?![\w.])|median\b)"
    r"|(?P<number>\d+(?:\.\d*)?(?:e\+?\d+)?(?![\w]))"
    r"|(?P<equals>=)"
    r"|(?P<separator>,)",
    re.IGNORECASE,
)

_TOKENS = "a number of tokens such as 2000"


def parse_lengths(phrase: str, spread: float) -> LengthSpec:
    """The distribution that a phrase states; the module has the grammar.

    Args:
        phrase: the phrase.
        spread: standard deviation of ln(tokens), where the phrase does not state one; 0: every request is alike.

    Raises:
        PhraseError: marks the place and says what was expected.
    """
    reader = Phrase(phrase, _PATTERN)
    if reader.take_if("exactly"):
        tokens = _tokens(reader)
        _end(reader)
        return _constant(tokens)
    if reader.word.kind in ("mean", "percentile"):
        return _through(reader, spread)
    tokens = _tokens(
        reader, "a number of tokens such as 2000, or percentiles such as p50=1500,p99=8000 or mean=1800,p99=6000"
    )
    if reader.take_if("exactly"):
        _end(reader)
        return _constant(tokens)
    _end(reader, "'exactly' or the end (numbers have no comma)")
    return _of_mean(tokens, spread)


def mean_tokens(lengths: LengthSpec) -> float:
    """Mean of a distribution that ``parse_lengths`` gives."""
    if lengths.distribution == "constant":
        return lengths.scale_tokens or 0.0
    return math.exp((lengths.mean_log or 0.0) + (lengths.sigma_log or 0.0) ** 2 / 2.0)


def _through(reader: Phrase, spread: float) -> LengthSpec:
    """The mean or a percentile with the given spread, two percentiles, or the mean and a percentile."""
    knots: list[tuple[float, float]] = []
    mean: float | None = None
    last_word = reader.word
    while True:
        is_mean = mean is None and reader.take_if("mean") is not None
        percent = 0.0 if is_mean else _percent(reader, [known for known, _ in knots])
        reader.expect("=", "equals")
        number = reader.word
        tokens = _tokens(reader)
        if is_mean:
            mean = tokens
        else:
            knots.append((percent, tokens))
            last_word = number
        if mean is not None and knots:
            _end(reader, "the end (the mean and a percentile are enough)")
            return _with_mean(reader, mean, knots[0], last_word)
        if len(knots) == 2:
            first, last = sorted(knots)
            if first[1] > last[1]:
                raise reader.error(f"tokens that do not fall from p{first[0]:g} to p{last[0]:g}", number)
            _end(reader, "the end (two percentiles are enough)")
            break
        reader.take_if("separator")
        if reader.word.kind == "end":
            break
    if mean is not None:
        return _of_mean(mean, spread)
    scores = [_score(percent) for percent, _ in knots]
    logs = [math.log(tokens) for _, tokens in knots]
    sigma = spread if len(knots) == 1 else (logs[1] - logs[0]) / (scores[1] - scores[0])
    return _lognormal(logs[0] - sigma * scores[0], sigma)


def _percent(reader: Phrase, known: list[float]) -> float:
    word = reader.expect("a percentile such as p50, or mean, each once", "percentile")
    percent = 50.0 if word.text.lower() == "median" else float(word.text[1:])
    if not 0.0 < percent < 100.0 or percent in known:
        raise reader.error("two different percentiles above p0 and below p100", word)
    return percent


def _with_mean(reader: Phrase, mean: float, knot: tuple[float, float], at: Word) -> LengthSpec:
    """The lognormal distribution with a mean and a percentile, of two such the one that spreads less.

    at: the percentile's tokens. Notation: m, s mean and standard deviation of ln(tokens); z the percentile's score; q
    its tokens. ln(mean) = m + s^2 / 2 and ln(q) = m + z s, hence ln(q / mean) = z s - s^2 / 2.
    """
    percent, tokens = knot
    if percent <= 50.0:
        raise reader.error("beside the mean a percentile above p50", at)
    score = _score(percent)
    most = mean * math.exp(score**2 / 2.0)
    if not mean <= tokens <= most:
        bounds = f"from the mean, {mean:,.0f}, to {most:,.0f} tokens at p{percent:g}"
        raise reader.error(f"{bounds}, as a lognormal distribution has (or two percentiles)", at)
    sigma = score - math.sqrt(max(score**2 - 2.0 * math.log(tokens / mean), 0.0))
    return _of_mean(mean, sigma)


def _score(percent: float) -> float:
    return NormalDist().inv_cdf(percent / 100.0)


def _tokens(reader: Phrase, expected: str = _TOKENS) -> float:
    number = reader.expect(expected, "number")
    tokens = float(number.text)
    if not (math.isfinite(tokens) and tokens >= 1.0):
        raise reader.error("1 token or more", number)
    return tokens


def _end(reader: Phrase, expected: str = "the end") -> None:
    reader.expect(expected, "end")


def _of_mean(tokens: float, sigma: float) -> LengthSpec:
    return _constant(tokens) if sigma == 0.0 else _lognormal(math.log(tokens) - sigma**2 / 2.0, sigma)


def _constant(tokens: float) -> LengthSpec:
    return LengthSpec(distribution="constant", scale_tokens=tokens)


def _lognormal(mean_log: float, sigma_log: float) -> LengthSpec:
    return LengthSpec(distribution="lognormal", mean_log=round(mean_log, 12), sigma_log=round(sigma_log, 12))
