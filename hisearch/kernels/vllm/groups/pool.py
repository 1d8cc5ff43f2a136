"""vLLM's block pool with several groups: a free queue that is also the LRU order, and full blocks found by content.

A block's key is that of its page times the number of groups, plus its group. Among blocks with equal keys look-ups find
the one that got it first. ``TREE.free_pages`` is the length of the free queue, in blocks of any group.
Source: ``v1/core/block_pool.py``.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import linked_list

#: Knuth's multiplicative hash: spreads neighbouring keys.
_GOLDEN = 2654435761

_insert, _remove = linked_list()


@kernel
def key_of(sim, page_key, group):
    """Key of a page's block in ``group``."""
    return page_key * (sim.kv_groups.full + sim.kv_groups.windowed + sim.kv_groups.states) + group


@kernel
def _bucket(sim, key):
    return ((key * _GOLDEN) >> 12) & (sim.kv_buckets.shape[1] - 1)


@kernel
def find(sim, v, key):
    """The block that look-ups find for ``key``, or -1."""
    block = sim.kv_buckets[v, _bucket(sim, key)]
    while block >= 0 and sim.kv_blocks[v, block].key != key:
        block = sim.kv_blocks[v, block].chain
    return block


@kernel
def publish(sim, v, block, key):
    """Make the block findable, behind others with its key."""
    bucket = _bucket(sim, key)
    sim.kv_blocks[v, block].key = key
    sim.kv_blocks[v, block].chain = -1
    at = sim.kv_buckets[v, bucket]
    if at < 0:
        sim.kv_buckets[v, bucket] = block
        return
    while sim.kv_blocks[v, at].chain >= 0:
        at = sim.kv_blocks[v, at].chain
    sim.kv_blocks[v, at].chain = block


@kernel
def note_pass(sim, v, key):
    """Note that blocks with this key were made findable in the pass under way, or since the one before it."""
    block = sim.kv_buckets[v, _bucket(sim, key)]
    while block >= 0:
        if sim.kv_blocks[v, block].key == key:
            sim.kv_blocks[v, block].published = sim.kv_pools[v].passes
        block = sim.kv_blocks[v, block].chain


@kernel
def _forget(sim, v, block):
    """Look-ups do not find the block any more."""
    bucket = _bucket(sim, sim.kv_blocks[v, block].key)
    before = -1
    at = sim.kv_buckets[v, bucket]
    while at != block:
        before = at
        at = sim.kv_blocks[v, at].chain
    if before >= 0:
        sim.kv_blocks[v, before].chain = sim.kv_blocks[v, block].chain
    else:
        sim.kv_buckets[v, bucket] = sim.kv_blocks[v, block].chain
    sim.kv_blocks[v, block].key = -1


@kernel
def _link(sim, v, before, block):
    pool = sim.kv_pools[v]
    head, tail = _insert(sim.kv_blocks[v], pool.head, pool.tail, before, block)
    pool.head = head
    pool.tail = tail
    sim.trees[v].free_pages += 1


@kernel
def _unlink(sim, v, block):
    pool = sim.kv_pools[v]
    head, tail = _remove(sim.kv_blocks[v], pool.head, pool.tail, block)
    pool.head = head
    pool.tail = tail
    sim.trees[v].free_pages -= 1


@kernel
def hold(sim, v, block):
    """Add a holder of a block that was found."""
    if sim.kv_blocks[v, block].holders == 0:
        _unlink(sim, v, block)
    sim.kv_blocks[v, block].holders += 1


@kernel
def take(sim, v):
    """Take the front of the free queue, which is not empty; its content is lost."""
    block = sim.kv_pools[v].head
    _unlink(sim, v, block)
    sim.kv_blocks[v, block].published = -1
    if sim.kv_blocks[v, block].key >= 0:
        _forget(sim, v, block)
        sim.trees[v].evicted_tokens += sim.config.page_tokens
    sim.kv_blocks[v, block].holders = 1
    return block


@kernel
def release(sim, v, block):
    """Remove a holder. Without holders the block is free: at the back of the queue, or without content at its front."""
    held = sim.kv_blocks[v, block]
    held.holders -= 1
    if held.holders == 0:
        first = sim.config.unhashed_first and held.key < 0
        _link(sim, v, -1 if first else sim.kv_pools[v].tail, block)


@kernel
def reset(sim, v, blocks):
    """Reset pool ``v`` to ``blocks`` free blocks without content."""
    cache = sim.trees[v]
    cache.capacity_pages = blocks
    cache.free_pages = 0
    pool = sim.kv_pools[v]
    pool.head = -1
    pool.tail = -1
    pool.passes = 0
    sim.kv_buckets[v, :] = -1
    for block in range(blocks):
        sim.kv_blocks[v, block].key = -1
        sim.kv_blocks[v, block].holders = 0
        sim.kv_blocks[v, block].published = -1
        _link(sim, v, pool.tail, block)
