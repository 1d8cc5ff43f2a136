"""Figures: their data, and how they are drawn.

Imports ``data`` and ``words``.
"""
