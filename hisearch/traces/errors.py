"""Errors of trace files: which file, line and field, and what was expected."""

from __future__ import annotations

from hisearch.specs.errors import SpecError


class TraceError(SpecError):
    """A trace that cannot be used. ``str`` of it is ``file:line: field: what was expected``; ``key`` is the field."""
