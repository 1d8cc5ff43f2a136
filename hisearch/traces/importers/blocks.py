"""Service recordings with prefix-block hashes: Mooncake and Qwen-Bailian.

Both list one id per block of the prompt; equal ids at the head of two prompts mean equal tokens. The last, partial
block has an id too, or none; outputs have none, so a follow-up shares its predecessor's prompt alone.
"""

from __future__ import annotations

import math

from hisearch.traces.reading.rows import Fields, RowError


def prompt_blocks(row: Fields, input_tokens: int, block_tokens: int) -> tuple[list[int], int]:
    """A prompt's block ids, checked in number, and the tokens that they cover."""
    ids = row.counts("hash_ids")
    whole_blocks, all_blocks = input_tokens // block_tokens, math.ceil(input_tokens / block_tokens)
    if len(ids) not in (whole_blocks, all_blocks):
        expected = f"{all_blocks} ids, one per {block_tokens} tokens of {input_tokens}"
        raise RowError("hash_ids", f"expected {expected}, got {len(ids)}")
    return ids, min(input_tokens, len(ids) * block_tokens)
