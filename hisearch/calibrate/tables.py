"""Operator latencies as tables, and files of our own form.

Our own form is a folder with any of these files, as CSV or parquet, one row per measurement, ``latency_s`` in seconds:

    gemm               dtype, m, n, k
    prefill_attention  kv_dtype, batch, new_tokens, heads, kv_heads, head_dim, value_dim
    decode_attention   kv_dtype, batch, context_tokens (of each sequence, with the new one), heads, kv_heads, head_dim
    mla_prefill, mla_decode   as above; of a decode, kv_heads 1 and the latent's width
    moe                dtype, tokens, hidden, width (an expert's, on a rank), per_token, experts, sets, routing (even or
                       skewed)
    linear_attention   dtype, batch, new_tokens, value_heads (of a rank): prompts, heads of 128 x 128
    sparse_attention   model (a name of the catalogue), dtype (of the weights), kv_dtype, phase (prefill or decode),
                       batch, new_tokens, cached_tokens, heads (of a rank): whole attention blocks, products included
    collectives        collective (all_reduce, all_gather, reduce_scatter, all_to_all), ranks, payload_bytes

``dtype`` is bf16, fp8, fp8_block, nvfp4, fp4 or int4; ``source``, where there is one, names the kernel.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

#: Columns of each table of our own form, besides ``latency_s``.
COLUMNS: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype", "m", "n", "k"),
    "prefill_attention": ("kv_dtype", "batch", "new_tokens", "heads", "kv_heads", "head_dim", "value_dim"),
    "decode_attention": ("kv_dtype", "batch", "context_tokens", "heads", "kv_heads", "head_dim"),
    "mla_prefill": ("kv_dtype", "batch", "new_tokens", "heads", "kv_heads", "head_dim", "value_dim"),
    "mla_decode": ("kv_dtype", "batch", "context_tokens", "heads", "kv_heads", "head_dim"),
    "moe": ("dtype", "tokens", "hidden", "width", "per_token", "experts", "sets", "routing"),
    "linear_attention": ("dtype", "batch", "new_tokens", "value_heads"),
    "sparse_attention": (
        "model",
        "dtype",
        "kv_dtype",
        "phase",
        "batch",
        "new_tokens",
        "cached_tokens",
        "heads",
    ),
    "collectives": ("collective", "ranks", "payload_bytes"),
}

#: Widths of DeepSeek's MLA, on which aiconfigurator measured it: key, value, latent with its rotary part, rotary part.
MLA_KEY, MLA_VALUE, MLA_LATENT, MLA_ROTARY = 192, 128, 576, 64


class Tables(NamedTuple):
    """Tables by name, and what each was read from."""

    frames: dict[str, pd.DataFrame]
    sources: dict[str, str]


def read_own(folder: Path) -> Tables:
    """Tables of our own form.

    Raises:
        ValueError: the folder has none, or one lacks a column.
    """
    import pandas as pd

    frames, sources = {}, {}
    for name, columns in COLUMNS.items():
        for path in (folder / f"{name}.csv", folder / f"{name}.parquet"):
            if not path.exists():
                continue
            frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
            missing = [column for column in (*columns, "latency_s") if column not in frame.columns]
            if missing:
                raise ValueError(f"{path}: columns {', '.join(missing)} are missing")
            frames[name], sources[name] = frame, path.name
    if not frames:
        raise ValueError(f"{folder}: none of {', '.join(f'{name}.csv' for name in COLUMNS)} is there")
    return Tables(frames, sources)
