"""Conditions of InferenceMAX's runs under SGLang, from the scripts of the campaign (``inferencemax``).

A script is for one model, format and GPU. Its last versions for the releases of the rows are repeated here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from hisearch.specs.versions import precedes
from hisearch.validate.silicon.campaigns import (
    H200,
    INFERENCEMAX,
    Conditions,
    burst,
    campaign_of,
    engine_of,
    short,
)
from hisearch.validate.silicon.rows import SiliconRow

#: Tokens that a server reads for each one that the client counted, where the client's tokeniser was broken: 35,921 of
#: 7,140 (InferenceX, pull request 937). 5.0 to 5.3 is plausible: 531 of 102 there.
RETOKENISED = 5.03
#: Requests for each one in flight in the first disaggregated runs (``_first_split``).
FIRST_ROUNDS = 5
#: First and last release of SGLang's images with such clients (``_broken_client``).
BROKEN_CLIENTS = ("0.5.10", "0.5.11")


def inferencemax_sglang(row: SiliconRow) -> Conditions:
    """By the script of the row's model and GPU."""
    model = row.model.lower()
    if "glm-5" in model:
        return _glm(row)
    if row.system == H200:
        return _h200(row)
    conditions = _qwen(row) if "qwen3.5" in model else _deepseek(row)
    if _broken_client(row):
        return replace(conditions, retokenised=RETOKENISED)
    return replace(conditions, requests_per_slot=FIRST_ROUNDS) if _first_split(row) else conditions


def sglang_drafts(row: SiliconRow) -> int:
    """Tokens that a run of InferenceMAX under SGLang drafts in a step."""
    if campaign_of(row) != INFERENCEMAX:
        return 0
    return 3 if _drafts_on_four(row) else 2 if _drafts_beyond(row) else 0


def _glm(row: SiliconRow) -> Conditions:
    """GLM-5 bounds the batch by the requests in flight (``glm5_fp8_b200.sh``, ``glm5_fp4_b200.sh``).

    In fp8 it leaves the receive interval to the engine.
    """
    fp4 = row.precision == "fp4"
    interval = 10 if fp4 and row.parallelism.attention_data == 1 else 1
    engine = engine_of(
        row, chunk_tokens=32768, most_running=row.concurrency, memory_fraction=0.9 if fp4 else 0.85,
        max_prefill_tokens=32768, receive_interval=interval, stream_interval=30, api_servers=6 if fp4 else None,
        fused_all_reduce=True,
    )  # fmt: skip
    return burst(engine, "fp8")


def _h200(row: SiliconRow) -> Conditions:
    """The engine's default interval; DeepSeek with KV in 16 bits (``dsr1_fp8_h200.sh``, ``qwen3.5_fp8_h200.sh``)."""
    if "qwen3.5" in row.model.lower():
        engine = engine_of(
            row, chunk_tokens=16384, most_running=128, memory_fraction=0.8, stream_interval=50, api_servers=6,
            fused_all_reduce=True,
        )  # fmt: skip
        return burst(engine, "fp8")
    engine = engine_of(
        row, chunk_tokens=32768, most_running=512 if short(row) else 256, memory_fraction=0.82,
        max_prefill_tokens=32768, stream_interval=10,
    )  # fmt: skip
    return burst(engine, "bf16")


def _qwen(row: SiliconRow) -> Conditions:
    """Qwen3.5 on B200 and B300: ``qwen3.5_fp8_b200.sh``, ``…_mtp.sh``, ``…_bf16_…``, ``…_fp4_…``, and those of B300.

    With 0.5.10 the receive interval of fp8 became 10 (pull request 1027), and states have 16 bits. So they have in fp4
    on a B300, and where tokens are drafted.
    """
    later, fp4, fp8 = _is_since(row, "0.5.10"), row.precision == "fp4", row.precision == "fp8"
    drafts, busy = sglang_drafts(row), row.concurrency >= 16
    limits: dict[str, Any] = {"chunk_tokens": 32768, "max_prefill_tokens": 32768, "most_running": 128}
    limits |= {"memory_fraction": 0.82, "receive_interval": 30 if busy else 10, "fused_all_reduce": True}
    limits |= {"stream_interval": 30, "api_servers": 6}
    states: Literal["fp32", "bf16"] = "fp32"
    if fp4 and row.system == "b300_sxm":
        limits |= {"memory_fraction": 0.8, "fused_all_reduce": row.parallelism.ranks == 8}
        states = "bf16"
    elif fp4:
        limits |= {"memory_fraction": 0.85, "receive_interval": 30, "most_running": max(row.concurrency, 128)}
        limits |= {"fused_all_reduce": False, "api_servers": None}
    elif fp8 and drafts:
        limits |= {"memory_fraction": 0.9, "most_running": row.concurrency}
        states = "bf16"
    elif fp8 and later:
        limits |= {"chunk_tokens": 16384, "max_prefill_tokens": 16384, "most_running": row.concurrency}
        limits |= {"memory_fraction": 0.8, "receive_interval": 10, "fused_all_reduce": False}
        states = "bf16"
    elif fp8:
        limits |= {"most_running": 256, "fused_all_reduce": False}
    return replace(_drafting(row, limits, drafts, "fp8" if fp4 or fp8 else "bf16"), state_dtype=states)


