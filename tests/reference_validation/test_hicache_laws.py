"""Conservation on both tiers, completeness and determinism of random workers with HiCache."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hisearch.base.policies import PREFETCHES, WRITE_POLICIES
from hisearch.validate.hicache_settings import CopyLaw, HostTierConfig, StorageConfig
from tests.reference.cluster import tree_path
from tests.reference.random_traces import random_trace
from tests.reference.recorded import recorded_law
from tests.reference.restatement import sglang
from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Recording, Request
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.sglang_host_cache import HostCache
from tests.reference.restatement.sglang_state import SglangConfig
from tests.reference_validation.test_laws import CheckedSglang

#: From copies that take no time to such that hardly end before the run does.
LAWS = st.builds(CopyLaw, st.sampled_from([0.0, 1e-4]), st.sampled_from([0.0, 4e-6, 1e-3]))
STORAGE = st.builds(
    StorageConfig,
    query_s=st.sampled_from([0.0, 0.002, 0.03]),
    read=LAWS,
    write=LAWS,
    prefetch_policy=st.sampled_from(tuple(PREFETCHES)),
    prefetch_threshold=st.sampled_from([1, 8, 30]),
    parameters=st.fixed_dictionaries(
        {
            "prefetch_timeout_base_s": st.sampled_from([0.0, 0.01, 1.0]),
            "prefetch_timeout_s_per_ki_token": st.sampled_from([0.0, 0.25, 10.0]),
        }
    ).map(lambda values: tuple(values.items())),
)
HOST = st.builds(
    HostTierConfig,
    ratio=st.sampled_from([0.3, 1.0, 1.3, 2.0, 6.0]),
    write_policy=st.sampled_from(tuple(WRITE_POLICIES)),
    to_host=LAWS,
    to_device=LAWS,
    storage=st.none() | STORAGE,
)
WORKERS = st.builds(
    SglangConfig,
    max_running_requests=st.integers(1, 6),
    max_total_tokens=st.integers(60, 400),
    page_size=st.sampled_from([1, 2, 4, 16]),
    chunked_prefill_size=st.sampled_from([-1, 16, 48]),
    max_prefill_tokens=st.sampled_from([40, 1000]),
    schedule_policy=st.sampled_from(["fcfs", "lpm", "lof", "dfs-weight", "random"]),
    schedule_conservativeness=st.sampled_from([0.1, 1.0]),
    radix_eviction_policy=st.sampled_from(["lru", "lfu", "fifo", "mru", "filo", "slru", "priority"]),
    enable_mixed_chunk=st.booleans(),
    disable_overlap_schedule=st.booleans(),
    ignore_eos=st.booleans(),
    hicache=HOST,
)


def _requests(seed: int, config: SglangConfig) -> list[Request]:
    """A random trace's requests that the worker accepts, follow-ups at their predecessor's arrival."""
    trace = random_trace(seed)
    arrival_s = np.maximum.accumulate(np.where(trace.previous < 0, trace.arrival_s, 0.0))
    requests = [
        Request(
            id=index,
            arrival_s=float(arrival_s[index]),
            input_tokens=int(trace.input_tokens[index]),
            output_tokens=int(trace.output_tokens[index]),
            max_output_tokens=int(trace.max_output_tokens[index]),
            content=PathContent(index, tree_path(trace, int(trace.output_node[index]))),
            priority=int(trace.priority[index]),
        )
        for index in range(len(arrival_s))
    ]
    worker = sglang.SglangWorker(config, recorded_law)
    return [request for request in requests if worker.rejection(request) is None]


def _run(config: SglangConfig, requests: list[Request]) -> Recording | None:
    """None where the engine fails as well.

    Either the pool is too small for the copies in flight. Or nothing runs, and the first waiting request does not fit
    because pages are locked for a load-back: its request was then not admitted, and only a batch starts the load-back.
    """
    worker = CheckedSglang(config, recorded_law)
    try:
        return sglang.drive(worker, requests)
    except OutOfMemoryError:
        return None
    except RuntimeError:
        if isinstance(worker.cache, HostCache) and worker.cache.waits_to_load:
            return None
        raise


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), config=WORKERS)
def test_memory_is_conserved_and_all_requests_finish(seed: int, config: SglangConfig) -> None:
    requests = _requests(seed, config)
    recording = _run(config, requests)
    assume(recording is not None)
    assert recording is not None
    assert recording.finish_s.keys() == {request.id for request in requests}
    assert recording.steps == sorted(recording.steps, key=lambda step: step.start_s)
    for step in recording.steps:
        assert step.load_back is None or step.end_s >= step.load_back[1]
    for request in requests:
        assert recording.reused_tokens[request.id] < request.input_tokens
    assert _run(config, requests) == recording
