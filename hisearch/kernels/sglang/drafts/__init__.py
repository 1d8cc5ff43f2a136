"""SGLang with drafted tokens (speculative decoding): ``entry`` the engine, ``decode`` its decode batch.

Imports ``sglang`` and packages below it.
"""
