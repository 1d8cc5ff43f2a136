"""The order of a set of integers in CPython, by which an engine may go (``Objects/setobject.c``; none is removed)."""

from __future__ import annotations

from hisearch.base.jit import kernel

#: Slots looked at in a row, bits by which the hash is shifted then, and the smallest table.
_PROBES, _SHIFT, SMALLEST = 9, 5, 8
#: Beyond this a table grows to twice its entries, before that to four times.
_LARGE = 50_000


@kernel
def _put(table, size, index):
    """Put ``index`` into a table of ``size`` slots, as CPython puts an integer into a set."""
    mask = size - 1
    first = index & mask
    perturb = index
    while True:
        last = first + _PROBES if first + _PROBES <= mask else first
        for slot in range(first, last + 1):
            if table[slot] < 0:
                table[slot] = index
                return
        perturb >>= _SHIFT
        first = (first * 5 + 1 + perturb) & mask


@kernel
def add(tables, row, size, used, index):
    """Add ``index``, 0 or more, to the set of ``used`` integers in ``tables[row]``; returns the new (row, size).

    ``tables``: shape (2, most slots), the other row for growth; the first ``size`` slots are the set's, -1 where free.
    """
    _put(tables[row], size, index)
    used += 1
    if used * 5 < (size - 1) * 3:
        return row, size
    least = 2 * used if used > _LARGE else 4 * used
    grown = SMALLEST
    while grown <= least:
        grown *= 2
    tables[1 - row, :grown] = -1
    for slot in range(size):
        if tables[row, slot] >= 0:
            _put(tables[1 - row], grown, tables[row, slot])
    return 1 - row, grown
