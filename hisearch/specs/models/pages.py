"""Tokens of a KV page that engines keep for a model where nothing is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisearch.specs.base import ENGINE_TITLES, DType, EngineName

if TYPE_CHECKING:
    from hisearch.specs.models.model import ModelSpec

#: Tokens per KV page where nothing is said, and the model asks for nothing else.
PAGE_TOKENS: dict[EngineName, int] = {"vllm": 16, "sglang": 1, "trtllm": 32}

#: Tokens of a KV page under sparse attention. SGLang sets 64 over whatever it is told (``server_args.py``: "Setting
#: page size to 64 for DeepSeek DSA"). vLLM's indexer has blocks of 64 alone (``v1/attention/backends/mla/indexer.py:
#: get_supported_kernel_block_sizes``); its releases set it ("Forcing kv cache block size to 64", ``platforms/cuda.py``)
#: or refuse another. TensorRT-LLM sets 64 on Hopper ("Change tokens_per_block to: 64 for using FlashMLA",
#: ``py_executor_creator.py``) and takes what it is told on Blackwell, 64 as well. Read 2026-11.
SPARSE_PAGE_TOKENS = 64


#: Tokens of a KV page of DeepSeek-V4 (vLLM 0.33.0, ``models/deepseek_v4/sparse_mla.py``; SGLang 0.5.23,
#: ``arg_groups/model_overrides/deepseek_v4.py``; TensorRT-LLM is taken to have the same).
COMPRESSED_PAGE_TOKENS = 256


def kept_page_tokens(model: ModelSpec) -> int | None:
    """Tokens per KV page that the engines keep for this model; None where each has its own default.

    MiniMax-M3's are its sparse blocks (SGLang 0.5.23, ``arg_groups/model_overrides/minimax_m3.py``, on Hopper and
    Blackwell).
    """
    if model.compressed_attention is not None:
        return COMPRESSED_PAGE_TOKENS
    if model.block_sparse is not None:
        return model.block_sparse.block_tokens
    return SPARSE_PAGE_TOKENS if model.sparse_attention is not None else None


def page_warnings(engine: EngineName, page_tokens: int, model: ModelSpec) -> tuple[str, ...]:
    """Warnings where the engine will not use the simulated page size."""
    kept = kept_page_tokens(model)
    if kept is None or page_tokens == kept:
        return ()
    where = " on Hopper" if engine == "trtllm" else ""
    return (
        f"{ENGINE_TITLES[engine]} keeps {kept}-token pages for sparse attention{where}, or refuses others; "
        f"{page_tokens} were simulated, as page_tokens asks: leave it out, or write {kept}",
    )


def usual_kv_dtype(model: ModelSpec) -> DType:
    """Format of the KV cache that engines keep for this model where they are told nothing."""
    return "fp8" if model.compressed_attention is not None else "bf16"


def entries_warnings(engine: EngineName, kv_dtype: DType, model: ModelSpec) -> tuple[str, ...]:
    """What is approximated of a model with compressed entries, or blocks; and formats that an engine does not keep.

    vLLM keeps DeepSeek-V4's entries in 16 bits where it is told so and FlashInfer runs, else in fp8; SGLang keeps
    FlashMLA's layout whatever it is told (``DSV4PoolConfigurator``).
    """
    title, warnings = ENGINE_TITLES[engine], []
    if model.compressed_attention is not None:
        if kv_dtype != "fp8":
            warnings.append(
                f"{title} keeps DeepSeek-V4's windows and entries in fp8 unless told otherwise; {kv_dtype} was "
                "simulated: write kv_dtype fp8"
            )
        if engine == "vllm":
            warnings.append(
                "windows and states of compressed attention are set aside for the running requests, and every cached "
                "prefix counts as having its own; vLLM keeps them in the blocks of one pool"
            )
        if engine == "trtllm":
            warnings.append(
                "how TensorRT-LLM divides memory among windows and compressed entries is not known: those of all "
                "running requests are set aside"
            )
    if model.block_sparse is not None and kv_dtype not in ("bf16", "fp16"):
        warnings.append(
            f"index keys of block-sparse attention count 16 bits an element; {title} can keep them in fp8 too"
        )
    return tuple(warnings)
