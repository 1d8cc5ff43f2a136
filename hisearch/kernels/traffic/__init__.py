"""What moves between workers and tiers, and in what order it comes.

``heaps`` orders events, ``lists`` and ``pools`` requests; ``links``, ``moves`` and ``server_heap`` are copies;
``flow`` and ``kv_transfer`` requests between router, prefill and decode workers.

Imports ``core`` and ``layout``.
"""
