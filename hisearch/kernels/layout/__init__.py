"""The arrays of a simulation: one module for each part of it.

``sim`` has requests, workers and cache trees; ``fleet`` routers and pools; ``hicache``, ``tiers`` and ``agents`` what
these need.

Imports ``core``. Everybody may import from here.
"""
