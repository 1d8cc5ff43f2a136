"""Records of a search and ways to watch it: journal, database, progress, interruptions.

Imports ``model`` and ``select``.
"""
