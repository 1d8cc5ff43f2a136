"""TensorRT-LLM's reference on cases small enough to work out by hand; no recording of the engine confirms it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.reference.restatement.content import PathContent
from tests.reference.restatement.recording import Request, Step
from tests.reference.restatement.sglang_cache import OutOfMemoryError
from tests.reference.restatement.transfers import CopyLaw
from tests.reference.trtllm import TrtllmWorker
from tests.reference.trtllm_drafts import DraftsConfig, DraftsWorker
from tests.reference.trtllm_pool import TwoPools
from tests.reference.trtllm_state import TrtllmConfig

#: Everything takes a second a step.
PAGE = 4


def request(index: int, prompt: int, output: int, *, declared: int = 0, prefix: int = 0) -> Request:
    """A request; the first ``prefix`` tokens of its prompt are shared by all that have a prefix of that length."""
    runs = [(-prefix, 0, prefix)] if prefix else []
    runs.append((index + 1, prefix, prompt + output))
    return Request(index, 0.0, prompt, output, declared or output, PathContent(index, runs))


def steps_of(requests: list[Request], **settings: Any) -> list[Step]:
    """Steps of a worker that receives all requests at once."""
    config = TrtllmConfig(**({"max_batch_size": 8, "max_num_tokens": 16, "num_blocks": 100, "tokens_per_block": PAGE,
                              "overlap_scheduler": False} | settings))  # fmt: skip
    return run(TrtllmWorker(config, lambda chunks, decodes, sampling: 1.0), requests)


def run(worker: TrtllmWorker, requests: list[Request]) -> list[Step]:
    """Steps of the worker, which receives all requests at once."""
    for item in requests:
        worker.receive(item)
    steps: list[Step] = []
    now = 0.0
    while worker.active or worker.queue:
        step = worker.form(now)
        if step is not None:
            steps.append(step)
        if step is None or len(worker.outstanding) == worker.most_outstanding:
            now = worker.outstanding[0].step.end_s
            worker.process()
    worker.pool.check()
    return steps


def batches(steps: list[Step]) -> list[list[tuple[Any, int, int]]]:
    """(request, computed, new) of every batch."""
    return [[(entry.id, entry.computed, entry.new) for entry in step.batch] for step in steps]


def test_contexts_share_what_decodes_leave_in_whole_blocks() -> None:
    """Budget 16: all of the first prompt; 8 of the second's 10 tokens would be two blocks, but 10 are left for 9."""
    steps = batches(steps_of([request(0, 6, 3), request(1, 20, 1)]))
    # 10 left after 6: cut to 8; prompts that are not finished come first. Then 15 with one decode in a mixed step: the
    # 12 that are missing fit.
    assert steps == [[(1, 0, 8), (0, 0, 6)], [(1, 8, 12), (0, 6, 1)], [(0, 7, 1)]]


def test_a_cut_shorter_than_a_block_lets_a_shorter_prompt_go_first() -> None:
    steps = batches(steps_of([request(0, 13, 2), request(1, 8, 1), request(2, 3, 1)]))
    assert steps == [[(0, 0, 13), (2, 0, 3)], [(1, 0, 8), (0, 13, 1)]]


def test_without_chunked_prefill_the_first_that_does_not_fit_ends_the_pass() -> None:
    steps = batches(steps_of([request(0, 13, 2), request(1, 8, 1), request(2, 3, 1)], enable_chunked_prefill=False))
    assert steps == [[(0, 0, 13)], [(1, 0, 8), (2, 0, 3), (0, 13, 1)]]


def test_no_evict_sets_declared_outputs_aside() -> None:
    """Five blocks; each request declares 4 + 8 tokens, three blocks, although it makes one or two: one at a time."""
    requests = [request(k, 4, 2, declared=8) for k in range(2)]
    steps = batches(steps_of(requests, num_blocks=5))
    assert steps == [[(0, 0, 4)], [(0, 4, 1)], [(1, 0, 4)], [(1, 4, 1)]]
    assert batches(steps_of(requests, num_blocks=6))[0] == [(0, 0, 4), (1, 0, 4)]


def test_max_utilization_pauses_the_last_started() -> None:
    """Three blocks: both start with one; the first takes the third for its next tokens, the second is paused for want
    of a fourth, and starts again behind it, its own token part of its prompt."""
    requests = [request(0, 4, 3), request(1, 4, 3)]
    steps = steps_of(requests, num_blocks=3, policy="max_utilization")
    assert batches(steps) == [
        [(0, 0, 4), (1, 0, 4)],
        [(0, 4, 1)],
        [(0, 5, 1)],
        [(1, 4, 1)],
        [(1, 5, 1)],
    ]
    assert [step.preempted for step in steps] == [[], [1], [], [], []]


