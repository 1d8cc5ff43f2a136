"""vLLM: its step rule, block memory, offloading and LMCache; and decode workers, which share its step rule.

The event loop calls ``entry``, or ``offload_entry`` and ``lmcache_entry`` with these connectors.

Imports ``engine`` and packages below it.
"""
