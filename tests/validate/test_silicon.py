"""``validate silicon`` on made-up rows: what is read, what is simulated, what is skipped, what is reported."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from typer.testing import CliRunner

from hisearch.cli.main import app
from hisearch.latency import served_errors
from hisearch.latency.laws.model import weights_law
from hisearch.latency.served_errors import EngineErrors
from hisearch.latency.sharding import Parallelism
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.host import HostTimes
from hisearch.validate.silicon import inferencemax
from hisearch.validate.silicon.campaigns import kernels_version
from hisearch.validate.silicon.closed_loop import Loop, closed_loop
from hisearch.validate.silicon.conditions import conditions_of, host_version
from hisearch.validate.silicon.disaggregated import conditions_of_side, sides_of
from hisearch.validate.silicon.inferencemax import as_it_ran
from hisearch.validate.silicon.pricing import (
    EngineTimes,
    NotPriced,
    Pricer,
)
from hisearch.validate.silicon.recipes import recipe_of
from hisearch.validate.silicon.report import validate_silicon
from hisearch.validate.silicon.rows import SiliconFileError, SiliconRow, read_rows, split_of

COLUMNS = (
    "id", "backend", "backend_version", "model", "system", "precision", "mode", "input_tokens", "output_tokens",
    "concurrency", "gemm_dtype", "moe_dtype", "tp", "pp", "attention_dp", "moe_tp", "moe_ep", "measured_ttft_ms",
    "measured_tpot_ms",
    *(f"{role}_{name}" for role in ("prefill", "decode") for name in ("workers", "tp", "attention_dp", "moe_ep")),
)  # fmt: skip
PLAIN = {
    "id": "a", "backend": "vllm", "backend_version": "0.19.0", "model": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h100_sxm", "mode": "agg", "input_tokens": "256", "output_tokens": "32", "concurrency": "2", "tp": "1.0",
    "pp": "1.0", "moe_tp": "1.0", "moe_ep": "1.0", "measured_ttft_ms": "20", "measured_tpot_ms": "8",
}  # fmt: skip


def write(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows({**PLAIN, **row} for row in rows)
    return path


def only_row(tmp_path: Path, **cells: str) -> SiliconRow:
    return read_rows(write(tmp_path / "rows.csv", cells))[1][0]


@pytest.fixture(scope="module")
def pricer() -> Pricer:
    return Pricer("roofline")


class TestRows:
    def test_a_missing_column_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        path.write_text("backend,model\nvllm,x\n")
        with pytest.raises(SiliconFileError, match=r"rows\.csv:1: no column .*measured_ttft_ms"):
            read_rows(path)

    def test_a_cell_that_is_no_number_is_named_with_its_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rows.csv", {}, {"measured_tpot_ms": "fast"})
        with pytest.raises(SiliconFileError, match=r"rows\.csv:3: measured_tpot_ms: .*'fast'"):
            read_rows(path)

    def test_where_selects_by_text_and_by_number(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rows.csv", {"id": "a"}, {"id": "b", "tp": "8.0"})
        assert [row.cells["id"] for row in read_rows(path, {"tp": "8"})[1]] == ["b"]
        with pytest.raises(SiliconFileError, match="no column gpu"):
            read_rows(path, {"gpu": "h100"})


@pytest.mark.parametrize(
    ("columns", "ran"),
    [
        ((8, 1, 8, 1, 1), Parallelism(8, 1, 1)),
        ((8, 1, 1, 8, 1), Parallelism(8, 1, 8)),
        ((64, 1, 8, 8, 1), Parallelism(8, 1, 8)),
        ((1, 64, 8, 8, 1), Parallelism(1, 8, 8)),
        ((1, 16, 4, 4, 1), Parallelism(1, 4, 4)),
        ((4, 4, 1, 16, 1), Parallelism(4, 1, 4)),
        ((1, 4, 4, 1, 1), Parallelism(1, 4, 1)),
        ((8, 1, 2, 4, 1), Parallelism(8, 1, 4)),
    ],
)
def test_columns_that_count_ranks_twice_are_read_as_the_ranks_there_were(
    columns: tuple[int, ...], ran: Parallelism
) -> None:
    assert split_of(*columns, stated_dp=True) == ran
    assert ran.ranks <= 8


def test_columns_without_attention_dp_are_read_as_they_stand() -> None:
    assert split_of(4, 1, 2, 2, 1, stated_dp=False) == Parallelism(4, 1, 2)


class TestConditions:
    def test_lengths_of_inferencemax_with_attention_dp_are_its_runs(self, tmp_path: Path) -> None:
        cells = {"input_tokens": "1024", "output_tokens": "1024", "attention_dp": "1.0"}
        assert conditions_of(only_row(tmp_path, **cells)).output_share == 0.8
        assert conditions_of(only_row(tmp_path, **{**cells, "attention_dp": ""})).output_share == 1.0

    def test_an_attention_group_runs_its_share_of_the_requests(self, tmp_path: Path) -> None:
        row = only_row(tmp_path, concurrency="64", attention_dp="4", moe_tp="4", model="openai/gpt-oss-120b")
        assert conditions_of(row).engine.max_running_requests == 16

    @pytest.mark.parametrize(
        ("engine", "chunk_tokens", "chunked"), [("vllm", 5612, True), ("trtllm", 5612, False), ("sglang", 8192, True)]
    )
    def test_a_generated_server_has_steps_of_a_prompt_or_two(
        self, tmp_path: Path, engine: str, chunk_tokens: int, chunked: bool
    ) -> None:
        """16 in flight + 4,096 + 1,500, as AIConfigurator's generator writes it for all but SGLang."""
        cells = {"backend": engine, "input_tokens": "4096", "output_tokens": "512", "concurrency": "16"}
        generated = conditions_of(only_row(tmp_path, **cells)).engine
        assert (generated.chunk_tokens, generated.chunked_prefill) == (chunk_tokens, chunked)
        published = {"input_tokens": "1024", "output_tokens": "1024", "attention_dp": "1", "tp": "1"}
        row = only_row(tmp_path, backend=engine, model="openai/gpt-oss-120b", system="b200_sxm", **published)
        assert conditions_of(row).engine.chunked_prefill == chunked

    def test_rows_of_scripts_that_draft_tokens_draft_them(self, tmp_path: Path) -> None:
        deepseek = {
            "backend": "trtllm", "model": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "precision": "fp8",
            "input_tokens": "1024", "output_tokens": "1024", "concurrency": "64", "attention_dp": "1",
        }  # fmt: skip
        plain = conditions_of(only_row(tmp_path, **deepseek, backend_version="1.2.0rc6.post2", tp="8", moe_tp="8"))
        assert plain.draft_tokens == 0
        assert (plain.engine.batch_wait_timeout_iters, plain.engine.batch_wait_max_tokens_ratio) == (40, 0.8)
        drafting = deepseek | {"backend_version": "1.2.0rc6.post3"}
        single = conditions_of(only_row(tmp_path, **drafting, tp="8", moe_tp="8"))
        assert (single.draft_tokens, single.engine.batch_wait_timeout_iters) == (3, 0)
        groups = conditions_of(only_row(tmp_path, **drafting | {"attention_dp": "8"}, moe_ep="8"))
        assert (groups.draft_tokens, groups.engine.attention_dp_balance) == (1, True)
        waits = groups.engine.attention_dp_timeout_iters, groups.engine.attention_dp_batching_wait_iters
        assert waits == (60, 0)
        qwen = deepseek | {
            "backend": "sglang", "model": "Qwen/Qwen3.5-397B-A17B", "backend_version": "0.5.9", "tp": "4",
        }  # fmt: skip
        assert conditions_of(only_row(tmp_path, **qwen, moe_tp="4")).draft_tokens == 3
        assert conditions_of(only_row(tmp_path, **qwen, moe_ep="4")).draft_tokens == 0

    @pytest.mark.parametrize(
        ("model", "system", "mode", "largest"),
        [
            ("meta-llama/Llama-3.1-70B", "b200_sxm", "full_decode_only", None),
            ("meta-llama/Llama-3.1-70B", "h100_sxm", None, None),
            ("openai/gpt-oss-120b", "b200_sxm", None, 2048),
            ("openai/gpt-oss-120b", "h100_sxm", None, None),
        ],
    )
    def test_vllm_has_its_scripts_graphs(
        self, tmp_path: Path, model: str, system: str, mode: str | None, largest: int | None
    ) -> None:
        row = only_row(
            tmp_path, backend="vllm", model=model, system=system, precision="fp8", attention_dp="1", tp="8",
            input_tokens="1024", output_tokens="1024", concurrency="64", backend_version="",
        )  # fmt: skip
        engine = conditions_of(row).engine
        assert (engine.cudagraph_mode, engine.max_cudagraph_capture_size) == (mode, largest)

    @pytest.mark.parametrize(
        ("version", "precision", "cells", "pieces", "most", "graphs", "share"),
        [
            ("1.2.0rc6.post2", "fp8", {}, True, 2048, 64, 0.8),
            ("1.2.0rc6.post2", "fp8", {"concurrency": "32"}, False, 2048, 32, 0.8),
            ("1.2.0rc6.post2", "fp8", {"output_tokens": "8192", "concurrency": "256"}, False, 2048, 32, 0.7),
            ("1.2.0rc6.post2", "fp8", {"input_tokens": "8192", "tp": "4", "moe_tp": "4"}, True, 2048, 64, 0.75),
            ("1.2.0rc6.post2", "fp4", {}, False, 2048, 64, 0.8),
            ("1.2.0rc6.post2", "fp4", {"moe_tp": "1", "moe_ep": "8"}, True, 2048, 64, 0.8),
            ("1.2.0rc6.post3", "fp8", {}, True, 64, 64, 0.8),
            ("1.2.0rc6.post3", "fp8", {"concurrency": "4"}, False, 4, 4, 0.8),
            ("1.2.0rc6.post3", "fp4", {"concurrency": "128"}, True, 128, 128, 0.8),
            ("1.2.0rc6.post3", "fp4", {"concurrency": "8"}, False, 8, 8, 0.8),
        ],
    )
    def test_deepseek_under_tensorrt_llm_has_its_scripts_graphs_and_limits(
        self, tmp_path: Path, version: str, precision: str, cells: dict[str, str], pieces: bool, most: int,
        graphs: int, share: float,
    ) -> None:  # fmt: skip
        """Drafts bound what runs, and a step's tokens: 4 of each of 64 requests and a prompt, to a multiple of 64."""
        deepseek = {
            "backend": "trtllm", "model": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "precision": precision,
            "input_tokens": "1024", "output_tokens": "1024", "concurrency": "64", "attention_dp": "1", "tp": "8",
            "moe_tp": "8", "moe_ep": "1", "backend_version": version,
        }  # fmt: skip
        engine = conditions_of(only_row(tmp_path, **deepseek | cells)).engine
        assert engine.cudagraph_mode == ("full_and_piecewise" if pieces else None)
        in_flight = int((deepseek | cells)["concurrency"])
        assert (engine.max_running_requests, engine.max_cudagraph_capture_size) == (min(most, in_flight), graphs)
        assert engine.memory_fraction == share
        tokens = 1344 if most == 64 else None
        assert tokens in (None, engine.chunk_tokens)

    @pytest.mark.parametrize(("precision", "interval"), [("fp8", 1), ("fp4", 10)])
    def test_glm_5_runs_what_is_in_flight_in_steps_of_32k_tokens(
        self, tmp_path: Path, precision: str, interval: int
    ) -> None:
        conditions = conditions_of(
            only_row(
                tmp_path, backend="sglang", model="zhipuai/GLM-5", system="b200_sxm", precision=precision,
                input_tokens="1024", output_tokens="1024", concurrency="64", attention_dp="1", tp="8", moe_tp="8",
            )
        )  # fmt: skip
        assert (conditions.engine.chunk_tokens, conditions.engine.max_running_requests) == (32768, 64)
        assert (conditions.engine.receive_interval, conditions.kv_dtype) == (interval, "fp8")

    SGLANG: ClassVar = {
        "backend": "sglang", "backend_version": "0.5.9", "model": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm",
        "precision": "fp8", "input_tokens": "1024", "output_tokens": "1024", "attention_dp": "1", "tp": "8",
        "moe_tp": "8", "concurrency": "8",
    }  # fmt: skip

    @pytest.mark.parametrize(
        ("cells", "interval", "drafts", "most"),
        [({}, 10, 0, 8), ({"concurrency": "64"}, 30, 0, 64), ({"concurrency": "512"}, 30, 2, 512)],
    )
    def test_sglang_looks_for_prompts_every_so_often(
        self, tmp_path: Path, cells: dict[str, str], interval: int, drafts: int, most: int
    ) -> None:
        """Beyond 64 in flight DeepSeek drafts."""
        conditions = conditions_of(only_row(tmp_path, **{**self.SGLANG, **cells}))
        engine = conditions.engine
        assert (engine.receive_interval, conditions.draft_tokens, engine.max_running_requests) == (
            interval,
            drafts,
            most,
        )

    @pytest.mark.parametrize(
        ("cells", "tokens"),
        [
            ({}, 1024),
            ({"backend_version": "0.5.10.post1"}, 5151),
            ({"backend_version": "0.5.11"}, 1024),
            ({"backend_version": "0.5.10.post1", "model": "Qwen/Qwen3.5-397B-A17B"}, 1024),
            ({"backend_version": "nightly-dev"}, 1024),
        ],
    )
    def test_a_broken_client_counts_a_fifth_of_the_tokens_that_the_server_reads(
        self, tmp_path: Path, cells: dict[str, str], tokens: int
    ) -> None:
        """Pull request 937 of InferenceX: 35,921 tokens of 7,140; only DeepSeek's tokeniser under Transformers 5."""
        row = only_row(tmp_path, **{**self.SGLANG, **cells})
        conditions = conditions_of(row)
        assert conditions.prompt_tokens(row) == tokens
        trace = closed_loop(Loop.of(row, conditions))
        assert 0.95 * tokens < trace.arrays.input_tokens.max() <= tokens

    @pytest.mark.parametrize(("version", "rounds"), [("0.5.5.post2", 5), ("", 5), ("0.5.8", 10)])
    def test_dynamos_first_scripts_send_five_requests_a_slot(self, tmp_path: Path, version: str, rounds: int) -> None:
        split = {"mode": "disagg", "decode_attention_dp": "1", "backend_version": version}
        row = only_row(tmp_path, **{**self.SGLANG, **split})
        assert conditions_of(row).requests_per_slot == rounds

    @pytest.mark.parametrize(
        ("cells", "expected"),
        [
            ({"precision": "bf16"}, (32768, 8, 0.82, 10, True, "bf16", "fp32", 0)),
            ({"tp": "4", "moe_tp": "4"}, (32768, 8, 0.9, 10, True, "fp8", "bf16", 3)),
            ({"concurrency": "256"}, (32768, 256, 0.82, 30, False, "fp8", "fp32", 0)),
            ({"backend_version": "0.5.10.post1"}, (16384, 8, 0.8, 10, False, "fp8", "bf16", 0)),
            ({"precision": "fp4"}, (32768, 8, 0.85, 30, False, "fp8", "fp32", 0)),
            ({"precision": "fp4", "system": "b300_sxm"}, (32768, 8, 0.8, 10, True, "fp8", "bf16", 0)),
        ],
    )
    def test_scripts_of_qwen_differ_by_format_release_and_gpu(
        self, tmp_path: Path, cells: dict[str, str], expected: tuple[object, ...]
    ) -> None:
        conditions = conditions_of(only_row(tmp_path, **{**self.SGLANG, "model": "Qwen/Qwen3.5-397B-A17B", **cells}))
        engine = conditions.engine
        assert (
            engine.chunk_tokens, engine.max_running_requests, engine.memory_fraction, engine.receive_interval,
            engine.fused_all_reduce, conditions.kv_dtype, conditions.state_dtype, conditions.draft_tokens,
        ) == expected  # fmt: skip

    MINIMAX: ClassVar = {
        "model": "MiniMaxAI/MiniMax-M2.5", "system": "b200_sxm", "precision": "fp8", "gemm_dtype": "fp8",
        "input_tokens": "1024", "output_tokens": "1024", "attention_dp": "1", "tp": "4", "moe_tp": "4",
        "concurrency": "64",
    }  # fmt: skip

    @pytest.mark.parametrize(
        ("cells", "tokens", "kv", "fraction", "experts"),
        [
            ({"backend_version": "0.17.0"}, 8192, "bf16", 0.95, 4),
            ({"backend_version": "0.19.0"}, 2048, "fp8", 0.9, 1),
            ({"backend_version": "0.19.0", "precision": "fp4", "input_tokens": "8192"}, 16384, "fp8", 0.9, 1),
            ({"backend_version": "nightly-5b8c30d62b754b57", "precision": "fp4"}, 8192, "fp8", 0.9, 1),
            ({"backend_version": "0.18.0", "system": "h100_sxm"}, 8192, "bf16", 0.9, 1),
        ],
    )
    def test_settings_of_the_scripts_for_minimax(
        self, tmp_path: Path, cells: dict[str, str], tokens: int, kv: str, fraction: float, experts: int
    ) -> None:
        """The first of them spread the experts over the ranks whatever its columns say."""
        row = only_row(tmp_path, **{**self.MINIMAX, **cells})
        conditions = conditions_of(row)
        assert (conditions.engine.chunk_tokens, conditions.kv_dtype, conditions.engine.memory_fraction) == (
            tokens,
            kv,
            fraction,
        )
        assert as_it_ran(row).parallelism == Parallelism(4, expert=experts)

    @pytest.mark.parametrize(
        ("cells", "fused"),
        [
            ({}, True),
            ({"backend_version": "0.15.1"}, False),
            ({"backend_version": "0.15.1", "system": "b200_sxm"}, True),
            ({"backend_version": ""}, True),
            ({"attention_dp": ""}, False),
        ],
    )
    def test_vllm_fuses_where_its_scripts_ask_for_it_and_since_it_does_by_itself(
        self, tmp_path: Path, cells: dict[str, str], fused: bool
    ) -> None:
        row = {"input_tokens": "1024", "output_tokens": "1024", "attention_dp": "1", "tp": "4", "moe_tp": "4"}
        assert conditions_of(only_row(tmp_path, **{**row, **cells})).engine.fused_all_reduce == fused

    @pytest.mark.parametrize(
        ("cells", "fused", "host"),
        [
            ({}, True, "0.5.9"),
            ({"model": "Qwen/Qwen3.5-397B-A17B"}, False, "0.5.9"),
            ({"model": "Qwen/Qwen3.5-397B-A17B", "tp": "4", "moe_tp": "4"}, True, "0.5.9+serial"),
            ({"model": "Qwen/Qwen3.5-397B-A17B", "precision": "fp4"}, False, "0.5.9"),
            ({"model": "Qwen/Qwen3.5-397B-A17B", "precision": "bf16"}, True, "0.5.9"),
            ({"concurrency": "128"}, True, "0.5.9+serial"),
        ],
    )
    def test_settings_of_sglangs_scripts(self, tmp_path: Path, cells: dict[str, str], fused: bool, host: str) -> None:
        """Host work has a label where tokens are drafted, which turns the overlap of schedule and device off."""
        row = only_row(tmp_path, **{**self.SGLANG, **cells})
        conditions = conditions_of(row)
        assert conditions.engine.fused_all_reduce == fused
        assert host_version(row) == host
        assert conditions.engine.overlap == (conditions.draft_tokens == 0) == (not host.endswith("+serial"))

    def test_nightly_builds_have_the_kernels_of_the_release_of_their_time(self, tmp_path: Path) -> None:
        cells = {**self.SGLANG, "backend_version": "nightly-dev-20260216-d3bae71e"}
        assert kernels_version(only_row(tmp_path, **cells)) == "0.5.10"
        assert kernels_version(only_row(tmp_path, **self.SGLANG)) == "0.5.9"
        assert kernels_version(only_row(tmp_path, **{**self.SGLANG, "backend_version": ""})) == "0.5.3"

    @pytest.mark.parametrize(
        ("cells", "expected"),
        [
            ({}, (32768, 64, 0.82, "bf16", 0)),
            ({"model": "Qwen/Qwen3.5-397B-A17B", "concurrency": "256"}, (16384, 128, 0.8, "fp8", 0)),
            ({"backend": "trtllm", "concurrency": "256"}, (8192, 256, 0.75, "fp8", 0)),
            ({"backend": "trtllm", "model": "openai/gpt-oss-120b"}, (20000, 64, 0.85, "bf16", 0)),
            ({"backend": "trtllm", "model": "meta-llama/Llama-3.1-70B", "tp": "4"}, (2248, 64, 0.9, "fp8", 20)),
        ],
    )
    def test_scripts_for_an_h200_have_settings_of_their_own(
        self, tmp_path: Path, cells: dict[str, str], expected: tuple[int, int, float, str, int]
    ) -> None:
        row = only_row(tmp_path, **{**self.SGLANG, "system": "h200_sxm", "concurrency": "64", **cells})
        conditions = conditions_of(row)
        engine = conditions.engine
        kept = (engine.chunk_tokens, engine.max_running_requests, engine.memory_fraction, conditions.kv_dtype)
        assert (*kept, engine.batch_wait_timeout_iters) == expected
        assert engine.receive_interval == 1


