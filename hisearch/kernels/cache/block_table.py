"""Blocks of a store by key, each in one of a few lists in order of use.

A block has a slot of its block table and is found by hash. All operations take constant time.
"""

from __future__ import annotations

from hisearch.base.jit import kernel
from hisearch.kernels.core.linked_list import linked_list, mover_to_end
from hisearch.kernels.layout import tiers as tl

#: Knuth's multiplicative hash spreads groups of this many neighbouring keys (a power of two, by its logarithm). Within
#: a group they keep their order: blocks of a path are looked up one after another, so that a cache line serves many.
_GOLDEN, _GROUP_BITS = 2654435761, 8

_insert, _remove = linked_list()
_move_to_end = mover_to_end()


@kernel
def _bucket(sim, key):
    return (((key >> _GROUP_BITS) * _GOLDEN >> 12) + key) & (sim.buckets.shape[1] - 1)


@kernel
def find(sim, v, key):
    """The slot of ``key``, or -1."""
    slot = sim.buckets[v, _bucket(sim, key)]
    while slot >= 0 and sim.blocks[v, slot].key != key:
        slot = sim.blocks[v, slot].chain
    return slot


@kernel
def new_without_key(sim, v):
    """A new slot without a key, in no list."""
    table = sim.block_tables[v]
    slot = table.free_slot
    if slot >= 0:
        table.free_slot = sim.blocks[v, slot].next
    else:
        slot = table.slots
        table.slots = slot + 1
    block = sim.blocks[v, slot]
    block.key = -1
    block.ready_s = 0.0
    block.count = 0
    block.chain = -1
    block.list = -1
    block.users = 0
    block.pins = 0
    block.group = -1
    return slot


@kernel
def new(sim, v, key):
    """A new slot for ``key``, which has none, in no list yet."""
    slot = new_without_key(sim, v)
    bucket = _bucket(sim, key)
    sim.blocks[v, slot].key = key
    sim.blocks[v, slot].chain = sim.buckets[v, bucket]
    sim.buckets[v, bucket] = slot
    return slot


@kernel
def forget(sim, v, slot):
    """Give back the slot, which is in no list."""
    if sim.blocks[v, slot].key >= 0:
        _unchain(sim, v, slot)
    sim.blocks[v, slot].next = sim.block_tables[v].free_slot
    sim.block_tables[v].free_slot = slot


@kernel
def _unchain(sim, v, slot):
    bucket = _bucket(sim, sim.blocks[v, slot].key)
    before = -1
    at = sim.buckets[v, bucket]
    while at != slot:
        before = at
        at = sim.blocks[v, at].chain
    if before >= 0:
        sim.blocks[v, before].chain = sim.blocks[v, slot].chain
    else:
        sim.buckets[v, bucket] = sim.blocks[v, slot].chain


@kernel
def size(sim, v, k):
    """Blocks in list ``k``."""
    return sim.block_table_rows[v, 3 * k + tl.SIZE]


@kernel
def first(sim, v, k):
    """The first slot of list ``k``, or -1."""
    return sim.block_table_rows[v, 3 * k + tl.HEAD]


@kernel
def last(sim, v, k):
    """The last slot of list ``k``, or -1."""
    return sim.block_table_rows[v, 3 * k + tl.TAIL]


@kernel
def take_out(sim, v, slot):
    """Take the slot out of its list."""
    block = sim.blocks[v, slot]
    ends = sim.block_table_rows[v][3 * block.list :]
    ends[tl.HEAD], ends[tl.TAIL] = _remove(sim.blocks[v], ends[tl.HEAD], ends[tl.TAIL], slot)
    ends[tl.SIZE] -= 1
    block.list = -1


@kernel
def insert(sim, v, slot, k, before):
    """Put the slot, which is in no list, into list ``k`` behind slot ``before``; -1: at the front."""
    ends = sim.block_table_rows[v][3 * k :]
    sim.blocks[v, slot].list = k
    ends[tl.HEAD], ends[tl.TAIL] = _insert(sim.blocks[v], ends[tl.HEAD], ends[tl.TAIL], before, slot)
    ends[tl.SIZE] += 1


@kernel
def append(sim, v, slot, k):
    """Put the slot, which is in no list, at the end of list ``k``."""
    insert(sim, v, slot, k, last(sim, v, k))


@kernel
def move(sim, v, slot, k):
    """Put the slot at the end of list ``k``."""
    if sim.block_table_rows[v, 3 * k + tl.TAIL] == slot:
        return
    take_out(sim, v, slot)
    append(sim, v, slot, k)


@kernel
def move_all(sim, v, first_slot, last_slot):
    """Put the slots from ``first_slot`` to ``last_slot`` of a list, in their order, at its end."""
    ends = sim.block_table_rows[v][3 * sim.blocks[v, first_slot].list :]
    ends[tl.HEAD], ends[tl.TAIL] = _move_to_end(sim.blocks[v], ends[tl.HEAD], ends[tl.TAIL], first_slot, last_slot)


@kernel
def drop(sim, v, slot):
    """Take the slot out of its list and give it back."""
    take_out(sim, v, slot)
    forget(sim, v, slot)


@kernel
def reset(sim, v):
    """Remove all blocks."""
    sim.block_tables[v].free_slot = -1
    sim.block_tables[v].free_group = -1
    sim.buckets[v, :] = -1
    for k in range(tl.LISTS):
        sim.block_table_rows[v, 3 * k + tl.HEAD] = -1
        sim.block_table_rows[v, 3 * k + tl.TAIL] = -1
        sim.block_table_rows[v, 3 * k + tl.SIZE] = 0


@kernel
def fill_path(sim, trace_node, begin, end):
    """Write the keys of blocks ``begin`` to ``end`` (excluded) of the path to ``trace_node`` to ``sim.path``."""
    size = sim.offloading.block_tokens
    keys = sim.path[0]
    trace = sim.trace
    s = trace_node
    k = end - 1
    while k >= begin:
        while trace.start_tokens[s] >= (k + 1) * size:
            s = trace.parent[s]
        low = trace.start_tokens[s] // size
        base = sim.block_base[s] - low
        stop = max(low, begin)
        while k >= stop:
            keys[k - begin] = base + k
            k -= 1


@kernel
def key_at(sim, trace_node, k):
    """The key of block ``k`` of the path to ``trace_node``."""
    size = sim.offloading.block_tokens
    s = trace_node
    while sim.trace.start_tokens[s] >= (k + 1) * size:
        s = sim.trace.parent[s]
    return sim.block_base[s] + k - sim.trace.start_tokens[s] // size
