"""Logs of runs with drafted tokens: which entry made each output token, and which entries are decodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.kernels.core import rng
from hisearch.latency.step_cost import law_costs
from hisearch.simulate import simulate
from hisearch.simulate.engine import EngineStuck
from hisearch.simulate.plans.speculation_plan import SpeculationPlan
from hisearch.simulate.results.gaps import NOT_MADE, exact_gaps, token_entries, token_times
from hisearch.simulate.results.pool_logs import merged_logs
from hisearch.simulate.results.result import Result
from hisearch.simulate.results.series import decode_entries, step_tokens
from hisearch.specs.deployments.deployment import EngineSpec
from tests.kernels.systems import compiled, draft_costs, examples
from tests.kernels.test_lockstep_steps import SHAPE, SHARED_S, lockstep_plan
from tests.reference.random_traces import random_trace

SEED = 3


def drafted(seed: int, groups: int, capacity: int, overlap: bool, chunk: int, accepted: tuple[float, ...]) -> Result:
    engine = EngineSpec(
        name="vllm", max_running_requests=8, chunk_tokens=chunk, page_tokens=8, overlap=overlap, watermark=0.0
    )
    count, tokens = len(accepted), 8 * capacity
    law = law_costs(0.005, 2e-5, 0.0)
    law = law._replace(draft=draft_costs(law, count, 0.02, SHARED_S))
    planned = replace(
        lockstep_plan(engine, tokens, groups, (), law),
        speculation=SpeculationPlan(count, count, True, accepted, SEED, 0.02),
        max_request_tokens=tokens,
    )
    try:
        return simulate(planned, compiled(random_trace(seed, SHAPE)), log=True)
    except EngineStuck:
        assume(False)
        raise


def slow_makers(result: Result, accepted: tuple[float, ...]) -> tuple[list[list[int]], list[bool]]:
    """(entries that made each request's tokens, whether each entry is a decode), by walking through the log."""
    log, table = result.log, result.requests
    assert log is not None
    makers: list[list[int]] = [[] for _ in table.outcome]
    verifies = [False for _ in table.outcome]
    decodes: list[bool] = []
    for k in range(len(log)):
        for request in log.lost_in(k).tolist():
            verifies[request] = False
        for computed, tokens, request in log.batch(k).tolist():
            made, wanted = len(makers[request]), int(table.output_tokens[request])
            decodes.append(verifies[request])
            share = 0
            if verifies[request]:
                unit = rng.unit_at(SEED, request, made)
                share = 1 + sum(unit < chance for chance in accepted[: tokens - 1])
            elif computed + tokens >= table.input_tokens[request] + made:
                share = 1
                verifies[request] = True
            makers[request] += [len(decodes) - 1] * min(share, wanted - made)
    return makers, decodes


@examples(40)
@given(
    seed=st.integers(0, 10_000), groups=st.integers(1, 3), capacity=st.integers(70, 130), overlap=st.booleans(),
    chunk=st.sampled_from([16, 64, 256]), count=st.integers(1, 4), chance=st.sampled_from([0.0, 0.5, 0.8, 1.0]),
)  # fmt: skip
def test_tokens_go_with_the_entries_that_made_them(
    seed: int, groups: int, capacity: int, overlap: bool, chunk: int, count: int, chance: float
) -> None:
    accepted = tuple(chance ** (place + 1) for place in range(count))
    result = drafted(seed, groups, capacity, overlap, chunk, accepted)
    table, log = result.requests, result.log
    assert log is not None
    makers, decodes = slow_makers(result, accepted)
    first, entry = token_entries(result)
    for k in range(len(table.outcome)):
        mine = entry[first[k] : first[k + 1]]
        assert mine[mine != NOT_MADE].tolist() == makers[k], f"request {k}"
    assert decode_entries(result).tolist() == decodes
    first, times = token_times(result)
    ended = table.finished
    np.testing.assert_array_equal(times[first[:-1]][ended], table.first_token_s[ended])
    np.testing.assert_array_equal(times[first[1:] - 1][ended], table.finish_s[ended])
    gaps = exact_gaps(result)
    assert (gaps > 0).all()
    np.testing.assert_allclose(gaps.sum(), (table.finish_s - table.first_token_s)[ended].sum(), rtol=1e-9)
    prefill, decode = step_tokens(result)
    assert decode.sum() == log.entries["tokens"][np.array(decodes, bool)].sum()
    assert (prefill + decode).sum() == log.entries["tokens"].sum()


def test_merged_logs_keep_what_came_of_each_entry() -> None:
    """One pool drafts and the other does not: entries of the other are marked as told by their place."""
    with_drafts = drafted(1, 1, 100, True, 64, (0.8, 0.6)).log
    without = drafted(2, 1, 100, True, 64, (0.8,)).log
    assert with_drafts is not None
    assert without is not None
    assert with_drafts.outputs is not None
    merged = merged_logs([with_drafts, replace(without, outputs=None)])
    assert merged.outputs is not None
    made = merged.outputs["made"]
    assert (made < 0).sum() == len(without.entries)
    assert made[made >= 0].tolist() == with_drafts.outputs["made"].tolist()
