"""HiCache: SGLang's host pool and storage behind its radix cache.

``hicache`` is the tree, ``copies`` loads back, ``storage`` prefetches; ``servers`` and ``stores`` work over time.

Imports ``engine`` and packages below it, and ``vllm`` for the output write-back of decode workers.
"""
