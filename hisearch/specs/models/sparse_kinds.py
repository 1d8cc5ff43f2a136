"""Sections of kind ``Model`` for attention that reads entries of several tokens, or blocks of them."""

from __future__ import annotations

from pydantic import Field, model_validator

from hisearch.specs.base import Count, NonNegativeInt, Strict


class EntriesSpec(Strict):
    """Layers that compress the same number of tokens into an entry."""

    ratio: Count = Field(description="Tokens of an entry.")
    layers: Count = Field(description="Layers with such entries.")
    topk: NonNegativeInt = Field(
        0,
        description="Entries that a query reads, of those before it: an indexer, which has entries too, chooses them. "
        "0: all of them, without an indexer.",
    )


class CompressedAttentionSpec(Strict):
    """DeepSeek-V4's attention: a window of tokens in every layer, and compressed entries of all tokens in most.

    One vector of ``head_dim`` is the key and the value of all heads, of a token as of an entry.
    """

    window_tokens: Count = Field(description="Tokens that every layer reads as they are.")
    entries: list[EntriesSpec] = Field(
        min_length=1,
        description="Layers with entries besides, by tokens of an entry; the others have the window alone.",
    )
    q_lora_rank: Count = Field(description="Width of the queries' latent.")
    rotary_dim: Count = Field(description="Elements with rotary embedding of a key, which caches keep in 16 bits.")
    output_rank: Count = Field(description="Width to which a group of heads projects its output (o_lora_rank).")
    output_groups: Count = Field(description="Groups of heads with such a projection (o_groups).")
    index_heads: NonNegativeInt = Field(0, description="Heads of the indexers' queries.")
    index_head_dim: NonNegativeInt = Field(0, description="Width of an index query or of an index entry, in fp8.")

    @model_validator(mode="after")
    def _check(self) -> CompressedAttentionSpec:
        ratios = [kind.ratio for kind in self.entries]
        if len(set(ratios)) < len(ratios):
            raise ValueError("entries: a ratio is stated twice")
        if any(kind.topk for kind in self.entries) and not (self.index_heads and self.index_head_dim):
            raise ValueError("entries with topk need index_heads and index_head_dim")
        return self


class BlockSparseSpec(Strict):
    """MiniMax-M3's attention: an indexer chooses whole blocks of tokens, which grouped-query attention reads."""

    layers: Count = Field(description="Layers of this kind; the others read all tokens.")
    block_tokens: Count = Field(description="Tokens of a block.")
    topk_blocks: Count = Field(description="Blocks that a query reads, its own among them.")
    index_heads: Count = Field(description="Heads of the indexer's queries, split as KV heads are; its key is one.")
    index_head_dim: Count = Field(description="Width of an index query or key, which are in 16 bits.")
