"""Which engines keep the KV of layers with a sliding window apart from that of the others."""

from __future__ import annotations

from hisearch.specs.base import EngineName
from hisearch.specs.models.model import ModelSpec

#: Architectures whose windows SGLang keeps in a pool of their own -> tokens of the window besides those that a layer
#: sees before the newest. The models of gpt-oss and Gemma 4 subtract one from the window; the others do not.
#: Source: SGLang 0.5.23, ``is_hybrid_swa_model`` of ``configs.model_config``, ``resolve_sliding_window_size`` of
#: ``model_runner_components.load_model_utils``.
WINDOW_POOLS = {"gpt_oss": 1, "gemma4": 1, "llama4": 0, "mimo_v2_flash": 0, "step3p5": 0, "step3p7": 0}


def _architecture(model: ModelSpec) -> str:
    """The stated one; else that of models with the same kind of windows."""
    if model.architecture:
        return model.architecture
    if model.windows_are_chunks:
        return "llama4"
    return "gpt_oss" if model.attention_sinks else ""


def keeps_window_pool(engine: EngineName, model: ModelSpec) -> bool:
    """Whether an engine keeps the KV of ``model``'s windows in a pool of its own.

    SGLang does for the architectures of ``WINDOW_POOLS``, and for DeepSeek-V4, whose windows lie apart from its
    entries. For other models, such as Gemma 3, it keeps the KV of all tokens in all layers
    (``disable_hybrid_swa_memory`` of its ``model_overrides``).
    """
    if engine == "sglang" and model.compressed_attention is not None:
        return True
    if engine != "sglang" or model.sliding_window_tokens < 2:
        return False
    return _architecture(model) in WINDOW_POOLS


def seen_tokens(model: ModelSpec) -> int:
    """Tokens that a layer with a window sees besides the newest, as SGLang has it."""
    return model.sliding_window_tokens - WINDOW_POOLS.get(_architecture(model), 1)


def layer_kv_elements(model: ModelSpec, tensor_parallel: int) -> tuple[int, int]:
    """Elements that a rank keeps of a token in a layer with full attention, and in one with a window (without MLA)."""
    own = model.window_heads
    full = max(1, model.kv_heads // tensor_parallel) * (model.head_dim + (model.value_head_dim or model.head_dim))
    if own is None:
        return full, full
    kv_heads = max(1, own.kv_heads // tensor_parallel)
    return full, kv_heads * (own.head_dim + (own.value_head_dim or own.head_dim))


def blocks_of_page(model: ModelSpec, tensor_parallel: int) -> tuple[int, int]:
    """Blocks in which vLLM keeps a page's tokens, of a layer with full attention and of one with a window.

    Blocks take as many bytes in all layers. Layers that keep fewer of a token, by a whole factor, have as many more
    tokens in a block; else their blocks are padded (vLLM, ``unify_kv_cache_spec_page_size``). Either is 1.
    """
    full, windowed = layer_kv_elements(model, tensor_parallel)
    if full % windowed == 0:
        return full // windowed, 1
    return 1, windowed // full if windowed % full == 0 else 1
