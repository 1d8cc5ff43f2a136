"""TensorRT-LLM: its step rule, block memory and host offloading.

``entry`` is what the event loop calls.

Imports ``engine`` and what is below it.
"""
