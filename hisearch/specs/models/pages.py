"""Tokens of a KV page that engines keep for a model where nothing is said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hisearch.specs.base import ENGINE_TITLES, EngineName

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


def kept_page_tokens(model: ModelSpec) -> int | None:
    """Tokens per KV page that the engines keep for this model; None where each has its own default."""
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
