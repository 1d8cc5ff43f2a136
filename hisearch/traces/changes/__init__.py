"""One trace made from others: resampled, merged, ordered, cut, spread, replayed.

Imports ``reading`` and modules of ``traces``.
"""
