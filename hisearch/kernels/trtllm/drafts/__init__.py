"""TensorRT-LLM with drafted tokens (speculative decoding): ``entry`` the engine, ``step`` what a step has and makes.

Imports ``trtllm`` and packages below it.
"""
