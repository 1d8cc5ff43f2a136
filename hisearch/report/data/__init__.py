"""Input of a report, as plain data.

Imports nothing else of ``report``.
"""
