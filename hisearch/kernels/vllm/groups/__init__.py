"""vLLM for models with several groups of KV blocks: ``entry`` the engine, ``step`` its pass, ``memory`` and ``pool``.

Imports ``vllm`` and packages below it.
"""
