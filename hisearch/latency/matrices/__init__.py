"""Weight matrices of one rank, and what attention keeps and reads of entries or blocks; ``parameters`` lists all.

Imports nothing but ``parameters`` and ``sharding`` of ``latency``.
"""
