"""HiCache: SGLang's host pool and storage behind its radix cache.

``hicache`` loads back, ``copies`` writes, ``storage`` fetches ahead, ``servers`` and ``stores`` do the work over time.

Imports ``cache``, and ``vllm`` for output that decode workers write back.
"""
