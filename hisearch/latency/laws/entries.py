"""Attention that reads compressed entries or chosen blocks, on one rank and layer: the block without dense products.

    block      = launch + index launch + b * sequence + T * (token + index token + heads * head token)
               + (window pairs + read pairs) * pair FLOPs / (peak * read share)
               + scored pairs * score FLOPs / (fp8 peak * score share)

T tokens of b chunks or decodes. Layers without an indexer have none of its terms. A query reads a window's pairs where
there is one, and of its n / r entries all, or at most topk.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.matrices.entries import EntriesShape
from hisearch.latency.operators import AttentionShape, attention_pairs, windowed_pairs
from hisearch.specs.machines.laws import EntriesPhase, EntriesTerms


class Sheets(NamedTuple):
    """The accelerator's figures at the peak of 16 bits, and of fp8."""

    wide: Sheet
    narrow: Sheet


def layer_launch_s(terms: EntriesTerms, kind: EntriesShape | None) -> float:
    """Launches of a layer with entries of ``kind``, or with a window alone."""
    return terms.launch_s + (terms.index_launch_s if kind is not None and kind.index is not None else 0.0)


def entries_prefill_s(
    terms: EntriesTerms, sheets: Sheets, shape: AttentionShape, heads: int, kind: EntriesShape | None,
    batch: F8 | float, new: F8, cached: F8,
) -> F8:  # fmt: skip
    """Seconds for each broadcast entry of ``batch`` chunks of ``new`` tokens (at least 1) behind ``cached``.

    Launches are not among them. ``heads``: query heads of the rank. ``kind``: None for a layer with a window alone.
    """
    read = scored = np.zeros(np.broadcast(new, cached).shape)
    if shape.window_layers:
        read = windowed_pairs(new, cached, float(shape.window_tokens))
    if kind is not None:
        entries = attention_pairs(new, cached) / kind.ratio
        if kind.index is not None:
            scored = entries * kind.index.flops_per_pair
            entries = windowed_pairs(new, cached, float(kind.index.topk * kind.ratio)) / kind.ratio
        read = read + entries
    return np.asarray(batch * _block_s(terms.prefill, sheets, shape, heads, kind, 1.0, new, read, scored))


def entries_decode_s(
    terms: EntriesTerms, sheets: Sheets, shape: AttentionShape, heads: int, kind: EntriesShape | None,
    sequences: F8, context: F8,
) -> F8:  # fmt: skip
    """Seconds for each broadcast entry of ``sequences`` (at least 1) that see ``context`` tokens in total, likewise."""
    read = scored = np.zeros(np.broadcast(sequences, context).shape)
    if shape.window_layers:
        read = np.minimum(context, sequences * float(shape.window_tokens))
    if kind is not None:
        entries = context / kind.ratio
        if kind.index is not None:
            scored = entries * kind.index.flops_per_pair
            entries = np.minimum(entries, sequences * float(kind.index.topk))
        read = read + entries
    return _block_s(terms.decode, sheets, shape, heads, kind, sequences, sequences, read, scored)


def _block_s(
    phase: EntriesPhase, sheets: Sheets, shape: AttentionShape, heads: int, kind: EntriesShape | None,
    sequences: F8 | float, tokens: F8, read: F8, scored: F8 | float,
) -> F8:  # fmt: skip
    token_s = phase.token_s + heads * phase.head_token_s
    if kind is not None and kind.index is not None:
        token_s += phase.index_token_s
    seconds = sequences * phase.sequence_s + tokens * token_s
    seconds = seconds + read * shape.decode_flops_per_pair / (sheets.wide.flops * phase.read_flops)
    return np.asarray(seconds + scored / (sheets.narrow.flops * phase.score_flops))
