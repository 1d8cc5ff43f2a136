"""vLLM's data-parallel engines with a connector each: the kernels against ``vllm_lockstep``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import assume, given

from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import Outcome, Result
from hisearch.simulate.engine import EngineOutOfMemory, EngineStuck
from tests.kernels.group_systems import OffloadGroups, offloading_groups
from tests.kernels.systems import LAW, examples, vllm_config
from tests.kernels.test_lockstep_steps import GRAPHS, shared_seconds
from tests.reference.cluster import requests_of
from tests.reference.restatement.vllm import StuckError
from tests.reference.restatement.vllm_lockstep import Batch, Served, serve_by
from tests.reference.vllm_offload import OffloadWorker
from tests.simulate.logged import assert_first_visible


def restated(system: OffloadGroups) -> tuple[Served, list[OffloadWorker]] | None:
    """The restatement's run; None where it is stuck."""

    def cost(batches: Sequence[Batch]) -> float:
        tokens = [sum(new for new, _ in chunks) + len(decodes) for chunks, decodes, _ in batches]
        if max(tokens) <= GRAPHS[-1]:
            tokens = [next(size for size in GRAPHS if size >= max(tokens))] * len(tokens)
        parts = [
            step_seconds(LAW, chunks, [context + 1 for context in decodes], sampling)
            for chunks, decodes, sampling in batches
            if chunks or decodes
        ]
        return max(parts) + shared_seconds(sum(tokens), system.groups)

    assert system.offload is not None
    config, offload, arrays = vllm_config(system.engine, system.capacity_tokens), system.offload, system.trace.arrays
    workers = [OffloadWorker(config, offload, lambda _chunks, _decodes, _sampling: 0.0) for _ in range(system.groups)]
    accepted = [request for request in requests_of(arrays) if workers[0].rejection(request) is None]
    try:
        return serve_by(workers, accepted, cost), workers
    except StuckError:
        return None


def simulated(system: OffloadGroups) -> Result | None:
    """The kernels' run; None likewise, or where requests wait for ever."""
    try:
        result = system.simulate()
    except (EngineOutOfMemory, EngineStuck):
        return None
    left = result.requests.outcome == Outcome.IN_FLIGHT
    return None if left.any() else result


@examples(40)
@given(system=offloading_groups())
def test_the_kernels_equal_the_slow_restatement(system: OffloadGroups) -> None:
    """Times and hits of every request: stores, loads, and those who wait for them."""
    reference, result = restated(system), simulated(system)
    assert (reference is None) == (result is None)
    assume(reference is not None and result is not None)
    assert reference is not None
    assert result is not None
    served, workers = reference
    reused = {request: tokens for worker in workers for request, tokens in worker.reused_tokens.items()}
    hits = result.requests.hit_tokens + result.requests.host_hit_tokens
    finished = np.flatnonzero(result.requests.finished)
    assert finished.tolist() == sorted(served.finish_s)
    for r in finished.tolist():
        assert result.requests.first_token_s[r] == served.first_token_s[r]
        assert result.requests.finish_s[r] == served.finish_s[r]
        assert hits[r] == reused[r]
    assert_first_visible(result, served.token_s)
