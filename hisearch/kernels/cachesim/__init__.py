"""A cache by itself, for ``validate cache``: pages, policies, hits.

``page_cache``, ``page_value`` and ``page_ttl`` each replay a trace; ``arc`` is ARC; the rest are their lists and heaps.

Imports ``base`` alone.
"""