def test_a_request_waits_for_blocks_that_another_is_making() -> None:
    """Two prompts share eight tokens: the second starts when the first's are there, and the third goes ahead of it."""
    requests = [request(0, 10, 2, prefix=8), request(1, 10, 1, prefix=8), request(2, 4, 1)]
    assert batches(steps_of(requests)) == [[(0, 0, 10), (2, 0, 4)], [(1, 8, 2), (0, 10, 1)]]
    without = batches(steps_of(requests, enable_block_reuse=False))
    assert without == [[(1, 0, 4), (0, 0, 10)], [(1, 4, 6), (2, 0, 4), (0, 10, 1)]]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    first, second = request(0, 8, 1, prefix=8), request(1, 8, 1, prefix=8)
    assert batches(steps_of([first, second])) == [[(0, 0, 8)], [(1, 4, 4)]]


def test_overlap_forms_a_batch_ahead() -> None:
    """The second batch is formed with the first one running; the request is not scheduled for a fourth token."""
    steps = steps_of([request(0, 4, 3)], overlap_scheduler=True)
    assert [(step.scheduled_s, step.start_s, step.end_s) for step in steps] == [(0, 0, 1), (0, 1, 2), (1, 2, 3)]
    assert batches(steps) == [[(0, 0, 4)], [(0, 4, 1)], [(0, 5, 1)]]


def test_requests_that_never_fit_are_rejected() -> None:
    worker = TrtllmWorker(TrtllmConfig(4, 16, 5, PAGE, enable_chunked_prefill=False), lambda *_: 1.0)
    assert worker.rejection(request(0, 16, 1, declared=4)) is None
    assert "pool's 5 blocks" in str(worker.rejection(request(0, 16, 1, declared=5)))
    assert "step budget of 16" in str(worker.rejection(request(0, 17, 1)))


def drafted_steps(requests: list[Request], accepted: float, **settings: Any) -> tuple[list[Step], DraftsWorker]:
    """As ``steps_of`` with three drafts, of which all or none are accepted; also the worker."""
    defaults = {
        "max_batch_size": 8, "max_num_tokens": 16, "num_blocks": 100, "tokens_per_block": PAGE,
        "overlap_scheduler": False, "draft_tokens": 3, "accepted": (accepted,) * 3,
    }  # fmt: skip
    places = {item.id: item.id for item in requests}
    worker = DraftsWorker(DraftsConfig(**(defaults | settings)), lambda *_: 1.0, places)
    return run(worker, requests), worker


def test_drafts_save_steps_where_they_are_accepted() -> None:
    steps, _ = drafted_steps([request(0, 4, 9)], 1.0)
    assert batches(steps) == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 4)]]
    steps, _ = drafted_steps([request(0, 4, 3)], 0.0)
    assert batches(steps) == [[(0, 0, 4)], [(0, 4, 4)], [(0, 5, 4)]]


def test_a_decode_counts_its_drafts_in_the_budget() -> None:
    """16 less 4 are left for the second prompt's 13 tokens: three blocks. Then 16 less 4 again."""
    steps, _ = drafted_steps([request(0, 16, 4), request(1, 13, 1)], 0.0)
    assert batches(steps)[:3] == [[(0, 0, 16)], [(1, 0, 12), (0, 16, 4)], [(1, 12, 1), (0, 17, 4)]]


def test_a_decode_that_does_not_fit_ends_the_pass() -> None:
    """Of three with four tokens each two fit into ten; the third, and a fourth request behind it, wait for an end."""
    requests = [request(k, 2, 2) for k in range(3)] + [request(3, 4, 1)]
    steps, _ = drafted_steps(requests, 0.0, max_num_tokens=10)
    assert batches(steps) == [
        [(0, 0, 2), (1, 0, 2), (2, 0, 2), (3, 0, 4)],
        [(0, 2, 4), (1, 2, 4)],
        [(2, 2, 4)],
    ]


def test_what_no_results_were_taken_in_for_counts_one_token() -> None:
    """With overlap the second step is formed before any results: three decodes count for three tokens of ten."""
    steps, _ = drafted_steps([request(k, 2, 8) for k in range(3)], 0.0, max_num_tokens=10, overlap_scheduler=True)
    assert [len(step.batch) for step in steps[:4]] == [3, 3, 2, 2]