#: A disaggregated run of InferenceMAX: 3 decode workers of a request each, 6 requests in flight.
DISAGGREGATED = {
    "mode": "disagg", "backend": "trtllm", "backend_version": "0.8.1.post3", "model": "deepseek-ai/DeepSeek-V3",
    "system": "h100_sxm", "precision": "fp8", "gemm_dtype": "fp8", "input_tokens": "1024", "output_tokens": "1024",
    "concurrency": "6", "prefill_workers": "1", "prefill_tp": "1", "prefill_attention_dp": "16", "prefill_moe_ep": "16",
    "decode_workers": "3", "decode_tp": "16", "decode_attention_dp": "1", "decode_moe_ep": "16",
}  # fmt: skip


class TestRecipes:
    def test_a_row_that_states_its_workers_finds_its_recipe(self, tmp_path: Path) -> None:
        recipe = recipe_of(only_row(tmp_path, **DISAGGREGATED))
        assert recipe is not None
        assert recipe.name == "trtllm/h100-fp8/1k1k/stp/ctx1_gen3_tep16_batch1_eplb0_mtp0"
        assert recipe.decode.batch == 1

    @pytest.mark.parametrize(
        "cells",
        [
            {"concurrency": "7"},
            {"decode_workers": "2"},
            {"decode_attention_dp": "16", "decode_tp": "1"},
            {"backend_version": "1.2.0"},
            {"precision": "fp4"},
        ],
    )
    def test_a_row_of_another_deployment_has_none(self, tmp_path: Path, cells: dict[str, str]) -> None:
        assert recipe_of(only_row(tmp_path, **{**DISAGGREGATED, **cells})) is None

    def test_without_workers_a_row_that_may_have_had_draft_tokens_has_none(self, tmp_path: Path) -> None:
        bare = {name: value for name, value in DISAGGREGATED.items() if not name.endswith("_workers")}
        assert recipe_of(only_row(tmp_path, **bare)) is None
        # Of 924 requests in flight there is one recipe, without any.
        recipe = recipe_of(only_row(tmp_path, **{**bare, "concurrency": "924"}))
        assert recipe is not None
        assert recipe.decode.groups == 16

    def test_a_row_of_two_recipes_is_matched_by_its_decode_workers(self, tmp_path: Path) -> None:
        cells = {
            "backend": "sglang", "backend_version": "0.5.8.post1", "system": "b200_sxm", "precision": "fp4",
            "input_tokens": "8192", "concurrency": "64", "decode_workers": "1", "decode_tp": "8",
        }  # fmt: skip
        names = []
        for expert in ("1", "8"):
            recipe = recipe_of(only_row(tmp_path, **{**DISAGGREGATED, **cells, "decode_moe_ep": expert}))
            assert recipe is not None
            names.append(recipe.name.rsplit("/", 1)[-1])
        assert names == ["low-latency-tp4-1p-tp8-1d", "low-latency-dep4-1p-tep8-1d"]

    def test_limits_and_split_are_the_recipes(self, tmp_path: Path) -> None:
        prefill, decode = sides_of(only_row(tmp_path, **DISAGGREGATED))
        assert (prefill.workers, prefill.split) == (1, Parallelism(1, 16, 16))
        assert (decode.workers, decode.split) == (3, Parallelism(16, 1, 16))
        engine = conditions_of_side(prefill).engine
        assert (engine.max_running_requests, engine.chunk_tokens, engine.overlap) == (2, 2048, False)
        engine = conditions_of_side(decode).engine
        assert (engine.max_running_requests, engine.memory_fraction, engine.overlap) == (1, 0.9, True)

    def test_requests_wait_for_a_place_in_the_batch_of_a_decode_worker(self, tmp_path: Path, pricer: Pricer) -> None:
        """Six in flight on three places: each waits for as long as one decodes, on average."""
        price = pricer.price(only_row(tmp_path, **DISAGGREGATED))
        assert price.ttft_s == pytest.approx(0.9 * 1023 * price.tpot_s, rel=0.15)

    def test_ranks_beyond_a_host_lie_in_several(self, tmp_path: Path, pricer: Pricer) -> None:
        _, decode = sides_of(only_row(tmp_path, **DISAGGREGATED))
        hosts = pricer.worker(decode.row, conditions_of_side(decode)).hosts
        assert hosts is not None
        assert hosts.ranks_per_host == 8
        assert pricer.worker(only_row(tmp_path)).hosts is None

    @pytest.mark.parametrize("system", ["b300_sxm", "gb200", "gb300_sxm"])
    def test_ranks_that_peer_links_join_lie_in_one(self, tmp_path: Path, pricer: Pricer, system: str) -> None:
        hosts = pricer.worker(only_row(tmp_path, system=system, tp="16.0", moe_tp="16.0")).hosts
        assert (hosts.ranks_per_host if hosts is not None else None) == (8 if system == "b300_sxm" else None)

    def test_lengths_vary_as_in_the_campaigns_other_runs(self, tmp_path: Path) -> None:
        assert conditions_of(only_row(tmp_path, **DISAGGREGATED)).output_share == 0.8

    def test_times_of_dynamos_containers_are_those_of_their_engine(self, tmp_path: Path) -> None:
        released, inside = HostTimes(step_s=1e-3), HostTimes(step_s=2e-3)
        pricer = Pricer("roofline", engines={"trtllm": EngineTimes(released, {"1.2.0rc6.post2": inside})})
        assert pricer.times_of(only_row(tmp_path, **DISAGGREGATED)) == inside
        assert pricer.times_of(only_row(tmp_path, **{**DISAGGREGATED, "backend_version": "1.3.0"})) == released


