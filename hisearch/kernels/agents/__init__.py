"""Agents with objects (adapters, KV of their own): when objects are loaded, and which are evicted.

Engines call ``entry``.

Imports ``engine``, ``hicache`` and the packages below them.
"""
