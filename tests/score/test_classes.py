"""SLO terms about a class of requests, and what each class gets and costs, against counting one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.score.classes import shares_of_classes
from hisearch.score.evaluate import evaluate
from hisearch.score.quantities import titled
from hisearch.score.terms import TermCheck
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.tables import Outcome
from hisearch.specs.studies.slo import SloSpec, SloTerm
from tests.score.results import random_result


def classed(seed: int, **outcomes: int) -> Result:
    """Random requests of three priorities and two tenants."""
    result = random_result(seed, **outcomes)
    rng = np.random.default_rng(seed + 1)
    count = len(result.requests.outcome)
    requests = replace(
        result.requests,
        priority=rng.integers(0, 3, count).astype(np.int32),
        tenant=rng.integers(0, 2, count).astype(np.int32),
    )
    return replace(result, requests=requests)


def seconds_of(result: Result, index: int, metric: str) -> float:
    """A finished request's latency."""
    table = result.requests
    first, end, came = table.first_token_s[index], table.finish_s[index], table.arrival_s[index]
    return {
        "ttft_s": first - came,
        "e2e_s": end - came,
        "tpot_s": (end - first) / max(table.output_tokens[index] - 1, 1),
    }[metric]


def concerns(result: Result, index: int, term: SloTerm) -> bool:
    """Whether a term is about a request."""
    table = result.requests
    return (term.priority is None or table.priority[index] == term.priority) and (
        term.tenant is None or table.tenant[index] == term.tenant
    )


TERMS = st.builds(
    SloTerm,
    metric=st.sampled_from(["ttft_s", "tpot_s", "e2e_s"]),
    percentile=st.sampled_from([50.0, 90.0, 99.0]),
    at_most_s=st.floats(0.01, 3.0),
    priority=st.sampled_from([None, 0, 1, 2]),
    tenant=st.sampled_from([None, 0, 1]),
)


@given(
    st.integers(0, 10**6),
    st.lists(TERMS, min_size=1, max_size=6, unique_by=lambda term: term.label),
    st.integers(0, 5),
    st.integers(0, 5),
)
@settings(deadline=None, max_examples=60)
def test_terms_of_classes_are_over_their_requests_alone(
    seed: int, terms: list[SloTerm], in_flight: int, rejected: int
) -> None:
    result = classed(seed, in_flight=in_flight, rejected=rejected)
    score = evaluate(result, SloSpec(terms=terms), usd_per_hour=1.0)
    indices = range(len(result.requests.outcome))
    for term, check in zip(terms, score.slo, strict=False):
        assert isinstance(check, TermCheck)
        assert check.label == term.label
        values = []
        for index in indices:
            several = term.metric != "tpot_s" or result.requests.output_tokens[index] >= 2
            if not (concerns(result, index, term) and several):
                continue
            if result.requests.outcome[index] == Outcome.FINISHED:
                values.append(seconds_of(result, index, term.metric))
            elif result.requests.outcome[index] == Outcome.IN_FLIGHT:
                values.append(math.inf)
        rank = term.percentile / 100 * (len(values) - 1)
        ranked = sorted(values)
        low, high = ranked[math.floor(rank)], ranked[math.ceil(rank)]
        expected = high if math.isinf(high) else low + (high - low) * (rank - math.floor(rank))
        assert check.value_s == pytest.approx(expected)
        if term.of_class:
            assert score.metrics[f"{term.label}_s"] == check.value_s
    good = sum(
        all(seconds_of(result, index, term.metric) <= term.at_most_s for term in terms if concerns(result, index, term))
        for index in indices
        if result.requests.outcome[index] == Outcome.FINISHED
    )
    assert score.metrics["attainment"] == pytest.approx(good / 200)


@pytest.mark.parametrize("by", ["priority", "tenant"])
def test_classes_add_up_to_the_whole(by: str) -> None:
    result = classed(5, in_flight=3, rejected=2, unreached=4)
    slo = SloSpec(terms=[SloTerm(metric="ttft_s", percentile=90, at_most_s=1.0)])
    whole = evaluate(result, slo, usd_per_hour=36.0)
    everyone = np.ones(len(result.requests.outcome), dtype=bool)
    shares = shares_of_classes(result, by, [(everyone, slo)], 36.0)
    assert [share.number for share in shares] == ([0, 1, 2] if by == "priority" else [0, 1])
    assert sum(share.arrived for share in shares) == 196
    assert sum(share.finished for share in shares) == int(result.requests.finished.sum())
    assert sum(share.goodput_rps for share in shares) == pytest.approx(whole.metrics["goodput_rps"])
    assert sum(share.usd_per_hour for share in shares) == pytest.approx(36.0)
    for share in shares:
        alone = SloSpec(terms=[SloTerm(metric="ttft_s", percentile=90, at_most_s=1.0, **{by: share.number})])
        check = evaluate(result, alone).slo[0]
        assert isinstance(check, TermCheck)
        assert share.latencies["ttft_p90_s"] == check.value_s
    assert math.isnan(shares_of_classes(result, by, [], 36.0)[0].attainment)


def test_requests_of_several_models_are_good_by_the_slo_of_their_own() -> None:
    result = classed(6, in_flight=2)
    first = np.arange(len(result.requests.outcome)) % 3 == 0
    slos = [SloSpec(terms=[SloTerm(metric="ttft_s", percentile=90, at_most_s=at_most_s)]) for at_most_s in (0.4, 1e9)]
    shares = shares_of_classes(result, "tenant", [(first, slos[0]), (~first, slos[1])], 36.0)
    good = result.requests.finished & (~first | (result.requests.ttft_s <= 0.4))
    for share in shares:
        mine = result.requests.tenant == share.number
        assert share.attainment == pytest.approx(good[mine].sum() / share.arrived)


def test_a_class_without_requests_holds_and_says_so() -> None:
    slo = SloSpec(terms=[SloTerm(metric="ttft_s", percentile=90, at_most_s=1e-9, priority=7)])
    score = evaluate(classed(1), slo)
    assert score.feasible
    assert "no such request arrived" in str(score.warnings)
    assert titled(score.slo[0]) == "TTFT p90 of priority 7"


def test_a_table_without_classes_is_refused() -> None:
    slo = SloSpec(terms=[SloTerm(metric="ttft_s", percentile=90, at_most_s=1.0, tenant=0)])
    with pytest.raises(ValueError, match="tenant is not known"):
        evaluate(random_result(1), slo)
