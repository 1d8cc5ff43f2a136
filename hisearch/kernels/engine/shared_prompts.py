"""How ranks share the prompts of a step (prefill context parallelism); see ``hisearch.latency.workers.prompts``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.layout import sim as la
from hisearch.latency.knots import INTERLEAVE, SWAP, ZIGZAG


@kernel
def tokens_of_rank(requests, batch, size, decoding, rank, ranks, layout):
    """Tokens of a step on one of ``ranks`` ranks that share its prompts; ``decoding``: late ones too."""
    blocks = 2 * ranks
    last = blocks - 1 - rank
    # Decodes are dealt in turns.
    tokens = (decoding + ranks - 1 - rank) // ranks
    for k in range(size):
        request = requests[batch[k]]
        new = request.chunk
        if request.part == la.LATE_DECODE:
            continue
        if layout == SWAP:
            block = (new + blocks - 1) // blocks
            tokens += min(max(new - rank * block, 0), block) + min(max(new - last * block, 0), block)
        else:
            more = new % blocks
            tokens += 2 * (new // blocks) + (rank < more) + (last < more)
    return tokens


@kernel
def shared_tokens(host, requests, batch, size, decoding, prompt_tokens):
    """Tokens of a step on the rank with most, of those that share its prompts; 0: each has all tokens.

    SGLang shares a batch with enough tokens: of each request or, dealt in turns, of all. It fills a rank's up to a
    multiple of blocks. Source: ``srt/layers/cp`` (``can_apply``, ``pad_logical_token_to_physical``), 0.5.23.
    """
    ranks = host.shared_ranks
    if host.shared_layout == INTERLEAVE:
        if prompt_tokens < ranks:
            return 0
        most = (prompt_tokens + ranks - 1) // ranks
        return (most + ranks - 1) // ranks * ranks
    if host.shared_layout == ZIGZAG:
        for k in range(size):
            if requests[batch[k]].part != la.LATE_DECODE and requests[batch[k]].chunk < 2 * ranks:
                return 0
    most = 0
    for rank in range(ranks):
        most = max(most, tokens_of_rank(requests, batch, size, decoding, rank, ranks, host.shared_layout))
    if host.shared_layout == ZIGZAG:
        return (most + 2 * ranks - 1) // (2 * ranks) * (2 * ranks)
    return most
