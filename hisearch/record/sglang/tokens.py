"""Token ids for requests that are known by their chained block ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: Below the first token id: 0 stands for tokens that nobody reads.
_FIRST = 1


def token_ids(requests: Sequence[dict[str, Any]], block_tokens: int) -> tuple[dict[Any, list[int]], int]:
    """Prompt and generated tokens of each request.

    Two requests share exactly the tokens of their common leading block ids: a block's tokens belong to its id, all
    others to the request alone. No token occurs twice in a request.

    Args:
        requests: rows of a recording or case with ``id``, ``input_tokens``, ``output_tokens``, ``block_ids``.
        block_tokens: tokens of an entry of ``block_ids``.

    Returns:
        Tokens by request id, and the number of ids in use.
    """
    first_of_block: dict[int, int] = {}
    following = _FIRST
    tokens: dict[Any, list[int]] = {}
    for row in requests:
        own: list[int] = []
        for block in row["block_ids"]:
            if block not in first_of_block:
                first_of_block[block] = following
                following += block_tokens
            own.extend(range(first_of_block[block], first_of_block[block] + block_tokens))
        rest = row["input_tokens"] + row["output_tokens"] - len(own)
        own.extend(range(following, following + rest))
        following += rest
        tokens[row["id"]] = own
    return tokens, following
