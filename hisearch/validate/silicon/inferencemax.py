"""Conditions of InferenceMAX's runs, from the scripts of the campaign; SGLang's in ``inferencemax_sglang``.

InferenceMAX (SemiAnalysis) publishes its scripts: ``benchmark_serving.py`` sends ten requests for every one in flight,
draws each length uniformly from 0.8 to 1 times the nominal one, and warms up before it starts the clock, so that the
first burst counts. Each script states the server's flags; this module repeats those that change the schedule.
Source: github SemiAnalysisAI/InferenceX, ``benchmarks/single_node/*.sh`` and ``benchmarks/benchmark_lib.sh``, and the
earlier ``benchmarks/70b_*``, ``dsr1_*`` and ``gptoss_*`` scripts of InferenceMAX.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hisearch.validate.silicon.campaigns import (
    H200,
    Conditions,
    burst,
    engine_of,
    in_flight,
    short,
    vllm_before,
)
from hisearch.validate.silicon.inferencemax_sglang import inferencemax_sglang
from hisearch.validate.silicon.rows import UNKNOWN_VERSION, SiliconRow

#: Minor version of vLLM 0 from which all-reduce and norm are fused by default.
FUSES_SINCE = 16
#: TensorRT-LLM version only of InferenceMAX's scripts with multi-token prediction for DeepSeek-R1.
DRAFTING = "1.2.0rc6.post3"
#: Tokens that the campaign adds to prompt and output for a model's longest sequence.
LONGEST_SPARE = 200
#: How TensorRT-LLM holds prompts back: until a step is almost full of them, or its attention groups until each has one.
#: The script of gpt-oss leaves the rest to the engine.
FILLED: dict[str, Any] = {"batch_wait_timeout_iters": 20, "batch_wait_max_tokens_ratio": 0.9}
FILLED_DEEPSEEK: dict[str, Any] = {"batch_wait_timeout_iters": 40, "batch_wait_max_tokens_ratio": 0.8}
BALANCED: dict[str, Any] = {"attention_dp_balance": True}
BALANCED_DEEPSEEK: dict[str, Any] = BALANCED | {
    "attention_dp_timeout_iters": 60, "attention_dp_batching_wait_iters": 0,
}  # fmt: skip


def inferencemax(row: SiliconRow) -> Conditions:
    """Conditions of ``row`` by the script of its engine, model and GPU."""
    build = {"vllm": _inferencemax_vllm, "sglang": inferencemax_sglang, "trtllm": _inferencemax_trtllm}[row.backend]
    return build(row)


def _inferencemax_vllm(row: SiliconRow) -> Conditions:
    """KV is fp8 for Llama and, on Blackwell, for gpt-oss and checkpoints in fp8 or fp4; else bf16.

    On a B200 Llama's graphs hold decodes alone (``FULL_DECODE_ONLY``, no ``splitting_ops``; ``70b_fp4_b200_docker.sh``,
    ``70b_fp8_b200_docker.sh``), and those of gpt-oss up to 2,048 tokens (``cuda-graph-sizes``; ``gptoss_fp4_b200.sh``).
    """
    model, blackwell = row.model.lower(), row.system.startswith("b")
    if "minimax" in model:
        return _inferencemax_minimax(row)
    narrow = "llama" in model or (blackwell and row.precision in ("fp8", "fp4"))
    engine = engine_of(row, chunk_tokens=8192, most_running=1024, fused_all_reduce=_vllm_fuses(row))
    if blackwell and "llama" in model:
        engine = engine.model_copy(update={"cudagraph_mode": "full_decode_only"})
    elif blackwell and "gpt-oss" in model:
        engine = engine.model_copy(update={"max_cudagraph_capture_size": 2048})
    return burst(engine, "fp8" if narrow else "bf16")


def _vllm_fuses(row: SiliconRow) -> bool:
    """Whether vLLM fuses all-reduce and norm, on Hopper and Blackwell.

    The scripts for Llama, for Kimi and gpt-oss on a B200 and for MiniMax-M2.5 in fp4 set it
    (``enable_fi_allreduce_fusion``, later ``fuse_allreduce_rms``); since 0.16 it is vLLM's default (github
    vllm-project/vllm, issues 34458 and 35426, on regressions from it).
    """
    set_by_script = row.version == UNKNOWN_VERSION or row.system.startswith("b")
    return set_by_script or not vllm_before(row, FUSES_SINCE)


def _inferencemax_minimax(row: SiliconRow) -> Conditions:
    """The scripts of MiniMax-M2.5: two prompts a step on Blackwell since vLLM 0.19.0.

    ``minimaxm2.5_fp8_b200.sh`` of 0.17.0 left KV in bf16 and 0.95 of the memory to the engine, and steps at its default
    of 8,192 tokens. Since pull request 947 (0.19.0) KV is fp8 and ``--max-num-batched-tokens`` is twice the prompt.
    ``minimaxm2.5_fp4_b200.sh`` sets both in its 0.19.0 version, and neither in the nightly build's, whose checkpoint
    states fp8. ``minimaxm2.5_fp8_h100.sh`` sets at most 256 requests and leaves the rest to the engine.
    """
    if not row.system.startswith("b"):
        return burst(engine_of(row, chunk_tokens=8192, most_running=256, fused_all_reduce=True), "bf16")
    if _first_minimax(row):
        engine = engine_of(row, chunk_tokens=8192, most_running=1024, memory_fraction=0.95, fused_all_reduce=True)
        return burst(engine, "bf16")
    chunk_tokens = 8192 if row.version.startswith("nightly") else 2 * row.input_tokens
    return burst(engine_of(row, chunk_tokens=chunk_tokens, most_running=1024, fused_all_reduce=True), "fp8")


def as_it_ran(row: SiliconRow) -> SiliconRow:
    """``row`` with the split that its script actually ran.

    The first script for MiniMax-M2.5 in fp8 on a B200 spread the experts over the ranks in every run: it tested
    ``"$EP_SIZE" -ge 1`` (fixed by pull request 947).
    """
    split = row.parallelism
    if not _first_minimax(row) or split.expert == split.tensor:
        return row
    return replace(row, parallelism=split._replace(expert=split.tensor))


def _first_minimax(row: SiliconRow) -> bool:
    """Rows of the first script for MiniMax-M2.5 in fp8 on a B200 (vLLM 0.17.0, before 0.19.0)."""
    fp8 = "minimax" in row.model.lower() and row.precision == "fp8" and row.system.startswith("b")
    return fp8 and vllm_before(row, 19)


def _inferencemax_trtllm(row: SiliconRow) -> Conditions:
    """Token budgets by model; Llama at 1k/1k on fewer than 8 ranks gathers prompts."""
    groups = row.parallelism.attention_data > 1
    if row.system == H200:
        return _inferencemax_trtllm_h200(row)
    if "llama" in row.model.lower():
        return burst(engine_of(row, chunk_tokens=16384, most_running=2048, waits=_llama_waits(row)), "fp8")
    if "gpt-oss" in row.model.lower():
        engine = engine_of(
            row, chunk_tokens=20000, most_running=512, memory_fraction=0.85, stream_interval=20, api_servers=4,
            waits=BALANCED if groups else {},
        )  # fmt: skip
        return burst(engine, "fp8")
    return _inferencemax_deepseek_trtllm(row)


def _llama_waits(row: SiliconRow) -> dict[str, Any]:
    return FILLED if short(row) and row.parallelism.ranks < 8 else {}


def _inferencemax_deepseek_trtllm(row: SiliconRow) -> Conditions:
    """DeepSeek on a B200: ``dsr1_fp4_b200_trt.sh``, ``dsr1_fp8_b200_trt.sh``, and with ``_mtp`` those that draft.

    ``DRAFTING`` is the image of the latter (perf-changelog.yaml, pull requests 632 and 642): three tokens, one with
    attention groups. They bound the batch by the requests in flight, and a step by the tokens of a full one. Rows that
    state no version are of the first scripts, without piecewise graphs, which gave KV 0.9 of the memory
    (``dsr1_fp4_b200_trt_slurm.sh`` of October 2025; ``dsr1_b200_trt_slurm.sh`` states nothing, and the engine's default
    is the same).
    """
    groups, fp8, first = row.parallelism.attention_data > 1, row.precision == "fp8", row.version == UNKNOWN_VERSION
    drafts = 0 if row.version != DRAFTING else 1 if groups else 3
    running, share = 2048, 0.9 if first else 0.8
    # Requests that the largest graph holds, and with drafts those that run: of a rank, half or all of an equal share.
    batch = max(row.concurrency // (8 if fp8 and drafts else 4), 1) if groups else row.concurrency
    if drafts:
        running, budget = batch, ((drafts + 1) * batch + row.input_tokens + 127) // 64 * 64
        if fp8 and groups:
            share = 0.7
    else:
        budget = max((row.concurrency + row.input_tokens + 127) // 64 * 64, 8192)
        if fp8 and not first and row.output_tokens == 8192 and row.concurrency >= 256:
            batch, share = row.concurrency // 8, 0.7
        if fp8 and not first and row.input_tokens == 8192 and row.parallelism.ranks == 4:
            share = 0.75
    waits = BALANCED_DEEPSEEK if groups else FILLED_DEEPSEEK if _delays(row, drafts) else {}
    engine = engine_of(
        row, chunk_tokens=budget, most_running=running, memory_fraction=share, stream_interval=10, draft_tokens=drafts,
        waits=waits,
    )  # fmt: skip
    if not first:
        mode = "full_and_piecewise" if _in_pieces(row, drafts) else None
        engine = engine.model_copy(update={"cudagraph_mode": mode, "max_cudagraph_capture_size": batch})
    return burst(engine, "fp8")


def _delays(row: SiliconRow, drafts: int) -> bool:
    """Whether DeepSeek's script in fp8 gathers prompts (``DELAY_BATCHING``)."""
    return row.precision == "fp8" and short(row) and 64 <= row.concurrency < 256 and not drafts


