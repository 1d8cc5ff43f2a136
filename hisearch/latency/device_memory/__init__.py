"""Device memory of one rank: the plan, vLLM's profiling run, loading.

``plan`` divides a device's memory; ``loading`` and ``profiling_run`` are what engines measure as they start.
``kv_groups``, ``window_pools``, ``state_pools`` and ``compressed_pools`` divide what KV is given. ``constants`` have
their sources.
Imports ``matrices``.
"""
