"""vLLM: its step rule, block memory, offloading and LMCache; and decode workers, which step as it does.

``entry`` is what the event loop calls, ``offload_entry`` and ``lmcache_entry`` with these connectors.

Imports ``engine`` and what is below it.
"""
