"""Pages as HTML: the report, comparisons, several models, the dashboard.

Imports all of the above.
"""
