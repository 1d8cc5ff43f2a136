"""Measured operator tables, and laws of attention fitted to them.

``operator_tables`` reads them, ``tiles`` and ``curves`` look up, ``late`` is attention of batches of unequal lengths.
Imports the modules of ``latency`` alone.
"""
