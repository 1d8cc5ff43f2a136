"""Tiny cases worked out by hand from the engines' rules; no shared data needed."""

from __future__ import annotations

import pytest

from tests.reference.recorded import recorded_law
from tests.reference.restatement import sglang, vllm
from tests.reference.restatement.content import BlockContent, PathContent, page
from tests.reference.restatement.recording import Recording, Request
from tests.reference.restatement.sglang_state import SglangConfig


def _request(
    name: str, input_tokens: int, output_tokens: int, nodes: list[tuple[int, int, int]], at: float = 0.0
) -> Request:
    return Request(name, at, input_tokens, output_tokens, output_tokens, PathContent(name, nodes))


def _unit(chunks: list[tuple[int, int]], decodes: list[int], sampling: int) -> float:
    return 1.0


def _batches(recording: Recording) -> list[list[tuple[object, int, int]]]:
    return [[(entry.id, entry.computed, entry.new) for entry in step.batch] for step in recording.steps]


def test_recorded_law_of_one_chunk_and_one_decode() -> None:
    # 11 new tokens; attention units 10 * (4 + 5.5) + 1 * (7 + 1)
    assert recorded_law([(10, 4)], [7], 2) == pytest.approx(0.005 + 2e-5 * 11 + 1e-9 * (95 + 8), abs=1e-15)


def test_page_belongs_to_the_node_in_which_it_completes() -> None:
    short = PathContent("a", [(1, 0, 6), (2, 6, 9)])
    other = PathContent("b", [(1, 0, 6), (3, 6, 9)])
    assert page(short, 0, 4) == page(other, 0, 4)
    assert page(short, 1, 4) != page(other, 1, 4)


def test_tokens_behind_the_last_full_block_are_the_requests_own() -> None:
    first, second = BlockContent("a", [7], 4), BlockContent("b", [7], 4)
    assert first.token(3) == second.token(3)
    assert first.token(4) != second.token(4)


def test_path_with_a_gap_is_refused() -> None:
    with pytest.raises(ValueError, match="expected to start at 4"):
        PathContent("a", [(1, 0, 4), (2, 5, 9)])


def test_vllm_cuts_a_prompt_by_the_budget_and_then_decodes() -> None:
    config = vllm.VllmConfig(max_num_seqs=2, max_tokens=4, num_blocks=10, block_size=4)
    recording = vllm.replay(config, [_request("a", 6, 3, [])], _unit)
    assert _batches(recording) == [[("a", 0, 4)], [("a", 4, 2)], [("a", 6, 1)], [("a", 7, 1)]]
    assert recording.first_token_s == {"a": 2.0}
    assert recording.finish_s == {"a": 4.0}


def test_vllm_full_hit_recomputes_the_last_block() -> None:
    config = vllm.VllmConfig(max_num_seqs=2, max_tokens=64, num_blocks=10, block_size=4)
    same = [_request("a", 8, 1, [(1, 0, 8)]), _request("b", 8, 1, [(1, 0, 8)], at=5.0)]
    recording = vllm.replay(config, same, _unit)
    assert _batches(recording) == [[("a", 0, 8)], [("b", 4, 4)]]
    assert recording.reused_tokens == {"a": 0, "b": 4}


def test_vllm_hits_blocks_of_a_batch_being_formed() -> None:
    config = vllm.VllmConfig(max_num_seqs=2, max_tokens=64, num_blocks=10, block_size=4)
    same = [_request("a", 8, 1, [(1, 0, 8)]), _request("b", 8, 1, [(1, 0, 8)])]
    assert _batches(vllm.replay(config, same, _unit)) == [[("a", 0, 8), ("b", 4, 4)]]


