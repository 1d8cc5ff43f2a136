"""SGLang: admission, prefill, decode and memory over a radix cache.

``entry`` is what the event loop calls.

Imports ``engine``, ``hicache`` and what is below them.
"""
