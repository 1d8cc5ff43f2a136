"""SLOs and lengths as phrases: what they mean, and where an error points."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.specs.documents.resolve import load_study
from hisearch.specs.errors import SpecError
from hisearch.specs.phrases import PhraseError
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.studies.slo_phrase import is_phrase, parse_slo
from hisearch.specs.workloads.length_phrase import mean_tokens, parse_lengths
from hisearch.traces.sampling import draw_lengths

TERMS = st.builds(
    SloTerm,
    metric=st.sampled_from(["ttft_s", "tpot_s", "e2e_s"]),
    percentile=st.one_of(st.integers(1, 100).map(float), st.sampled_from([50.5, 97.5, 99.9, 99.99])),
    at_most_s=st.one_of(st.floats(1e-6, 1e4), st.integers(1, 600).map(float)).map(lambda value: float(f"{value:.15g}")),
)
#: With a class, as a phrase can name one.
CLASSED = st.tuples(TERMS, st.sampled_from([{}, {"priority": 0}, {"priority": 3}, {"tenant": 2}])).map(
    lambda pair: pair[0].model_copy(update=pair[1])
)
SLOS = st.builds(
    SloSpec,
    terms=st.lists(CLASSED, min_size=1, max_size=5, unique_by=lambda term: term.label),
    max_rejected_fraction=st.sampled_from([0.0, 0.01, 0.005, 0.25]),
)


def format_slo(slo: SloSpec) -> str:
    """A phrase that ``parse_slo`` reads as the same SLO."""
    terms = [
        f"{term.metric.removesuffix('_s')} p{term.percentile:.12g} <= {term.at_most_s!r}s"
        + "".join(f" for {name} {number}" for name, number in term.of_class.items())
        for term in slo.terms
    ]
    if slo.max_rejected_fraction:
        terms.append(f"rejected <= {slo.max_rejected_fraction!r}")
    return ", ".join(terms)


@given(SLOS)
def test_an_slo_is_read_as_it_was_written(slo: SloSpec) -> None:
    assert parse_slo(format_slo(slo)) == slo
    assert is_phrase(format_slo(slo))


@pytest.mark.parametrize(
    ("phrase", "targets_s"),
    [
        ("ttft p90 < 1s", []),
        ("tpot p90 < 1s for priority 0", []),
        ("ttft p90 < 1s for tenant 0", []),
        ("ttft p90 < 1s for priority 0", [1.0, None]),
        ("ttft p50 < 2s for priority 0, ttft p99 < 1s for priority 0, ttft p99 < 30s", [1.0, 30.0]),
        ("ttft p99 < 30s, ttft p99 < 60s for priority 0, ttft p90 < 3s for priority 2", [30.0, 30.0, 3.0, 30.0]),
    ],
)
def test_deadlines_are_the_tightest_ttft_terms_by_priority(phrase: str, targets_s: list[float | None]) -> None:
    assert parse_slo(phrase).ttft_targets_s == targets_s


@given(
    st.sampled_from(["ttft", "TPOT", "e2e"]), st.integers(1, 99), st.integers(1, 10**6),
    st.sampled_from([("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("m", 60.0)]),
    st.sampled_from(["<", "<=", "≤", " under "]), st.sampled_from([" ", "_", "-"]), st.booleans(), st.booleans(),
)  # fmt: skip
def test_all_spellings_of_a_term_mean_the_same(
    metric: str, percent: int, number: int, unit: tuple[str, float], under: str, gap: str, blank: bool, first: bool
) -> None:
    subject = f"p{percent} {metric}" if first else f"{metric}{gap}p{percent}"
    slo = parse_slo(f"{subject}{under}{number}{' ' * blank}{unit[0]}")
    (term,) = slo.terms
    assert (term.metric, term.percentile) == (f"{metric.lower()}_s", percent)
    assert term.at_most_s == pytest.approx(number * unit[1], rel=1e-12)


@given(st.text(alphabet="ptf59 .<=,%msrejcand", max_size=24))
def test_anything_else_is_refused_with_its_place(phrase: str) -> None:
    message = _refusal(phrase)
    if message is None:
        assert parse_slo(format_slo(parse_slo(phrase))) == parse_slo(phrase)
        return
    assert message.startswith("expected ")
    place = int(message.partition(" at character ")[2].partition(":")[0])
    assert 1 <= place <= len(phrase) + 1


def _refusal(phrase: str) -> str | None:
    try:
        parse_slo(phrase)
    except PhraseError as error:
        return error.message
    return None


def test_terms_are_joined_by_commas_and_words() -> None:
    slo = parse_slo("ttft p95 < 1s, tpot median <= 50 ms and e2e p99.9 under 1.5m; rejected < 1%")
    assert [(term.label, term.at_most_s) for term in slo.terms] == [
        ("ttft_p95", 1.0), ("tpot_p50", 0.05), ("e2e_p99.9", 90.0),
    ]  # fmt: skip
    assert slo.max_rejected_fraction == 0.01


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        ("ttft<1s", "expected a percentile from p50 to p99.9, or median, got '<' at character 5: ttft[<]1s"),
        ("ttft p95 = 1s", "expected <, <= or under, got '=' at character 10: ttft p95 [=] 1s"),
        ("ttft p95 < 1", "expected a unit: s, ms, us or m (minutes), got the end at character 13: ttft p95 < 1 [ ]"),
        ("ttft p95 < 1ss", "expected a unit: s, ms, us or m (minutes), got 'ss' at character 13: ttft p95 < 1[ss]"),
        ("ttft p95 < fast", "expected a bound such as 1s or 50ms, got 'fast' at character 12: ttft p95 < [fast]"),
        ("ttft p95 < 0s", "expected a bound above 0, got '0' at character 12: ttft p95 < [0]s"),
        ("ttft p101 < 1s", "expected a percentile above 0 and up to 100, got 'p101' at character 6: ttft [p101] < 1s"),
        (
            "latency p95 < 1s",
            "expected ttft, ttfo, tpot, e2e or rejected, got 'latency' at character 1: [latency] p95 < 1s",
        ),
        ("ttft p95 < 1s tpot p95 < 1s", "expected a comma, 'and' or the end, got 'tpot' at character 15"),
        ("ttft p95 < 1s,", "expected ttft, ttfo, tpot, e2e or rejected, got the end at character 15"),
        ("ttft p95<1s, ttft p95<2s", "expected each metric, percentile and class once, got 'ttft' at character 14"),
        ("ttft p95<1s for batch", "expected priority or tenant, got 'batch' at character 17: ttft p95<1s for [batch]"),
        ("ttft p95<1s for priority low", "expected its number in the trace, got 'low' at character 26"),
        ("ttft p95<1s for priority 1.5", "expected a whole number, got '1.5' at character 26"),
        ("itl p95 < 50ms", "an SLO bounds the mean time between a request's tokens: tpot"),
        ("ttft mean < 1s", "an SLO bounds percentiles, not means"),
        ("rejected < 1%", "expected a latency too: ttft, ttfo, tpot or e2e, got the end"),
        ("ttft p95 < 1s, rejected < 100%", "expected a share below 100 %, got '100' at character 27"),
        ("ttft p95 < 1s, rejected < 1%, rejected < 2%", "expected each term once, got 'rejected' at character 31"),
        ("", "expected ttft, ttfo, tpot, e2e or rejected, got the end at character 1"),
    ],
)
def test_errors_of_an_slo_point_at_the_place(phrase: str, message: str) -> None:
    with pytest.raises(PhraseError) as caught:
        parse_slo(phrase)
    assert message in caught.value.message


@given(st.integers(1, 100_000), st.floats(0.0, 2.0))
def test_a_number_is_the_mean(tokens: int, spread: float) -> None:
    lengths = parse_lengths(str(tokens), spread)
    assert mean_tokens(lengths) == pytest.approx(tokens, rel=1e-9)
    assert (lengths.distribution == "constant") == (spread == 0.0)
    assert mean_tokens(parse_lengths(f"{tokens} exactly", spread)) == tokens


@given(st.integers(1, 50_000), st.integers(1, 50_000), st.sampled_from([(50, 99), (10, 90), (50, 95)]))
def test_two_percentiles_are_met(low: int, high: int, percents: tuple[int, int]) -> None:
    assume(low <= high)
    lengths = parse_lengths(f"p{percents[0]}={low},p{percents[1]}={high}", 0.7)
    assert lengths.sigma_log is not None
    assert lengths.mean_log is not None
    scores = {10: -1.2815515655446004, 50: 0.0, 90: 1.2815515655446004, 95: 1.6448536269514722, 99: 2.3263478740408408}
    for percent, tokens in zip(percents, (low, high), strict=True):
        assert math.exp(lengths.mean_log + scores[percent] * lengths.sigma_log) == pytest.approx(tokens, rel=1e-6)


@given(st.integers(1, 20_000), st.floats(0.0, 0.999), st.sampled_from([60.0, 90.0, 95.0, 99.0]), st.booleans())
def test_a_mean_and_a_percentile_are_met(mean: int, share: float, percent: float, mean_first: bool) -> None:
    """Both by closed form, of the root that spreads less. share: of the largest logarithm."""
    score = NormalDist().inv_cdf(percent / 100)
    tokens = mean * math.exp(share * score**2 / 2)
    parts = [f"mean={mean}", f"p{percent:g}={tokens:.9f}"]
    lengths = parse_lengths(",".join(parts if mean_first else parts[::-1]), 0.7)
    assert mean_tokens(lengths) == pytest.approx(mean, rel=1e-6)
    if lengths.distribution == "constant":
        assert tokens == pytest.approx(mean, rel=1e-6)
        return
    assert lengths.mean_log is not None
    assert lengths.sigma_log is not None
    assert math.exp(lengths.mean_log + score * lengths.sigma_log) == pytest.approx(tokens, rel=1e-6)
    assert 0.0 <= lengths.sigma_log <= score * (1 + 1e-6)


def test_draws_of_a_mean_and_a_percentile_have_both() -> None:
    drawn = draw_lengths(parse_lengths("mean=1800,p99=6000", 0.0), 200_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(1800, rel=0.01)
    assert np.percentile(drawn, 99) == pytest.approx(6000, rel=0.02)


def test_a_mean_alone_has_the_given_spread() -> None:
    assert parse_lengths("mean=1800", 0.7) == parse_lengths("1800", 0.7)
    assert parse_lengths("mean=1800", 0.0) == parse_lengths("1800 exactly", 0.0)


def test_no_spread_draws_a_constant() -> None:
    lengths = parse_lengths("p50=700", 0.0)
    assert lengths.sigma_log == 0.0
    assert set(draw_lengths(lengths, 100, np.random.default_rng(0)).tolist()) == {700}


@pytest.mark.parametrize(
    ("phrase", "message"),
    [
        ("2,000", "expected 'exactly' or the end (numbers have no comma), got ',' at character 2: 2[,]000"),
        ("2k", "expected a number of tokens such as 2000, or percentiles such as p50=1500,p99=8000 or mean=1800"),
        ("0", "expected 1 token or more, got '0' at character 1"),
        ("p50=10,p99=5", "expected tokens that do not fall from p50 to p99, got '5' at character 12"),
        ("p50=10,p50=15", "expected two different percentiles above p0 and below p100, got 'p50' at character 8"),
        ("p50=1,p90=2,p99=3", "expected the end (two percentiles are enough), got ',' at character 12"),
        ("p50 10", "expected =, got '10' at character 5"),
        (
            "mean=1800,p99=30000",
            "expected from the mean, 1,800, to 26,943 tokens at p99, as a lognormal distribution has (or two "
            "percentiles), got '30000' at character 15",
        ),
        ("p90=1700,mean=1800", "expected from the mean, 1,800, to 4,092 tokens at p90"),
        ("mean=1800,p50=900", "expected beside the mean a percentile above p50, got '900' at character 15"),
        ("mean=1800,mean=900", "expected a percentile such as p50, or mean, each once, got 'mean' at character 11"),
        ("mean=1,p90=2,p99=3", "expected the end (the mean and a percentile are enough), got ',' at character 13"),
    ],
)
def test_errors_of_lengths_point_at_the_place(phrase: str, message: str) -> None:
    with pytest.raises(PhraseError) as caught:
        parse_lengths(phrase, 0.7)
    assert message in caught.value.message


def test_a_study_s_slo_may_be_a_phrase(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        "apiVersion: hisearch/v1\nkind: Study\nmetadata: {name: s}\nspec:\n  model: llama-3.1-8b\n"
        '  workload: {trace: chat-multiturn}\n  slo: "ttft p95 < 2s, tpot p95 < 50ms"\n  space: quickstart\n'
    )
    assert load_study(study).slo.spec == parse_slo("ttft p95 < 2s, tpot p95 < 50ms")
    study.write_text(study.read_text().replace("< 2s", "< 2 parsecs"))
    with pytest.raises(SpecError, match=r"study.yaml:7: spec.slo: .*parsecs"):
        load_study(study)
