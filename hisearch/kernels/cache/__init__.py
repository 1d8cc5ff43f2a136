"""Cached KV: the prefix tree, eviction from it, and stores behind it.

``tree``, ``queue`` and ``radix`` are the prefix cache in HBM, ``eviction`` its orders, ``store…`` disks and pools.
``block_table``, ``host_…`` and ``chunk_order`` are the host memory of KV connectors; ``objects``, ``predicted_calls``
and ``load_queue`` serve agents.

Imports ``core``, ``layout`` and ``traffic``.
"""
