"""Pages as HTML: the report, comparisons, several models, the dashboard.

Imports ``data``, ``words`` and ``figures``.
"""
