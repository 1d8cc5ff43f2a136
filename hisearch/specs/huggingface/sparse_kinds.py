"""Compressed attention of DeepSeek-V4, and block-sparse attention of MiniMax-M3, in a ``config.json``."""

from __future__ import annotations

from typing import Any

from hisearch.specs.huggingface.config import Config
from hisearch.specs.huggingface.families import Family
from hisearch.specs.wording import described

#: Tokens of an entry whose layers have an indexer (vLLM 0.33.0, ``models/deepseek_v4/attention.py``).
INDEXED_RATIO = 4


def sparse_kinds(config: Config, family: Family) -> dict[str, Any]:
    """Sections of kinds of attention that read entries or blocks; {} where the architecture has neither."""
    if family.compressed:
        return _compressed(config)
    return _block_sparse(config) if family.block_sparse else {}


def _compressed(config: Config) -> dict[str, Any]:
    """Layers by ``compress_ratios``, of which those beyond the last layer are the drafting head's."""
    layers, listed = config.need("num_hidden_layers"), config.get("compress_ratios", [])
    known = isinstance(listed, list) and len(listed) >= layers and all(isinstance(ratio, int) for ratio in listed)
    ratios = listed[:layers] if known else []
    if not known:
        config.faults.append(f"compress_ratios is {described(listed)}, expected a number for each of {layers} layers")
    topk = config.need("index_topk")
    entries = [
        {"ratio": ratio, "layers": ratios.count(ratio), "topk": topk if ratio == INDEXED_RATIO else 0}
        for ratio in sorted({ratio for ratio in ratios if ratio > 1})
    ]
    return {
        "attention": "compressed",
        "residual_streams": config.count("hc_mult", 1),
        "compressed_attention": {
            "window_tokens": config.need("sliding_window"),
            "entries": entries,
            "q_lora_rank": config.need("q_lora_rank"),
            "rotary_dim": config.need("qk_rope_head_dim"),
            "output_rank": config.need("o_lora_rank"),
            "output_groups": config.need("o_groups"),
            "index_heads": config.need("index_n_heads"),
            "index_head_dim": config.need("index_head_dim"),
        },
    }


def _block_sparse(config: Config) -> dict[str, Any]:
    section = config.get("sparse_attention_config", {})
    if not isinstance(section, dict) or not section.get("use_sparse_attention", True):
        return {}
    inner = Config(section)
    layers = sum(bool(sparse) for sparse in inner.get("sparse_attention_freq", []))
    kept = {
        "block_tokens": inner.need("sparse_block_size"),
        "topk_blocks": inner.need("sparse_topk_blocks"),
        "index_heads": inner.need("sparse_num_index_heads"),
        "index_head_dim": inner.need("sparse_index_dim"),
    }
    disabled = inner.get("sparse_disable_index_value", [])
    if sum(bool(value) for value in disabled) < layers:
        inner.faults.append("index values, of layers without sparse_disable_index_value, are not known")
    config.faults += [f"sparse_attention_config: {fault}" for fault in inner.faults]
    return {"block_sparse": {"layers": layers, **kept}} if layers else {}
