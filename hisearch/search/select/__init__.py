"""Choosing among trials: dominance, recommendation and its rules, fronts of several models, what would change it.

Imports ``model``.
"""
