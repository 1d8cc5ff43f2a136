"""What a search leaves behind and how it is watched: journal, database, progress, interruptions.

Imports ``model`` and ``select``.
"""
