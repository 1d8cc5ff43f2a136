"""Attention of prompt chunks and of decodes, on one rank and layer.

Prefill, for b chunks of ``new`` tokens behind ``cached`` ones
    seconds    = launch + p_norm(memory, arithmetic) + tiles / multiprocessors * tile
    arithmetic = max(b * heads * 4 * width * (pairs + new * pad / 2) / (peak * share),
                     128 * (cached + new) * 4 * width / (peak per multiprocessor * share) * longest)   one tile
    tiles      = b * heads * ceil(new / 128)

Decode, for n sequences that read c tokens in total
    seconds    = launch + fill * (c / n) / (c / n + tokens) + p_norm(memory, arithmetic, units, serial)
    memory     = (c * KV bytes + n * query bytes) / (bandwidth * share)
    arithmetic = c * KV heads * max(heads per KV head, 16) * 4 * width / (peak * share)
    units      = n * (KV heads * unit + heads * head) / multiprocessors
    serial     = c / n * serial token

Mixed steps: decodes with P prompt tokens behind K cached ones, each a tile for every head (``MixedTerms``)
    tile(k)    = start + k / keys * rows * keys * 4 * width / (peak per multiprocessor * share)
    work       = heads * (ceil(P / rows) * tile(K + P / 2) + n * tile(u + 1)) / multiprocessors
    added      = max(work, longest tile) - the same without decodes

``width`` is the mean of the widths of a key and of a value. MLA's prefill has as many KV heads as heads; its decode has
one latent that all heads read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.laws.sheet import Sheet, p_norm
from hisearch.latency.operators import attention_pairs, windowed_pairs
from hisearch.specs.machines.laws import DecodeTerms, MixedTerms, PrefillTerms
from hisearch.specs.models.model import MlaSpec

#: Queries of a tile; least rows of a tensor-core product of a decode.
TILE_QUERIES = 128.0
LEAST_ROWS = 16.0

#: Bytes of an element of queries and outputs.
QUERY_BYTES = 2.0


class Heads(NamedTuple):
    """Attention of one rank and layer: query heads, KV heads, mean width of key and value, bytes kept per token."""

    heads: int
    kv_heads: int
    width: float
    kv_bytes: float


def relative_rate(width: float, rate_64: float, rate_256: float) -> float:
    """Rate at a head width relative to that at 128: linear in log width from 64 to 256, flat beyond."""
    return float(np.interp(np.log2(width), (6.0, 7.0, 8.0), (rate_64, 1.0, rate_256)))


def prefill_s(
    terms: PrefillTerms, sheet: Sheet, heads: Heads, batch: F8 | float, new: F8, cached: F8, window: float = np.inf
) -> F8:
    """Seconds for each broadcast entry of ``batch`` chunks of ``new`` (at least 1) tokens behind ``cached``.

    ``window`` bounds the keys that a query sees, itself included.
    """
    pairs = attention_pairs(new, cached) if np.isinf(window) else windowed_pairs(new, cached, window)
    cached = np.minimum(cached, max(window - 1.0, 0.0))
    peak = sheet.flops * terms.flops * relative_rate(heads.width, terms.rate_64, terms.rate_256)
    pair = 4.0 * heads.width
    spread = batch * heads.heads * pair * (pairs + new * terms.pad_tokens / 2.0) / peak
    rows = np.minimum(new, TILE_QUERIES)
    longest = (
        rows
        * np.minimum(cached + new, window + TILE_QUERIES)
        * pair
        * sheet.multiprocessors
        / peak
        * terms.longest_share
    )
    tokens = new * 2.0 * heads.heads * heads.width * QUERY_BYTES + (cached + new) * heads.kv_bytes
    memory = batch * tokens / (sheet.bytes_per_s * terms.bandwidth)
    tiles = np.maximum(batch * heads.heads * np.ceil(new / TILE_QUERIES) / sheet.multiprocessors, 1.0)
    joined = p_norm(terms.sharpness, memory, np.maximum(spread, longest))
    return np.asarray(terms.launch_s + joined + tiles * terms.tile_s)


def rebuild_s(terms: PrefillTerms, sheet: Sheet, heads: int, mla: MlaSpec, cached: F8) -> F8:
    """Seconds to rebuild keys and values of ``heads`` heads from ``cached`` latents, at attention's rate."""
    flops = 2.0 * mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return np.asarray(cached * flops / (sheet.flops * terms.flops))


def mixed_decode_s(
    terms: MixedTerms, sheet: Sheet, heads: Heads, prompt: F8, before: F8, sequences: F8, mean: F8
) -> F8:
    """Seconds that ``sequences`` decodes of ``mean`` tokens add to ``prompt`` tokens behind ``before``; broadcast."""
    peak = sheet.flops / sheet.multiprocessors * terms.flops
    key_s = terms.rows * 4.0 * heads.width / peak
    chunk = np.ceil(prompt / terms.rows) * (terms.tile_s + (before + prompt / 2.0) * key_s)
    decode = terms.tile_s + (mean + 1.0) * key_s
    each = heads.heads / sheet.multiprocessors
    longest = terms.tile_s + (before + prompt) * key_s
    alone = np.maximum(each * chunk, longest)
    return np.asarray(np.maximum(each * (chunk + sequences * decode), np.maximum(longest, decode)) - alone)


def decode_s(terms: DecodeTerms, sheet: Sheet, heads: Heads, sequences: F8, context: F8, *, warm: bool = False) -> F8:
    """Seconds for each broadcast entry of ``sequences`` (at least 1) that read ``context`` tokens in total.

    ``warm``: with the L2 cache of a repeated call, as in measurements.
    """
    rate = relative_rate(heads.width, terms.rate_64, terms.rate_256)
    read = context * heads.kv_bytes
    moved = read + sequences * 2.0 * heads.heads * heads.width * QUERY_BYTES
    memory = moved / (sheet.bytes_per_s * terms.bandwidth * rate)
    mean = context / sequences
    fill = terms.fill_s * mean / (mean + terms.fill_tokens)
    if warm:
        outside = 1.0 / (1.0 + (terms.cache_bytes / np.maximum(read, 1.0)) ** 4)
        memory = memory * (outside + (1.0 - outside) / terms.cache_speedup)
        fill = fill * (outside + (1.0 - outside) * terms.cached_fill)
    rows = heads.kv_heads * max(heads.heads / heads.kv_heads, LEAST_ROWS)
    arithmetic = context * rows * 4.0 * heads.width / (sheet.flops * terms.flops * rate)
    units = sequences * (heads.kv_heads * terms.unit_s + heads.heads * terms.head_s) / sheet.multiprocessors
    return np.asarray(
        terms.launch_s + fill + p_norm(terms.sharpness, memory, arithmetic, units, mean * terms.serial_token_s)
    )
