"""KV that is kept: the prefix tree, what is evicted from it, and stores behind it.

``tree`` and ``radix`` are the device's; ``eviction`` its orders; ``store…`` disks and pools; ``block_table``,
``host_…`` and ``chunk_order`` the host memory of connectors; ``objects`` and ``agents_…`` what agents need of a cache.

Imports ``layout`` and ``traffic``.
"""
