"""Which engines keep the KV of layers with a sliding window apart from that of the others."""

from __future__ import annotations

from hisearch.specs.base import EngineName
from hisearch.specs.models.model import ModelSpec


def keeps_window_pool(engine: EngineName, model: ModelSpec) -> bool:
    """Whether an engine keeps the KV of ``model``'s windows in a pool of its own.

    SGLang does for gpt-oss, whose heads have sinks, and for Llama 4, whose windows are chunks. For other models, such
    as Gemma 3, it keeps the KV of all tokens in all layers.
    Source: SGLang 0.5.9 and 0.5.23, ``configs.model_config.is_hybrid_swa_model``, ``disable_hybrid_swa_memory``.
    """
    if engine != "sglang" or model.sliding_window_tokens < 2:
        return False
    return model.attention_sinks or model.windows_are_chunks
