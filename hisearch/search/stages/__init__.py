"""The three stages: execution by step costs, routing on growing slices, cache tiers by sampling.

Imports ``model``, ``select``, ``records`` and ``evaluate``.
"""
