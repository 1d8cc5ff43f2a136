"""Texts that the report shares with the terminal and other pages.

Imports ``data``.
"""