class TestClosedLoop:
    def test_each_slot_sends_its_requests_one_after_another(self) -> None:
        arrays = closed_loop(Loop(3, 100, 10, 1.0, 1.0, 4)).arrays
        assert np.count_nonzero(arrays.previous < 0) == 3
        assert np.array_equal(np.bincount(arrays.previous[arrays.previous >= 0]), np.ones(9))
        assert set(arrays.input_tokens) == {100}
        assert not arrays.think_s.any()

    def test_lengths_vary_from_the_stated_share_to_the_nominal_one(self) -> None:
        arrays = closed_loop(Loop(64, 1000, 200, 0.8, 0.8, 10)).arrays
        assert arrays.input_tokens.min() >= 800
        assert arrays.input_tokens.max() <= 1000
        assert arrays.input_tokens.mean() == pytest.approx(900, rel=0.01)
        assert arrays.output_tokens.mean() == pytest.approx(180, rel=0.02)

    def test_the_first_of_every_slot_are_sent_at_once(self) -> None:
        arrays = closed_loop(Loop(5, 100, 10, 1.0, 1.0, 2)).arrays
        first = arrays.previous < 0
        assert not arrays.arrival_s[first].any()
        assert np.isnan(arrays.arrival_s[~first]).all()


class TestPricing:
    def test_more_in_flight_takes_longer(self, tmp_path: Path, pricer: Pricer) -> None:
        few, many = (pricer.price(only_row(tmp_path, concurrency=c)) for c in ("2", "64"))
        assert 0 < few.ttft_s < many.ttft_s
        assert 0 < few.tpot_s < many.tpot_s

    def test_prompts_have_a_share_of_a_requests_latency(self, tmp_path: Path, pricer: Pricer) -> None:
        """The longer they are, and none where they take no time; a factor on prompts lengthens the latency by it."""
        cells = {"output_tokens": "32", "concurrency": "16"}
        rows = [only_row(tmp_path, input_tokens=tokens, **cells) for tokens in ("64", "512", "4096")]
        shares = [pricer.prompt_share(row) for row in rows]
        assert 0 <= shares[0] < shares[1] < shares[2] < 1.2
        times = pricer.times_of(rows[2])
        plain, slower = (pricer.with_times(rows[2], times, prompts=f).latency_s(32) for f in (1.0, 1.05))
        assert slower / plain - 1 == pytest.approx(0.05 * shares[2], rel=0.2)

    def test_the_front_end_delays_requests_and_tokens_and_no_step(self, tmp_path: Path) -> None:
        """Of one request at a time: its prompt is read, then its first token is streamed; TPOT stays."""
        row, times = only_row(tmp_path, concurrency="1"), HostTimes(step_s=1e-3)
        front = {"request_s": 6e-3, "read_s": 1e-3, "prompt_token_s": 3e-6, "stream_s": 50e-6}
        pricer = Pricer("roofline")
        bare, with_front = (
            pricer.with_times(row, of) for of in (times, HostTimes.model_validate(times.model_dump() | front))
        )
        assert with_front.tpot_s == pytest.approx(bare.tpot_s)
        assert with_front.ttft_s - bare.ttft_s == pytest.approx(6e-3 + 256 * 3e-6 + 50e-6, rel=1e-3)

    def test_host_work_is_hidden_where_an_engine_overlaps(self, tmp_path: Path) -> None:
        """SGLang that drafts tokens for Qwen3.5 forms its batches while the device waits."""
        cells = TestConditions.SGLANG | {"model": "Qwen/Qwen3.5-397B-A17B", "tp": "4", "gemm_dtype": "fp8"}
        pricer = Pricer()
        added = {}
        for split in ("moe_tp", "moe_ep"):  # drafts, and does not
            row = only_row(tmp_path, **{**cells, "moe_tp": "1", split: "4"})
            idle, busy = (pricer.with_times(row, HostTimes(step_s=1e-3, schedule_s=host_s)) for host_s in (0.0, 2e-3))
            added[conditions_of(row).engine.overlap] = busy.tpot_s / idle.tpot_s
        assert added[False] > 1.1
        assert added[True] < 1.01

    def test_drafted_tokens_shorten_the_time_of_a_token(self, tmp_path: Path) -> None:
        """By less than the tokens that a step makes, and a prompt that is held back waits for longer steps."""
        row = only_row(
            tmp_path, backend="trtllm", model="deepseek-ai/DeepSeek-R1", system="b200_sxm", precision="fp4",
            gemm_dtype="nvfp4", input_tokens="1024", output_tokens="1024", concurrency="64", attention_dp="8",
            moe_ep="8", backend_version="1.2.0rc6.post3",
        )  # fmt: skip
        pricer, times = Pricer(), HostTimes(step_s=1e-3)
        drafting, plain = (
            pricer.with_times(replace(row, version=version), times) for version in (row.version, "1.2.0rc6.post2")
        )
        drafts = conditions_of(row).engine.speculation
        assert drafts is not None
        made = drafts.tokens_per_step(Catalogue().get("Model", "deepseek-r1").spec)
        assert plain.tpot_s / made < drafting.tpot_s < plain.tpot_s
        assert drafting.ttft_s > plain.ttft_s

    def test_a_checkpoint_in_blocks_has_their_laws(self, tmp_path: Path) -> None:
        """A column says so, of experts or of other products; the catalogue's model is the 16-bit checkpoint."""
        pricer = Pricer()
        plain, blocks, experts = (
            only_row(tmp_path, model="Qwen/Qwen3-30B-A3B-FP8", precision="fp8", gemm_dtype=gemm, moe_dtype=moe)
            for gemm, moe in (("fp8", "fp8"), ("fp8_block", "fp8_block"), ("fp8", "fp8_block"))
        )
        workers = [pricer.worker(row) for row in (plain, blocks, experts)]
        assert [weights_law(worker.model, worker.weight_dtype) for worker in workers] == [
            "fp8",
            "fp8_block",
            "fp8_block",
        ]
        assert pricer.price(plain).tpot_s != pricer.price(blocks).tpot_s == pricer.price(experts).tpot_s

    @pytest.mark.parametrize(
        ("waits", "cells"),
        [
            (
                "BALANCED_DEEPSEEK",
                {
                    "precision": "fp4",
                    "gemm_dtype": "nvfp4",
                    "output_tokens": "8192",
                    "attention_dp": "8",
                    "moe_ep": "8",
                },
            ),
            (
                "FILLED_DEEPSEEK",
                {
                    "precision": "fp8",
                    "gemm_dtype": "fp8",
                    "output_tokens": "1024",
                    "attention_dp": "1",
                    "tp": "8",
                    "moe_tp": "8",
                },
            ),
        ],
    )
    def test_prompts_that_are_held_back_wait(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str, cells: dict[str, str]
    ) -> None:
        """At most for as many steps as the script says."""
        shared = {
            "backend": "trtllm", "model": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm", "input_tokens": "1024",
            "concurrency": "64", "backend_version": "1.2.0rc6.post2",
        }  # fmt: skip
        row, pricer = only_row(tmp_path, **shared | cells), Pricer()
        held = pricer.price(row)
        steps = max(getattr(inferencemax, waits)[key] for key in getattr(inferencemax, waits) if "timeout_iters" in key)
        monkeypatch.setattr(inferencemax, waits, {})
        free = pricer.price(row)
        assert 2 * free.tpot_s < held.ttft_s - free.ttft_s < steps * max(free.tpot_s, held.tpot_s)

    @pytest.mark.parametrize(
        ("cells", "reason"),
        [
            ({"mode": "cached"}, "mode cached"),
            ({"backend": "tgi"}, "engine tgi"),
            ({"model": "nobody/nothing"}, "model nobody/nothing"),
            ({"system": "tpu"}, "GPU tpu"),
            ({"gemm_dtype": "int2"}, "format int2"),
            ({"tp": "3"}, "split: "),
        ],
    )
    def test_what_cannot_be_simulated_says_why(
        self, tmp_path: Path, pricer: Pricer, cells: dict[str, str], reason: str
    ) -> None:
        with pytest.raises(NotPriced, match=reason):
            pricer.price(only_row(tmp_path, **cells))


