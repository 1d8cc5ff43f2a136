"""How ranks share the prompts of a step (prefill context parallelism); see ``hisearch.latency.workers.prompts``."""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.engine.lookups import chunk_rate, decode_seconds, dense, floor_seconds
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
        if request.chunk_kind == la.LISTED_DECODE:
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
            if requests[batch[k]].chunk_kind != la.LISTED_DECODE and requests[batch[k]].chunk < 2 * ranks:
                return 0
    most = 0
    for rank in range(ranks):
        most = max(most, tokens_of_rank(requests, batch, size, decoding, rank, ranks, host.shared_layout))
    if host.shared_layout == ZIGZAG:
        return (most + 2 * ranks - 1) // (2 * ranks) * (2 * ranks)
    return most


@kernel
def shared_batch_cost(costs, requests, batch, size, decoding, context, sampling):
    """``cost.batch_cost`` of a step with prompts that ranks share; ``decoding``, ``context``: of late decodes too."""
    prompt_tokens = 0
    late = 0
    for k in range(size):
        if requests[batch[k]].chunk_kind == la.LISTED_DECODE:
            late += 1
        else:
            prompt_tokens += requests[batch[k]].chunk
    sequences = size - late + decoding
    most = shared_tokens(costs.host, requests, batch, size, decoding, prompt_tokens)
    launched = most * costs.host.shared_ranks if most > 0 else prompt_tokens + decoding
    total = costs.host.step_s + costs.host.per_sequence_s * sequences
    if most > 0:
        total += dense(costs.shared_s, most)
    else:
        total += dense(costs.token_s, launched)
    total += dense(costs.sequence_s, sampling)
    for k in range(size):
        request = requests[batch[k]]
        if request.chunk_kind != la.LISTED_DECODE:
            work = request.chunk * (request.computed + (request.chunk + 1) / 2.0)
            if most > 0:
                total += work * chunk_rate(costs.chunk_rate, request.computed, prompt_tokens)
            else:
                total += work * chunk_rate(costs.whole_rate, request.computed, prompt_tokens)
    if decoding > 0:
        total += decode_seconds(costs.decode_s, decoding, context)
    return total, floor_seconds(costs.host, sequences, launched, size - late)