def test_vllm_preempts_the_last_and_resumes_it_with_its_output() -> None:
    # four usable blocks of two tokens; at five tokens "a" needs a third block
    config = vllm.VllmConfig(max_num_seqs=4, max_tokens=64, num_blocks=5, block_size=2, prefix=False)
    recording = vllm.replay(config, [_request("a", 3, 4, []), _request("b", 3, 4, [])], _unit)
    assert _batches(recording) == [
        [("a", 0, 3), ("b", 0, 3)],
        [("a", 3, 1), ("b", 3, 1)],
        [("a", 4, 1)],
        [("a", 5, 1)],
        [("b", 0, 5)],
        [("b", 5, 1)],
    ]
    assert [step.preempted for step in recording.steps] == [[], [], ["b"], [], [], []]
    assert recording.finish_s == {"a": 4.0, "b": 6.0}


def test_vllm_async_forms_a_batch_ahead_without_an_extra_decode() -> None:
    config = vllm.VllmConfig(max_num_seqs=2, max_tokens=64, num_blocks=10, block_size=4, async_scheduling=True)
    recording = vllm.replay(config, [_request("a", 6, 3, [])], _unit)
    assert _batches(recording) == [[("a", 0, 6)], [("a", 6, 1)], [("a", 7, 1)]]
    assert [step.scheduled_s for step in recording.steps] == [0.0, 0.0, 1.0]
    assert [step.start_s for step in recording.steps] == [0.0, 1.0, 2.0]


def test_vllm_refuses_what_can_never_fit() -> None:
    config = vllm.VllmConfig(max_num_seqs=2, max_tokens=64, num_blocks=3, block_size=4)
    with pytest.raises(ValueError, match="9 tokens exceed the pool's 8"):
        vllm.replay(config, [_request("a", 6, 4, [])], _unit)


def test_sglang_prefills_alone_and_first() -> None:
    config = SglangConfig(max_running_requests=4, max_total_tokens=100)
    requests = [_request("a", 5, 4, []), _request("b", 3, 2, [], at=1.5)]
    recording = sglang.replay(config, requests, _unit)
    assert _batches(recording) == [
        [("a", 0, 5)],
        [("a", 5, 1)],
        [("b", 0, 3)],
        [("a", 6, 1), ("b", 3, 1)],
        [("a", 7, 1)],
    ]
    assert [step.kind for step in recording.steps] == ["prefill", "decode", "prefill", "decode", "decode"]
    assert recording.finish_s == {"a": 5.0, "b": 4.0}


def test_sglang_full_hit_recomputes_one_token() -> None:
    config = SglangConfig(max_running_requests=4, max_total_tokens=100)
    same = [_request("a", 8, 1, [(1, 0, 8)]), _request("b", 8, 1, [(1, 0, 8)], at=5.0)]
    recording = sglang.replay(config, same, _unit)
    assert _batches(recording) == [[("a", 0, 8)], [("b", 7, 1)]]


def test_sglang_retracts_the_last_and_prefills_its_output_again() -> None:
    # 24 tokens: after both prompts 12 are free, which six decodes of two requests use up; the retraction of "b" makes
    # needs 20 more tokens, for which its own prompt is evicted
    config = SglangConfig(max_running_requests=4, max_total_tokens=24, schedule_conservativeness=0.1)
    requests = [_request("a", 6, 8, [(1, 0, 6)]), _request("b", 6, 8, [(2, 0, 6)])]
    recording = sglang.replay(config, requests, _unit)
    assert _batches(recording) == [
        [("a", 0, 6)],
        [("b", 0, 6)],
        *[[("a", 6 + i, 1), ("b", 6 + i, 1)] for i in range(6)],
        [("a", 12, 1)],
        [("b", 0, 13)],
    ]
    assert recording.steps[8].preempted == ["b"]
    # seven generated of "a", who stays alone: (7 + 20) / (8 + 1), at most 1
    assert recording.steps[8].ratio == 1.0


def test_sglang_overlap_decodes_a_finished_request_once_more() -> None:
    config = SglangConfig(max_running_requests=4, max_total_tokens=100, disable_overlap_schedule=False)
    recording = sglang.replay(config, [_request("a", 5, 2, [])], _unit)
    assert _batches(recording) == [[("a", 0, 5)], [("a", 5, 1)], [("a", 6, 1)]]
    assert recording.finish_s == {"a": 2.0}
