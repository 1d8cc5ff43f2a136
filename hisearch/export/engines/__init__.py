"""Engine configuration: flags, cache tiers, agents, TensorRT-LLM's options.

Imports nothing else of ``export``.
"""
