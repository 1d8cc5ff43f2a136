"""HiCache in the kernels against the slow restatement, on random workers: steps, times, pools, losses, fetches."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from hisearch.base.engine_rules import MODELLED
from hisearch.kernels.layout import hicache as hl
from hisearch.latency.step_cost import step_seconds
from hisearch.simulate import Outcome, Result
from hisearch.simulate.engine import EngineOutOfMemory
from tests.kernels.systems import LAW, SHUFFLE_STREAMS, examples
from tests.kernels.tier_systems import TieredSystem, stores, tiered
from tests.reference.restatement import sglang
from tests.reference.restatement.recording import Recording
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.splitmix import SplitMix64
from tests.simulate.logged import assert_first_visible

EVENTS = {hl.REVOKED: "revoked", hl.READING: "reading", hl.READ: "read"}


def cost(chunks: Any, decodes: Any, sampling: int) -> float:
    """A recorded decode's context leaves the token itself out."""
    return step_seconds(LAW, chunks, [context + 1 for context in decodes], sampling)


def restated(system: TieredSystem) -> Recording | None:
    """The reference's run of those requests that the engine accepts; None where it runs out of memory or gets stuck."""
    config = system.reference_config(SplitMix64(system.seed ^ SHUFFLE_STREAMS).next())
    worker = sglang.SglangWorker(config, cost)
    requests = [request for request in system.reference_requests() if worker.rejection(request) is None]
    try:
        return sglang.drive(worker, requests)
    except (OutOfMemoryError, RuntimeError):
        return None


def simulated(system: TieredSystem) -> Result | None:
    """The kernels' run; None likewise."""
    try:
        return system.simulate(log=True)
    except EngineOutOfMemory:
        return None


def assert_same_steps(result: Result, recording: Recording, noted_late: bool = False) -> None:
    """``noted_late``: decodes behind a decode may be within a fast-forward, whose log shows the pool before the copies
    that it notes; all other steps show what the reference has.
    """
    log = result.log
    assert log is not None
    for k, (step, expected) in enumerate(zip(log.steps, recording.steps, strict=False)):
        batch = [(int(e["request"]), int(e["computed"]), int(e["tokens"])) for e in log.batch(k)]
        assert batch == [(entry.id, entry.computed, entry.new) for entry in expected.batch], f"step {k}"
        times = (float(step["scheduled_s"]), float(step["start_s"]), float(step["end_s"]))
        assert times == (expected.scheduled_s, expected.start_s, expected.end_s), f"step {k}"
        assert expected.pool is not None
        behind_decode = k > 0 and recording.steps[k - 1].kind == expected.kind == "decode"
        if not (noted_late and behind_decode):
            assert int(step["free_tokens"]) == expected.pool[0], f"step {k}"
            assert int(step["evictable_tokens"]) == expected.pool[1], f"step {k}"
        assert log.lost_in(k).tolist() == expected.preempted, f"step {k}"
    assert len(log) == len(recording.steps)


def assert_same_requests(result: Result, recording: Recording) -> None:
    table = result.requests
    finished = [r for r in range(len(table.outcome)) if table.outcome[r] == Outcome.FINISHED]
    assert finished == sorted(recording.finish_s)
    reused = table.hit_tokens + table.host_hit_tokens + table.storage_hit_tokens
    assert {r: int(reused[r]) for r in finished} == recording.reused_tokens
    assert {r: float(table.first_token_s[r]) for r in finished} == recording.first_token_s
    assert {r: float(table.finish_s[r]) for r in finished} == recording.finish_s
    assert_first_visible(result, recording.token_s)


def assert_same_fetches(result: Result, recording: Recording) -> None:
    """Up to the last finish, after which the reference does not look any more."""
    assert result.log is not None
    last = max(recording.finish_s.values(), default=0.0)
    rows = result.log.fetches
    simulated = sorted((float(at), int(r), EVENTS[int(event)], int(tokens)) for at, tokens, r, event in rows.tolist())
    expected = sorted(recording.storage_log)
    assert [row for row in simulated if row[0] <= last] == [row for row in expected if row[0] <= last]


@examples(200)
@given(system=tiered(st.none() | stores(), open_loop=True, versions=MODELLED["sglang"]))
def test_hicache_equals_its_reference(system: TieredSystem) -> None:
    recording, result = restated(system), simulated(system)
    assert (recording is None) == (result is None)
    assume(recording is not None and result is not None)
    assert recording is not None
    assert result is not None
    assert_same_steps(result, recording, noted_late=system.engine.version != "0.5.9")
    assert_same_requests(result, recording)
    assert_same_fetches(result, recording)
