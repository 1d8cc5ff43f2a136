"""Trace files: text within bounds, rows and their fields, tables, times, hisearch's own form.

``text`` reads lines, ``dialects`` and ``rows`` turn them into fields, ``tables`` does so for any container, and
``columns`` says which column is which field. ``times`` tells what a column of times is. ``understood`` is the report
of what a file was taken for; ``source`` is what importers get and fill.

Imports modules of ``traces``.
"""
