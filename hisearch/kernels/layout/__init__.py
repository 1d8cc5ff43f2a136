"""The arrays of a simulation, by subject.

``sim`` has requests, workers and cache trees; ``fleet`` routers and pools; ``hicache``, ``tiers`` and ``agents`` the
further arrays of each.

Imports ``core``. Every package may import from here.
"""
