"""DeepSeek's sparse attention on one rank and layer: the attention block without its dense products.

An indexer scores every visible token of a query with small fp8 heads. The best ``topk`` are chosen, and MLA reads them
in latent space.

    block      = launch + beyond, where a sequence is longer than topk
               + new * token + pairs * score + windowed pairs * read                   each chunk of ``new`` tokens
               + n * token + c * score + c / n * serial score                          n decodes that see c tokens
                 + min(c, n * topk) * (read + serial read / n)
    score      = 2 * index heads * index width / (fp8 peak * share) + choose

``read`` is the seconds per query and token read, known for some numbers of heads (kernels pad few heads to 64, or
differ). It is linear in log heads between them, and proportional beyond the last. ``serial`` parts belong to one
sequence, which kernels do not split over the whole device. Engines with ``dense_short`` run prompts that end within
topk tokens as dense MLA; ``dense_s`` prices them by its law.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hisearch.base.dtypes import F8
from hisearch.latency.laws.attention import prefill_s, rebuild_s
from hisearch.latency.laws.model import prefill_heads
from hisearch.latency.laws.sheet import Sheet
from hisearch.latency.operators import attention_pairs, windowed_pairs
from hisearch.latency.sharding import Shard, index_layers
from hisearch.specs.machines.laws import PrefillTerms, SparsePhase, SparseTerms
from hisearch.specs.models.model import ModelSpec


class Indexer(NamedTuple):
    """Sparse attention of one rank and layer: heads that read, tokens each query reads, heads and width that score.

    share: of the layers that score; the others reuse an earlier layer's choice.
    ranks: that share a sequence's KV; heads are then of all of them, each scores and reads its part of the tokens.
    """

    heads: int
    topk: int
    index_heads: int
    index_width: int
    share: float = 1.0
    ranks: int = 1


def indexer(model: ModelSpec, part: Shard) -> Indexer:
    """Sparse attention of one rank.

    Raises:
        ValueError: the model has none.
    """
    sparse = model.sparse_attention
    if sparse is None:
        raise ValueError(f"{model.huggingface_id} has no sparse attention")
    share, ranks = index_layers(model) / model.layers, part.parallelism.decode_context
    return Indexer(ranks * part.heads, sparse.topk, sparse.index_heads, sparse.index_head_dim, share, ranks)


def sparse_prefill_s(terms: SparseTerms, sheet: Sheet, indexer: Indexer, batch: F8 | float, new: F8, cached: F8) -> F8:
    """Seconds for each broadcast entry of ``batch`` chunks of ``new`` (at least 1) tokens behind ``cached``.

    ``sheet`` has the peak of fp8.
    """
    phase = terms.prefill
    scored = attention_pairs(new, cached) / indexer.ranks * _score_s(phase, sheet, indexer)
    read = windowed_pairs(new, cached, float(indexer.topk)) / indexer.ranks
    read = read * at_heads(terms.heads, phase.read_s, indexer.heads)
    longer = np.where(cached + new > indexer.topk, terms.beyond_s, 0.0)
    return np.asarray(batch * (new * phase.token_s + indexer.share * scored + read) + indexer.share * longer)


def sparse_decode_s(terms: SparseTerms, sheet: Sheet, indexer: Indexer, sequences: F8, context: F8) -> F8:
    """Seconds for each broadcast entry of ``sequences`` (at least 1) that see ``context`` tokens in total."""
    phase, mean = terms.decode, context / sequences
    scored = context / indexer.ranks * _score_s(phase, sheet, indexer) + mean / indexer.ranks * terms.serial_score_s
    read = np.minimum(mean, float(indexer.topk)) / indexer.ranks
    attended = read * (sequences * at_heads(terms.heads, phase.read_s, indexer.heads) + terms.serial_read_s)
    longer = np.where(mean > indexer.topk, terms.beyond_s, 0.0)
    return np.asarray(sequences * phase.token_s + indexer.share * (scored + longer) + attended)


def dense_s(
    model: ModelSpec, part: Shard, terms: PrefillTerms, sheet: Sheet, batch: F8 | float, new: F8, cached: F8
) -> F8:
    """Seconds of a layer's prompts as dense MLA, without the launch: the block has its own."""
    assert model.mla is not None
    heads = prefill_heads(model, part, "bf16")
    seconds = prefill_s(terms, sheet, heads, batch, new, cached) - terms.launch_s
    return np.asarray(seconds + batch * rebuild_s(terms, sheet, part.heads, model.mla, cached))


def sparse_chunk_s(
    model: ModelSpec,
    part: Shard,
    terms: SparseTerms,
    prefill: PrefillTerms,
    wide: Sheet,
    narrow: Sheet,
    new: F8,
    cached: F8,
) -> F8:
    """Seconds of all layers for a chunk, without launches. ``wide``, ``narrow``: with the peaks of 16 bits and fp8."""
    reader = indexer(model, part)
    seconds = model.layers * sparse_prefill_s(terms, narrow, reader, 1.0, new, cached)
    if not terms.dense_short:
        return np.asarray(seconds)
    short = dense_s(model, part, prefill, wide, 1.0, new, cached)
    return np.where(cached + new <= reader.topk, model.layers * short, seconds)


def at_heads(known: Sequence[int], seconds: Sequence[float], heads: int) -> float:
    """``seconds`` at ``heads``: linear in log heads between the known ones, proportional beyond the last."""
    within = float(np.interp(np.log2(heads), np.log2(known), seconds))
    return within * max(1.0, heads / known[-1])


def _score_s(phase: SparsePhase, sheet: Sheet, indexer: Indexer) -> float:
    return 2.0 * indexer.index_heads * indexer.index_width / (sheet.flops * phase.score_flops) + phase.choose_s
