"""Tables of operator latencies: the user's own (``own_tables``) and aiconfigurator-core's (``refit``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

#: Columns of each table, besides ``latency_s``.
COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype", "m", "n", "k"),
    "prefill_attention": ("kv_dtype", "batch", "new_tokens", "heads", "kv_heads", "head_dim", "value_dim"),
    "decode_attention": ("kv_dtype", "batch", "context_tokens", "heads", "kv_heads", "head_dim"),
    "mla_prefill": ("kv_dtype", "batch", "new_tokens", "heads", "kv_heads", "head_dim", "value_dim"),
    "mla_decode": ("kv_dtype", "batch", "context_tokens", "heads", "kv_heads", "head_dim"),
    "moe": ("dtype", "tokens", "hidden", "width", "per_token", "experts", "sets", "routing"),
    "linear_attention": ("dtype", "batch", "new_tokens", "value_heads"),
    "kda": ("dtype", "batch", "new_tokens", "value_heads"),
    "sparse_attention": (
        "model", "dtype", "kv_dtype", "phase", "batch", "new_tokens", "cached_tokens", "heads",
    ),
    "collectives": ("collective", "ranks", "payload_bytes"),
}  # fmt: skip

#: Widths of DeepSeek's MLA, on which aiconfigurator measured it: key, value, latent with its rotary part, rotary part.
MLA_KEY, MLA_VALUE, MLA_LATENT, MLA_ROTARY = 192, 128, 576, 64


class Tables(NamedTuple):
    """Tables by name, with the columns of ``COLUMNS``, and the source of each."""

    frames: dict[str, pd.DataFrame]
    sources: dict[str, str]
