"""vLLM: its step rule, block memory, offloading and LMCache; and decode workers, which share its step rule.

The event loop calls ``entry``, or ``offload_entry`` and ``lmcache_entry`` with these connectors, or ``groups.entry``
for models whose layers have several kinds of KV, or ``drafts.entry`` where tokens are drafted.

Imports ``engine`` and packages below it.
"""