class TestReport:
    def test_errors_are_relative_to_what_was_measured(self, tmp_path: Path, pricer: Pricer) -> None:
        price = pricer.price(only_row(tmp_path))
        cells = {
            "measured_ttft_ms": str(price.ttft_s * 1e3 / 1.1), "measured_tpot_ms": str(price.tpot_s * 1e3 / 0.8)
        }  # fmt: skip
        path = write(tmp_path / "rows.csv", cells, {"mode": "cached"})
        report = validate_silicon(path, pricer=pricer, rows_out=tmp_path / "out.csv")
        assert (report.rows, report.priced, list(report.skipped.values())) == (2, 1, [1])
        assert report.all.ttft_mape == report.all.ttft_bias == pytest.approx(0.1)
        assert report.all.tpot_median_ape == -report.all.tpot_bias == pytest.approx(0.2)
        with (tmp_path / "out.csv").open(newline="") as file:
            written = list(csv.DictReader(file))
        assert float(written[0]["predicted_tpot_ms"]) == pytest.approx(price.tpot_s * 1e3, abs=1e-4)
        assert written[1]["predicted_tpot_ms"] == ""
        assert "cached" in written[1]["skipped"]

    def test_rows_have_the_interval_of_their_engines_served_errors(
        self, tmp_path: Path, pricer: Pricer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Measured is simulated over the error: that of the 95th percentile gives the low end."""
        logs = {"ttft": (-0.4, -0.2, 0.1, 0.2, 0.3), "step": (-0.05, -0.01, 0.0, 0.02, 0.1), "prompts": (0.0,) * 5}
        law = {figure: {"logs": of, "runs": 50} for figure, of in logs.items()}
        known = EngineErrors.model_validate({"accelerators": [], "models": [], "situations": {"campaign": law}})
        monkeypatch.setattr(served_errors, "_read", lambda: {"vllm": known})
        path = write(tmp_path / "rows.csv", {}, {"backend": "sglang", "backend_version": "0.5.9"}, {"mode": "cached"})
        validate_silicon(path, pricer=pricer, rows_out=tmp_path / "out.csv")
        with (tmp_path / "out.csv").open(newline="") as file:
            vllm, *others = csv.DictReader(file)
        for figure, of in (("ttft", logs["ttft"]), ("tpot", logs["step"])):
            names = (f"{figure}_p5_ms", f"predicted_{figure}_ms", f"{figure}_p95_ms")
            low, mean, high = (float(vllm[name]) for name in names)
            assert low < mean < high
            assert (low, high) == pytest.approx((mean * np.exp(-of[-1]), mean * np.exp(-of[0])), abs=2e-4)
        assert others[0]["predicted_tpot_ms"] != ""
        for row in others:  # nothing is known of SGLang, and what is not simulated has no interval
            assert {row[f"{figure}_{end}_ms"] for figure in ("ttft", "tpot") for end in ("p5", "p95")} == {""}

    def test_start_up_rows_do_not_count_for_ttft(self, tmp_path: Path, pricer: Pricer) -> None:
        slow = {"backend": "trtllm", "backend_version": "1.0.0rc3", "measured_ttft_ms": "1e6"}
        report = validate_silicon(write(tmp_path / "rows.csv", {}, slow), pricer=pricer)
        assert (report.all.n, report.all.ttft_n) == (2, 1)
        assert report.start_up.ttft_n == 1
        assert report.start_up.ttft_mape > 0.9

    def test_json_has_the_documented_keys(self, tmp_path: Path) -> None:
        path = write(tmp_path / "rows.csv", {})
        answer = CliRunner().invoke(app, ["validate", "silicon", str(path), "--where", "tp=1", "--json", "--quiet"])
        assert answer.exit_code == 0, answer.output
        report = json.loads(answer.stdout)
        assert {"rows", "priced", "skipped", "all", "groups"} <= report.keys()
        assert {
            "key",
            "n",
            "ttft_median_ape",
            "ttft_mape",
            "ttft_bias",
            "tpot_median_ape",
            "tpot_mape",
            "tpot_bias",
        } <= (report["groups"][0].keys())

    def test_a_selection_without_a_value_is_refused(self, tmp_path: Path) -> None:
        answer = CliRunner().invoke(app, ["validate", "silicon", str(write(tmp_path / "r.csv", {})), "--where", "tp"])
        assert answer.exit_code == 2
