"""Requests and KV on their way between router, workers and tiers, and the order of events.

``heaps`` orders events; ``lists`` has requests of a worker, ``pools`` arrays of a pool; ``links`` and ``moves``
are for copies; ``flow`` and ``kv_transfer`` for requests between router, prefill and decode workers.

Imports ``core`` and ``layout``.
"""
