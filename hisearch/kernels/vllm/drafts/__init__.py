"""vLLM with drafted tokens (speculative decoding): ``entry`` the engine, ``step`` its pass.

Imports ``vllm`` and packages below it.
"""
