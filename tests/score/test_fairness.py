"""The largest difference of service, against looking at every pair of moments, and by cases with known answers."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.score import fairness
from hisearch.score.fairness import largest_service_difference
from hisearch.simulate.results.result import Result
from tests.score.results import random_result


def of_tenants(seed: int, tenants: int = 3, **outcomes: int) -> Result:
    """Random requests that wait a while, of several tenants."""
    result = random_result(seed, **outcomes)
    rng = np.random.default_rng(seed + 1)
    table = result.requests
    count = len(table.outcome)
    scheduled_s = table.arrival_s + rng.random(count) * (table.first_token_s - table.arrival_s)
    requests = replace(
        table, tenant=rng.integers(0, tenants, count).astype(np.int32), scheduled_s=np.asarray(scheduled_s)
    )
    return replace(result, requests=requests)


def service_until(result: Result, tenant: int, at_s: float) -> float:
    """Request by request."""
    table, total = result.requests, 0.0
    for r in np.flatnonzero(table.tenant == tenant).tolist():
        total += float(table.input_tokens[r]) if table.scheduled_s[r] <= at_s else 0.0
        if table.finished[r] and table.first_token_s[r] <= at_s:
            begin_s, end_s, further = table.first_token_s[r], table.finish_s[r], table.output_tokens[r] - 1
            part = min((at_s - begin_s) / (end_s - begin_s), 1.0) if end_s > begin_s else 0.0
            total += 2.0 * (1.0 + part * further)
    return total


def waits(result: Result, tenant: int, at_s: float) -> bool:
    table = result.requests
    came = (table.tenant == tenant) & (table.arrival_s <= at_s)
    return bool((came & ~(table.scheduled_s <= at_s)).any())


@given(seed=st.integers(0, 10**6), in_flight=st.integers(0, 3))
@settings(deadline=None, max_examples=15)
def test_it_is_the_largest_over_all_pairs_of_moments(seed: int, in_flight: int) -> None:
    result = of_tenants(seed, in_flight=in_flight)
    table = result.requests
    kept = np.arange(len(table.outcome)) < 25
    result = replace(result, requests=replace(table, **{n: v[kept] for n, v in vars(table).items() if v is not None}))
    table = result.requests
    columns = (table.arrival_s, table.scheduled_s, table.first_token_s, table.finish_s)
    times = np.unique(np.concatenate([column[np.isfinite(column)] for column in columns]))
    largest = 0.0
    for a, b in combinations(np.unique(table.tenant).tolist(), 2):
        both = [waits(result, a, at_s) and waits(result, b, at_s) for at_s in times]
        gaps = [service_until(result, a, at_s) - service_until(result, b, at_s) for at_s in times]
        for low in range(len(times)):
            for high in range(low, len(times)):
                if not both[high]:
                    break
                largest = max(largest, abs(gaps[high] - gaps[low]))
    difference = largest_service_difference(result)
    assert (0.0 if difference is None else difference.tokens) == pytest.approx(largest, abs=1e-6)


def test_a_tenant_alone_and_tenants_that_never_wait_together_have_none() -> None:
    result = of_tenants(3)
    assert largest_service_difference(of_tenants(3, tenants=1)) is None
    at_once = replace(result.requests, scheduled_s=result.requests.arrival_s)
    assert largest_service_difference(replace(result, requests=at_once)) is None
    with pytest.raises(ValueError, match="tenant is not known"):
        largest_service_difference(replace(result, requests=replace(result.requests, tenant=None)))


def test_fewer_moments_see_no_larger_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    result = of_tenants(11)
    tokens = []
    for moments in (20, 200, 20_000):
        monkeypatch.setattr(fairness, "MOST_MOMENTS", moments)
        difference = largest_service_difference(result)
        tokens.append(0.0 if difference is None else difference.tokens)
    assert all(less <= more * 1.5 for less, more in pairwise(tokens))
    assert tokens[-1] > 0
