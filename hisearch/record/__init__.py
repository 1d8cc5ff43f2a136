"""Recordings of what a real engine's scheduler decides, to hold the simulator against.

Runs in the engine's own environment: imports the standard library, PyYAML and the engine, nothing else of hisearch.
``cases`` says what to record, ``workload`` makes its requests, ``vllm`` and ``sglang`` drive the engines' schedulers
with a model runner that only advances a clock. ``router`` records what a router chooses, before workers of its own.
"""
