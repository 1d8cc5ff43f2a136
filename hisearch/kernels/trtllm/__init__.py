"""TensorRT-LLM: its step rule, block memory and host offloading.

The event loop calls ``entry``.

Imports ``engine`` and packages below it.
"""
