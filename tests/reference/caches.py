"""What the reference's workers have in HBM, looked up page by page, leaving no trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.reference.restatement.content import PathContent, page
from tests.reference.restatement.sglang import SglangWorker
from tests.reference.restatement.sglang_tree import RadixTree
from tests.reference.restatement.vllm import VllmWorker


def page_tokens(worker: Any) -> int:
    """Tokens of a page, whichever the engine."""
    if isinstance(worker, SglangWorker):
        return worker.config.page_size
    return worker.config.block_size if isinstance(worker, VllmWorker) else int(worker.config.tokens_per_block)


def cached_tokens(worker: Any, path: Sequence[tuple[int, int, int]], tokens: int) -> int:
    """How much of the whole pages of the first ``tokens`` tokens of a path in the trace's tree ``worker`` has."""
    each = page_tokens(worker)
    content = PathContent(None, path)
    keys = [page(content, index, each) for index in range(tokens // each)]
    if isinstance(worker, SglangWorker):
        return each * (_in_tree(worker.cache.tree, keys) if worker.cache.tree else 0)
    # A pool of blocks: without reuse none of them can be found.
    return each * next((k for k, key in enumerate(keys) if worker.pool.find(key) is None), len(keys))


def load_answer(worker: Any) -> int:
    """What a worker answers when it is asked for its load: SGLang's tokens in use and waiting; -1 for others."""
    if not isinstance(worker, SglangWorker):
        return -1
    waiting = [live.request for live in worker.waiting] + worker.inbox  # the question stands behind them in the inbox
    return worker.held_tokens + sum(request.input_tokens for request in waiting)


def cache_sizes(worker: Any) -> tuple[int, int] | None:
    """Tokens of a page and pages in all, which vLLM's metrics tell."""
    each = page_tokens(worker)
    return (each, worker.kv_capacity_tokens // each) if isinstance(worker, VllmWorker) else None


def capacity_tokens(worker: Any) -> int:
    """Tokens of all pages, whichever the engine."""
    if isinstance(worker, SglangWorker | VllmWorker):
        return worker.kv_capacity_tokens
    return int(worker.config.num_blocks) * page_tokens(worker)


def waiting_requests(worker: Any) -> int:
    """Requests that have not started: of SGLang also those that its next pass receives."""
    if isinstance(worker, SglangWorker):
        received_next = worker.inbox if worker.config.scheduler_recv_interval == 1 else []
        return len(worker.waiting) + len(received_next)
    if isinstance(worker, VllmWorker):
        return len(worker.waiting)
    return len(worker.queue) + sum(not live.started for live in worker.active)


def _in_tree(tree: RadixTree, keys: Sequence[Any]) -> int:
    """Leading keys that a radix tree has."""
    node, matched = tree.root, 0
    while matched < len(keys) and keys[matched] in node.children:
        node = node.children[keys[matched]]
        for key in node.pages:
            if matched == len(keys) or keys[matched] != key:
                return matched
            matched += 1
    return matched
