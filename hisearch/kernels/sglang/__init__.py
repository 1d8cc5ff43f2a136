"""SGLang: admission, prefill, decode and memory over a radix cache.

The event loop calls ``entry``.

Imports ``engine``, ``hicache`` and packages below them.
"""
