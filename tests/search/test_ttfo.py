"""What the search takes a bound on TTFO for: before anything is simulated, and while a run that misses it goes on."""

from __future__ import annotations

import numpy as np
import pytest

from hisearch.search.evaluate.sustained import Stretch, _give_up
from hisearch.search.model.demand import measure_demand
from hisearch.search.model.estimates import tpot_bound_s, ttft_bound
from hisearch.specs.studies.slo_phrase import parse_slo
from hisearch.traces.compiler import compile_trace
from hisearch.traces.trace import make_trace

#: Outputs of 1,000 tokens: half of the requests think for 500 of them, some show nothing.
COUNT = 200
THINKING = np.where(np.arange(COUNT) % 2 == 0, 500, 0)
TRACE = compile_trace(
    make_trace(
        arrival_s=np.arange(COUNT),
        input_tokens=np.full(COUNT, 100),
        output_tokens=np.full(COUNT, 1000),
        thinking_tokens=np.where(np.arange(COUNT) % 40 == 0, 1000, THINKING),
    ),
    "thinks",
)


def test_thinking_takes_its_tokens_times_tpot() -> None:
    slo = parse_slo("ttfo p95 < 10s")
    demand = measure_demand(TRACE, slo)
    assert sorted(set(demand.thinking_tokens.tolist())) == [0, 500]
    assert tpot_bound_s(slo, demand) == pytest.approx(10.0 / 500)
    assert ttft_bound(slo) == (10.0, 95.0)
    assert tpot_bound_s(parse_slo("ttfo p95 < 10s, e2e p95 < 10s"), demand) == pytest.approx(10.0 / 1000)
    assert tpot_bound_s(parse_slo("ttfo p40 < 10s"), demand) == np.inf
    assert ttft_bound(parse_slo("ttfo p95 < 10s, ttft p90 < 2s")) == (2.0, 90.0)


def test_a_run_is_given_up_once_too_many_first_tokens_are_late() -> None:
    """Those of requests that show nothing do not count: they have no TTFO."""
    stretch = Stretch(0.0, 1e9, 1e9)
    given_up = _give_up(TRACE, parse_slo("ttfo p90 < 10s").terms, stretch, 1.0)
    alike = _give_up(TRACE, parse_slo("ttft p90 < 10s").terms, stretch, 1.0)
    assert (given_up.ttft_s, alike.ttft_s) == (10.0, 10.0)
    assert given_up.requests == alike.requests + COUNT // 40
