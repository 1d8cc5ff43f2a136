"""TensorRT-LLM with drafted tokens (speculative decoding): ``entry`` the engine, ``verifying`` what decodes do.

Imports ``trtllm`` and packages below it.
"""