def test_blocks_of_rejected_drafts_come_back_with_their_results() -> None:
    """A prompt of a block; of the four tokens of a step one stays. With overlap the next has taken its own by then."""
    for overlap, expected in ((False, [1, 1, 2, 2, 3, 2, 3, 2]), (True, [1, 2, 2, 3, 3, 4, 3])):
        _, worker = drafted_steps([], 0.0, overlap_scheduler=overlap)
        worker = DraftsWorker(worker.config, lambda *_: 1.0, {0: 0})
        worker.receive(request(0, 4, 12))
        held = []
        while len(held) < len(expected):
            worker.form(0.0)
            held.append(worker.pool.held_blocks)
            if len(worker.outstanding) == worker.most_outstanding:
                worker.process()
                held.append(worker.pool.held_blocks)
        assert held == expected
        worker.pool.check()


def test_a_rejected_draft_s_block_is_the_next_to_be_taken() -> None:
    """Of 4 + 1 + 4 tokens in three blocks one stays in the second."""
    _, worker = drafted_steps([], 0.0)
    worker = DraftsWorker(worker.config, lambda *_: 1.0, {0: 0})
    worker.receive(request(0, 4, 12))
    for _ in range(3):
        worker.form(0.0)
        taken = worker.active[0].blocks[-1]
        worker.process()
    assert len(worker.active[0].blocks) == 2
    assert next(iter(worker.pool.free)) == taken


def test_nothing_is_set_aside_for_drafts() -> None:
    """Two requests declare three blocks each, all that there are; for its last drafts one of them needs a fourth."""
    steps, _ = drafted_steps([request(0, 4, 8)], 0.0, num_blocks=4)
    assert len(steps) == 8
    with pytest.raises(OutOfMemoryError, match="No free blocks left"):
        drafted_steps([request(0, 4, 8), request(1, 4, 8)], 0.0, num_blocks=6)


def test_the_drafter_s_tokens_lie_behind_the_prompt() -> None:
    for extra, blocks in ((0, 1), (2, 2)):
        worker = DraftsWorker(
            DraftsConfig(8, 16, 10, PAGE, draft_tokens=3, extra_kv_tokens=extra), lambda *_: 1.0, {0: 0}
        )
        worker.receive(request(0, 4, 2))
        worker.form(0.0)
        assert worker.pool.held_blocks == blocks


def test_what_leaves_the_device_comes_back_from_the_host() -> None:
    """Four blocks. The second prompt pushes the first out of them, last block first; the third finds two of its blocks
    on the host, and a step waits for all copies that it needs: one second a block there, two back."""
    config = TrtllmConfig(
        1, 16, 4, PAGE, overlap_scheduler=False, host_blocks=8, to_host=CopyLaw(1.0, 0.0), to_device=CopyLaw(2.0, 0.0)
    )
    worker = TrtllmWorker(config, lambda chunks, decodes, sampling: 1.0)
    first, second, third = request(0, 11, 1, prefix=8), request(1, 16, 0), request(2, 10, 1, prefix=8)
    starts, waits = [], []
    for item in (first, replace(second, output_tokens=1), third):
        worker.receive(item)
        step = worker.form(worker.device_free_s)
        assert step is not None
        starts.append(step.batch[0].computed)
        waits.append(step.start_s - step.scheduled_s)
        worker.process()
    # The second takes two empty blocks, then the first's two; the third, what the second has left of three blocks.
    assert starts == [0, 0, 8]
    assert waits == [0.0, 2.0, 4.0]
    assert worker.onboarded_tokens == {0: 0, 1: 0, 2: 8}
    assert (worker.pool.host_stored_blocks, worker.pool.host_read_blocks) == (5, 2)
    worker.pool.check()


def test_a_full_host_cache_drops_what_came_first() -> None:
    """One host block: of two blocks that leave the device the one that leaves last is still there."""
    pool = TwoPools(TrtllmConfig(1, 16, 2, PAGE, host_blocks=1))
    blocks = [pool.take(), pool.take()]
    for block, identity in zip(blocks, "ab", strict=True):
        pool.publish(block, identity)
    pool.release(blocks)
    held = [pool.take(), pool.take()]
    assert [pool.is_on_host(identity) for identity in "ab"] == [True, False]
    assert (pool.evicted_blocks, pool.host_evicted_blocks) == (2, 1)
    pool.release(held)
    (block,) = pool.onboard([("a", pool.claim("a"))])
    assert pool.find("a") == block
    assert not pool.is_on_host("a")
    pool.release([block])
    pool.check()