def _in_pieces(row: SiliconRow, drafts: int) -> bool:
    """Whether DeepSeek's script on a B200 captures piecewise graphs (``PIECEWISE_CUDA_GRAPHS``)."""
    groups, at, split = row.parallelism.attention_data > 1, row.concurrency, row.parallelism
    lengths = (row.input_tokens // 1024, row.output_tokens // 1024)
    if row.precision == "fp8" and drafts:
        return not groups and at > {(1, 1): 4, (1, 8): 8, (8, 1): 16}[lengths]
    if row.precision == "fp8":
        return {(1, 1): at >= 64, (1, 8): 128 <= at < 256, (8, 1): at >= 64}[lengths]
    if drafts:
        return {(1, 1): at in (32, 64) or (at == 128 and not groups), (1, 8): at == 64, (8, 1): False}[lengths]
    return short(row) and split.ranks == split.expert == 8


def _inferencemax_trtllm_h200(row: SiliconRow) -> Conditions:
    """``70b_fp8_h200_trt_slurm.sh``, ``gptoss_fp4_h200_trt.sh`` and ``dsr1_fp8_h200_trt.sh``.

    Llama's steps hold the model's longest sequence; gpt-oss keeps KV in 16 bits; DeepSeek gathers no
    prompts without attention groups, and its largest graph holds 128 requests.
    """
    groups = row.parallelism.attention_data > 1
    if "llama" in row.model.lower():
        budget = row.tokens + LONGEST_SPARE
        return burst(engine_of(row, chunk_tokens=budget, most_running=2048, waits=_llama_waits(row)), "fp8")
    if "gpt-oss" in row.model.lower():
        engine = engine_of(
            row, chunk_tokens=20000, most_running=row.concurrency, memory_fraction=0.85, stream_interval=20,
            api_servers=4, waits=BALANCED if groups else {},
        )  # fmt: skip
        return burst(engine, "bf16")
    drafts = 0 if row.version == UNKNOWN_VERSION else _drafts_on_h200(row)
    budget, running = max((row.concurrency + row.input_tokens + 127) // 64 * 64, 8192), 2048
    if drafts:
        running = in_flight(row)
        budget = ((drafts + 1) * running + row.input_tokens + 127) // 64 * 64
    engine = engine_of(
        row, chunk_tokens=budget, most_running=running, memory_fraction=0.75, stream_interval=10, draft_tokens=drafts,
        waits=BALANCED_DEEPSEEK if groups else {},
    )  # fmt: skip
    return burst(engine.model_copy(update={"max_cudagraph_capture_size": 128}), "fp8")


def _drafts_on_h200(row: SiliconRow) -> int:
    """Tokens that DeepSeek drafts under TensorRT-LLM on an H200, beyond what runs without drafts.

    ``nvidia-master.yaml``, ``dsr1-fp8-h200-trt`` and ``dsr1-fp8-h200-trt-mtp``: up to 64 in flight the columns do not
    distinguish the two. Three tokens, one with attention groups.
    """
    groups, at = row.parallelism.attention_data > 1, row.concurrency
    if not groups:
        return 3 if (row.input_tokens, row.output_tokens) == (1024, 8192) and at == 128 else 0
    return 1 if at >= (256 if row.output_tokens == 8192 else 128) else 0
