"""The arrays of a simulation, by subject.

``sim`` has requests, workers and settings; ``vllm_fields`` and its like what these records have for one engine or
feature. ``tree`` has prefix caches, ``costs`` step costs, ``log`` the log; ``fleet`` routers and pools; ``hicache``,
``tiers`` and ``agents`` the further arrays of each.

Imports ``core``. Every package may import from here.
"""
