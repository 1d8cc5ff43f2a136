"""Agents with objects (adapters, KV of their own): what is loaded when, and what goes.

``entry`` is what engines call.

Imports ``engine``, ``hicache`` and what is below them.
"""
