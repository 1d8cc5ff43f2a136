"""Time to first output token: against numpy request by request, with requests that show none, and without thinking."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hisearch.score.classes import shares_of_classes
from hisearch.score.evaluate import evaluate
from hisearch.simulate.results.result import Result
from hisearch.specs.studies.slo import SloSpec, SloTerm
from hisearch.specs.studies.slo_phrase import parse_slo
from hisearch.specs.studies.study import LimitSpec
from tests.kernels.systems import examples
from tests.score.results import random_result

TTFO = SloTerm(metric="ttfo_s", percentile=90, at_most_s=1.0)
TTFT = parse_slo("ttft p99 < 1s")


def thinking(seed: int, hidden: float = 0.0, **ends: int) -> Result:
    """Random results in which requests think; a share ``hidden`` of them shows nothing."""
    result = random_result(seed, **ends)
    table, rng = result.requests, np.random.default_rng((seed, 7))
    tokens = rng.integers(0, table.output_tokens)
    tokens = np.where(rng.random(len(tokens)) < hidden, table.output_tokens, tokens)
    share = tokens / np.maximum(table.output_tokens - 1, 1)
    visible_s = table.first_token_s + share * (table.finish_s - table.first_token_s)
    visible_s = np.where(tokens < table.output_tokens, visible_s, np.nan)
    return replace(result, requests=replace(table, thinking_tokens=tokens, first_visible_s=visible_s))


@examples(60)
@given(seed=st.integers(0, 10**6), in_flight=st.integers(0, 9), hidden=st.sampled_from([0.0, 0.3, 1.0]))
def test_percentiles_are_of_requests_with_a_visible_token(seed: int, in_flight: int, hidden: float) -> None:
    result = thinking(seed, hidden, in_flight=in_flight)
    table = result.requests
    assert table.thinking_tokens is not None
    assert table.first_visible_s is not None
    values = [
        table.first_visible_s[k] - table.arrival_s[k] if table.finished[k] else math.inf
        for k in range(len(table.outcome))
        if table.thinking_tokens[k] < table.output_tokens[k]
    ]
    score = evaluate(result, SloSpec(terms=[TTFO]))
    if not values:
        assert math.isnan(score.metrics["ttfo_p90_s"])
        assert score.slo[0].holds
        assert "no request has a visible token" in score.slo[0].note  # type: ignore[union-attr]
        return
    with np.errstate(invalid="ignore"):
        expected = np.percentile(values, 90)
    expected = math.inf if math.isnan(expected) else expected
    assert score.metrics["ttfo_p90_s"] == pytest.approx(expected)
    good = sum(
        bool(table.finished[k]) and not table.first_visible_s[k] - table.arrival_s[k] > TTFO.at_most_s
        for k in range(len(table.outcome))
    )
    assert score.metrics["attainment"] == pytest.approx(good / len(table.outcome))


def test_it_lies_between_ttft_and_e2e() -> None:
    table = thinking(3).requests
    assert (table.ttft_s <= table.ttfo_s).all()
    assert (table.ttfo_s <= table.e2e_s + 1e-12).all()
    assert "ttfo_s" in table.to_pandas()


def test_without_thinking_it_is_ttft_and_is_only_shown_where_asked_for() -> None:
    result = random_result(5)
    assert not any(name.startswith("ttfo") for name in evaluate(result, TTFT).metrics)
    assert "ttfo_s" not in result.requests.to_pandas()
    score = evaluate(result, SloSpec(terms=[TTFO]))
    assert score.metrics["ttfo_p90_s"] == score.metrics["ttft_p90_s"]
    assert score.metrics["ttfo_mean_s"] == score.metrics["ttft_mean_s"]
    assert score.slo[0].note == "no request thinks, so that it is TTFT"  # type: ignore[union-attr]
    limited = evaluate(result, TTFT, limits={"ttfo_p99": LimitSpec(at_most=9.0)})
    assert limited.metrics["ttfo_p99_s"] == limited.metrics["ttft_p99_s"]


def test_classes() -> None:
    result = thinking(8)
    numbers = (np.arange(len(result.requests.outcome)) % 3).astype(np.int32)
    result = replace(result, requests=replace(result.requests, priority=numbers))
    slo = parse_slo("ttfo p95 < 2s for priority 1, p50 ttfo < 900 ms")
    assert [term.label for term in slo.terms] == ["ttfo_p95@priority=1", "ttfo_p50"]
    score = evaluate(result, slo)
    expected = float(np.percentile(result.requests.ttfo_s[numbers == 1], 95))
    assert score.metrics["ttfo_p95@priority=1_s"] == pytest.approx(expected)
    shares = shares_of_classes(result, "priority", [(np.ones(len(numbers), dtype=bool), slo)], 1.0)
    assert shares[1].latencies["ttfo_p95_s"] == pytest.approx(expected)
