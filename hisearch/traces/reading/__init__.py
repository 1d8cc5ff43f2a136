"""Trace files: rows, fields, errors, hisearch's own form."""
