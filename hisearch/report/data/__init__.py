"""What a report is made from, as plain data.

Imports nothing else of ``report``.
"""