def _deepseek(row: SiliconRow) -> Conditions:
    """DeepSeek on B200, and by the same scripts on B300: a receive interval of 10 steps, of 30 from 16 requests on.

    ``dsr1_fp4_b200.sh``, ``dsr1_fp8_b200.sh``, ``dsr1_fp8_b200_mtp.sh``. All fuse all-reduce and norm. They draft two
    tokens with more than 64 in flight (``_drafts_beyond``).
    """
    drafts = sglang_drafts(row)
    limits: dict[str, Any] = {"receive_interval": 30 if row.concurrency >= 16 else 10, "fused_all_reduce": True}
    limits["stream_interval"] = 10 if row.precision == "fp4" else 30
    if row.precision == "fp4":
        limits |= {"chunk_tokens": 16384, "most_running": 256, "memory_fraction": 0.85}
    elif row.parallelism.ranks == 4:
        limits |= {"chunk_tokens": 8192, "most_running": 32, "memory_fraction": 0.95, "max_prefill_tokens": 8192}
        limits["receive_interval"] = 10
    elif drafts:
        limits |= {"chunk_tokens": 16384, "most_running": 512, "memory_fraction": 0.82}
    else:
        limits |= {"chunk_tokens": 32768, "most_running": 256, "memory_fraction": 0.82, "max_prefill_tokens": 32768}
    return _drafting(row, limits, drafts, "fp8")


def _drafting(row: SiliconRow, limits: dict[str, Any], drafts: int, kv_dtype: Literal["fp8", "bf16"]) -> Conditions:
    """The engine of ``limits``. SGLang 0.5.9 refuses a receive interval with attention groups."""
    if row.parallelism.attention_data > 1:
        limits = limits | {"receive_interval": 1}
    return burst(engine_of(row, **limits, overlap=not drafts, draft_tokens=drafts), kv_dtype)


def _broken_client(row: SiliconRow) -> bool:
    """Whether the client counted fewer tokens than the server read.

    Its tokeniser came from Transformers 5, which replaces that of DeepSeek-R1 by one without byte-level BPE. SGLang
    mends this in its server since 0.5.10, its first release with Transformers 5. The client's fix (pull request 937)
    did nothing for models that are named by hub (mended since by 1381; runs repeated by 1502).
    """
    first, fixed = BROKEN_CLIENTS
    known = row.version[:1].isdigit() and "deepseek" in row.model.lower() and row.mode == "agg"
    return known and _is_since(row, first) and not _is_since(row, fixed)


def _first_split(row: SiliconRow) -> bool:
    """Whether Dynamo's own scripts ran the disaggregated row, before those of srt-slurm.

    ``slurm_jobs/scripts/vllm/bench.sh`` of github ai-dynamo/dynamo sends five requests for every one in flight.
    """
    return row.mode == "disagg" and not _is_since(row, "0.5.8")


def _is_since(row: SiliconRow, release: str) -> bool:
    return row.version[:1].isdigit() and not precedes(row.version, release)


def _drafts_beyond(row: SiliconRow) -> bool:
    """DeepSeek in fp8 on eight ranks: up to 64 requests in flight without drafted tokens, up to 512 with them.

    ``nvidia-master.yaml``, ``dsr1-fp8-b200-sglang`` and ``dsr1-fp8-b200-sglang-mtp``, on a B300 likewise (pull request
    1059); ``dsr1_fp8_b200_mtp.sh``: two steps of the drafting layer, three tokens checked. Up to 64 the columns do not
    distinguish the two.
    """
    deepseek = "deepseek" in row.model.lower() and row.precision == "fp8"
    return deepseek and _is_since(row, "0.5.9") and not _is_since(row, "0.5.11") and row.concurrency > 64


def _drafts_on_four(row: SiliconRow) -> bool:
    """Qwen3.5 in fp8 drafts three tokens on four ranks with tensor-parallel experts (``qwen3.5_fp8_b200_mtp.sh``)."""
    split = row.parallelism
    qwen = "qwen3.5" in row.model.lower() and row.precision == "fp8"
    return qwen and row.version == "0.5.9" and split.ranks == split.tensor == 4 and split.expert == 1
