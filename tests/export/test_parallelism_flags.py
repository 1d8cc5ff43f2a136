"""Degrees of parallelism as each engine's flags say them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hisearch.export.engines.flags import engine_flags
from hisearch.export.engines.launch import Launch
from hisearch.export.engines.trtllm_options import llm_api_options
from hisearch.specs.deployments.deployment import PoolSpec
from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.models.model import ModelSpec
from tests.export.conftest import export_all

CATALOGUE = Catalogue()
MODEL = CATALOGUE.get("Model", "deepseek-v3").spec
H200 = CATALOGUE.get("Accelerator", "h200").spec

DEGREES = {
    "sglang": {
        "--tp-size", "--pp-size", "--dp-size", "--enable-dp-attention", "--attn-dp-size", "--ep-size", "--dcp-size",
        "--dcp-comm-backend", "--attention-backend", "--moe-a2a-backend", "--moe-dense-tp-size",
        "--enable-two-batch-overlap", "--attn-cp-size", "--enable-prefill-cp", "--cp-strategy",
    },
    "vllm": {
        "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size", "--enable-expert-parallel",
        "--decode-context-parallel-size", "--dcp-comm-backend", "--prefill-context-parallel-size",
    },
    "trtllm": {"--tp_size", "--pp_size", "--ep_size"},
}  # fmt: skip


def launch(engine: str, version: str = "", model: ModelSpec = MODEL, **degrees: Any) -> Launch:
    settings = {"name": engine, "version": version, "max_running_requests": 32, "chunk_tokens": 1024}
    settings["experts"] = degrees.pop("experts", {})
    pool = PoolSpec.model_validate({"accelerator": "h200", "engine": settings, **degrees})
    return Launch(pool, model, H200, 100_000)


def emitted_flags(engine: str, version: str = "", model: ModelSpec = MODEL, **degrees: Any) -> dict[str, str | None]:
    flags = engine_flags(launch(engine, version, model, **degrees))
    return {flag: value[0] if value else None for flag, *value in flags if flag in DEGREES[engine]}


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sglang", {"--tp-size": "8"}),
        ("vllm", {"--tensor-parallel-size": "8"}),
        ("trtllm", {"--tp_size": "8"}),
    ],
)
def test_tensor_parallelism_alone_needs_one_flag(engine: str, flags: dict[str, str]) -> None:
    assert emitted_flags(engine, tensor_parallel=8) == flags


def test_sglang_counts_all_ranks_of_a_stage_as_tensor_parallel() -> None:
    degrees = {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8, "pipeline_parallel": 2}
    assert emitted_flags("sglang", **degrees) == {
        "--tp-size": "8", "--pp-size": "2", "--attn-dp-size": "4", "--ep-size": "8",
    }  # fmt: skip
    assert emitted_flags("sglang", "0.5.9", **degrees) == {
        "--tp-size": "8", "--pp-size": "2", "--dp-size": "4", "--enable-dp-attention": None, "--ep-size": "8",
    }  # fmt: skip


def test_sglang_divides_limits_by_the_groups_itself() -> None:
    flags = dict(pair for pair in engine_flags(launch("sglang", attention_data_parallel=4)) if len(pair) == 2)
    assert flags["--max-running-requests"] == "128"
    assert flags["--chunked-prefill-size"] == "4096"
    assert flags["--schedule-conservativeness"] == "1"


def test_vllm_counts_groups_separately_and_deals_experts_or_not() -> None:
    degrees = {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8, "pipeline_parallel": 2}
    assert emitted_flags("vllm", **degrees) == {
        "--tensor-parallel-size": "2", "--pipeline-parallel-size": "2", "--data-parallel-size": "4",
        "--enable-expert-parallel": None,
    }  # fmt: skip


def test_trtllm_reads_attention_groups_from_its_file() -> None:
    degrees = {"attention_data_parallel": 8, "expert_parallel": 8}
    assert emitted_flags("trtllm", **degrees) == {"--tp_size": "8", "--ep_size": "8"}
    assert llm_api_options(launch("trtllm", **degrees))["enable_attention_dp"] is True
    assert "enable_attention_dp" not in llm_api_options(launch("trtllm", tensor_parallel=8))


def test_sglang_gets_the_host_pool_of_each_rank_of_each_attention_group() -> None:
    tiers = [{"medium": "ddr5", "gib": 1024}]
    degrees = {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8}
    flags = dict(pair for pair in engine_flags(launch("sglang", tiers=tiers, **degrees)) if len(pair) == 2)
    assert flags["--hicache-size"] == "137"  # 1,099.5 GB over 8 ranks


def test_vllm_gets_the_host_memory_of_each_data_parallel_engine() -> None:
    degrees = {"tensor_parallel": 2, "attention_data_parallel": 4, "expert_parallel": 8}
    tiers = [{"medium": "ddr5", "gib": 1000}]
    flags = dict(pair for pair in engine_flags(launch("vllm", tiers=tiers, **degrees)) if len(pair) == 2)
    assert flags["--kv-offloading-size"] == "250"


def test_ranks_that_share_each_sequence_s_kv() -> None:
    """Blocks count the tokens of all ranks; SGLang takes its pool in tokens of one rank."""
    degrees = {"tensor_parallel": 8, "decode_context_parallel": 4}
    assert emitted_flags("vllm", **degrees) == {
        "--tensor-parallel-size": "8", "--decode-context-parallel-size": "4", "--dcp-comm-backend": "ag_rs",
    }  # fmt: skip
    assert emitted_flags("sglang", **degrees) == {
        "--tp-size": "8", "--dcp-size": "4", "--dcp-comm-backend": "a2a", "--attention-backend": "flashinfer",
    }  # fmt: skip
    flags = dict(pair for pair in engine_flags(launch("sglang", **degrees)) if len(pair) == 2)
    assert flags["--max-total-tokens"] == "25000"
    blocks = dict(pair for pair in engine_flags(launch("vllm", **degrees)) if len(pair) == 2)
    assert int(blocks["--num-gpu-blocks-override"]) == 100_000 // (4 * int(blocks["--block-size"]))


def test_ranks_that_share_prompts() -> None:
    """SGLang counts them among the ranks of TP, and deals tokens of sparse attention in turns."""
    degrees = {"tensor_parallel": 2, "prefill_context_parallel": 4}
    assert emitted_flags("vllm", **degrees) == {"--tensor-parallel-size": "2", "--prefill-context-parallel-size": "4"}
    for name, strategy in (("deepseek-v3.2", "interleave"), ("qwen3-235b-a22b", "zigzag")):
        assert emitted_flags("sglang", model=CATALOGUE.get("Model", name).spec, **degrees) == {
            "--tp-size": "8", "--attn-cp-size": "4", "--enable-prefill-cp": None, "--cp-strategy": strategy,
        }  # fmt: skip


def test_tokens_that_are_sent_to_their_experts() -> None:
    experts = {"exchange": "all_to_all", "two_batch_overlap": True}
    degrees = {"attention_data_parallel": 8, "expert_parallel": 8}
    expected = {
        "--tp-size": "8", "--attn-dp-size": "8", "--ep-size": "8", "--moe-a2a-backend": "deepep",
        "--moe-dense-tp-size": "1", "--enable-two-batch-overlap": None,
    }  # fmt: skip
    assert emitted_flags("sglang", **degrees, experts=experts) == expected
    del expected["--enable-two-batch-overlap"]
    assert emitted_flags("sglang", **degrees, experts={"exchange": "all_to_all"}) == expected


def test_an_engine_that_cannot_be_started_with_the_degrees_gets_no_script(
    build_deployment: Any, build_accelerator: Any, tmp_path: Path
) -> None:
    """The alternative to vLLM's shared prompts of MLA, which SGLang has for sparse attention alone."""
    engine = {"name": "vllm", "max_running_requests": 32}
    for sets, written in ((1, True), (4, False)):
        pool = {"tensor_parallel": 2, "prefill_context_parallel": sets}
        deployment = build_deployment(engine=engine, pool=pool)
        out = tmp_path / str(sets)
        export_all(deployment, MODEL, build_accelerator(), out)
        assert (out / "alternatives/sglang/run.sh").exists() == written
        assert ("No script was written" in (out / "README.md").read_text()) != written
