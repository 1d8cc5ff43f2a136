"""Rows that were measured faster than their accelerator can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from hisearch.latency.parameters import active_parameter_count
from hisearch.validate.silicon.conditions import conditions_of
from hisearch.validate.silicon.pricing import Pricer
from hisearch.validate.silicon.reach import beyond_reach, least_tpot_s
from hisearch.validate.silicon.rows import SiliconRow
from tests.validate.test_silicon import only_row

PRICER = Pricer()


def least_of(row: SiliconRow) -> float:
    return least_tpot_s(row, PRICER.worker(row), conditions_of(row))


def dense(folder: Path, **cells: str) -> SiliconRow:
    """Qwen3-32B in 16 bits on four H100, one request in flight: next to nothing but reading weights."""
    given = {
        "backend": "vllm", "model": "Qwen/Qwen3-32B", "system": "h100_sxm", "precision": "", "gemm_dtype": "",
        "input_tokens": "16", "output_tokens": "64", "concurrency": "1", "tp": "4", "moe_tp": "4", "attention_dp": "",
        "measured_ttft_ms": "0.001", "measured_tpot_ms": "10",
    }  # fmt: skip
    return only_row(folder, **given | cells)


def test_one_sequence_reads_every_weight_once(tmp_path: Path) -> None:
    row = dense(tmp_path)
    model = PRICER.worker(row).model
    weights_s = 2.0 * active_parameter_count(model) / 4 / PRICER.worker(row).accelerator.memory_bandwidth_bytes_per_s
    assert weights_s < least_of(row) < 1.05 * weights_s
    assert not beyond_reach(row, PRICER.worker(row), conditions_of(row))


def test_a_row_below_it_is_beyond_reach(tmp_path: Path) -> None:
    least_ms = least_of(dense(tmp_path)) * 1e3
    for factor, beyond in ((0.98, True), (1.02, False)):
        row = dense(tmp_path, measured_tpot_ms=f"{factor * least_ms}")
        assert beyond_reach(row, PRICER.worker(row), conditions_of(row)) is beyond


def test_waiting_requests_make_no_tokens(tmp_path: Path) -> None:
    """Of 256 in flight that wait for most of their time, as few are decoding as of few in flight."""
    busy = least_of(dense(tmp_path, concurrency="256"))
    waiting = least_of(dense(tmp_path, concurrency="256", measured_ttft_ms="159390"))
    assert waiting == pytest.approx(least_of(dense(tmp_path)), rel=0.02)
    assert busy > waiting


def test_experts_count_as_far_as_they_are_drawn(tmp_path: Path) -> None:
    cells = {"model": "openai/gpt-oss-120b", "precision": "fp4", "gemm_dtype": "", "tp": "2", "moe_tp": "2"}
    least = [least_of(dense(tmp_path, concurrency=str(count), **cells)) for count in (1, 8, 64, 512)]
    assert least == sorted(least)
    all_experts_s = 66e9 / 2 / PRICER.worker(dense(tmp_path, **cells)).accelerator.memory_bandwidth_bytes_per_s
    assert least[0] < 0.1 * all_experts_s
    assert 0.9 * all_experts_s < least[3] < 1.3 * all_experts_s


def test_drafted_tokens_may_all_be_accepted(tmp_path: Path) -> None:
    cells = {
        "backend": "sglang", "model": "Qwen/Qwen3.5-397B-A17B", "backend_version": "0.5.9", "system": "b200_sxm",
        "precision": "fp8", "gemm_dtype": "", "input_tokens": "1024", "output_tokens": "1024", "attention_dp": "1",
        "concurrency": "8", "measured_tpot_ms": "5",
    }  # fmt: skip
    drafting, plain = (
        dense(tmp_path, **cells, tp="4", moe_tp="4"),
        dense(tmp_path, **cells, tp="4", moe_ep="4", moe_tp="1"),
    )
    assert conditions_of(drafting).draft_tokens == 3
    assert least_of(drafting) == pytest.approx(least_of(plain) / 4, rel=0.2)
