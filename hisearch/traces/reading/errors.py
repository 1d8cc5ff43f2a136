"""Errors of trace files: which file, line and field, and what was expected."""

from __future__ import annotations

from dataclasses import replace

from hisearch.specs.errors import Problem, SpecError


class TraceError(SpecError):
    """A trace that cannot be used. ``str`` of it is ``file:line: field: what was expected``; ``key`` is the field."""

    def named_by(self, place: Problem) -> TraceError:
        """The same error, with the document, line and key that lead to the trace appended."""
        first, *others = self.problems
        return TraceError(replace(first, message=f"{first.message} (named by {replace(place, message='')})"), *others)
