"""Choosing among trials: dominance, recommendation and its rules, fronts of several models, sensitivities.

Imports ``model``.
"""
