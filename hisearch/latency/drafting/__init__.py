"""What drafted tokens cost: the head that drafts, states that are kept after a check, steps of one token in the mean.

Imports ``costs``, ``host``, ``knots``, ``many_steps``, ``parameters``, ``sharding`` and ``device_memory`` of
``latency``.
"""
