"""The heap and the linked list of all kernels, against sorted lists."""

import numba
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hisearch.base.jit import kernel
from hisearch.kernels.core.heap import indexed_heap
from hisearch.kernels.core.linked_list import linked_list

ITEMS = 12
ITEM = np.dtype([("key", "i8"), ("slot", "i4"), ("prev", "i4"), ("next", "i4")])


@kernel
def _before(items, a, b):
    return items[a]["key"] < items[b]["key"] or (items[a]["key"] == items[b]["key"] and a < b)


@kernel
def _note_slot(items, item, slot):
    items[item]["slot"] = slot


_sift, _push, _remove = indexed_heap(_before, _note_slot)
_insert, _take_out = linked_list()


@numba.njit
def change(items, heap, size, item, key):
    """Give an item another key, where it is in the heap already; else push it."""
    items[item]["key"] = key
    if items[item]["slot"] < 0:
        return _push(items, heap, size, item)
    _sift(items, heap, size, items[item]["slot"])
    return size


@numba.njit
def leave(items, heap, size, item):
    return _remove(items, heap, size, items[item]["slot"])


@numba.njit
def put(items, head, tail, before, item):
    return _insert(items, head, tail, before, item)


@numba.njit
def take(items, head, tail, item):
    return _take_out(items, head, tail, item)


CHANGES = st.lists(st.tuples(st.integers(0, ITEMS - 1), st.integers(-1, 5)), max_size=60)


@given(CHANGES)
@settings(deadline=None)
def test_the_least_item_is_first_and_every_slot_is_known(changes):
    items = np.zeros(ITEMS, ITEM)
    items["slot"] = -1
    heap = np.zeros(ITEMS, np.int32)
    size = 0
    inside = {}
    for item, key in changes:
        if key < 0:
            if inside.pop(item, None) is None:
                continue
            size = leave(items, heap, size, item)
        else:
            size = change(items, heap, size, item, key)
            inside[item] = key
        assert sorted(heap[:size].tolist()) == sorted(inside)
        assert [items[heap[slot]]["slot"] for slot in range(size)] == list(range(size))
        assert (items["slot"] >= 0).sum() == size
        if inside:
            assert heap[0] == min(inside, key=lambda item: (inside[item], item))


@given(CHANGES)
@settings(deadline=None)
def test_a_list_is_the_same_in_both_directions(changes):
    items = np.zeros(ITEMS, ITEM)
    head = tail = -1
    expected = []
    for item, place in changes:
        if item in expected:
            head, tail = take(items, head, tail, item)
            expected.remove(item)
        else:
            place = min(max(place, 0), len(expected))
            head, tail = put(items, head, tail, expected[place - 1] if place else -1, item)
            expected.insert(place, item)
        for start, field, order in ((head, "next", expected), (tail, "prev", expected[::-1])):
            walked = []
            while start >= 0:
                walked.append(int(start))
                start = items[start][field]
            assert walked == order
