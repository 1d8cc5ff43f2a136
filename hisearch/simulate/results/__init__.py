"""What a simulation returns, and what its log tells: gaps between tokens, who ran when, series over time.

Imports nothing else of ``simulate``.
"""
