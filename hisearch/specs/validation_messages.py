"""Validation errors of pydantic as plain messages: the expected and the actual value."""

from __future__ import annotations

import re

from pydantic_core import ErrorDetails

from hisearch.specs.wording import closest, described

#: pydantic error type -> what was expected.
_EXPECTED = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a section",
    "model_type": "a section",
    "finite_number": "a finite number",
    "date_type": "a date such as 2026-11-01",
    "date_parsing": "a date such as 2026-11-01",
    "date_from_datetime_parsing": "a date such as 2026-11-01",
}

#: So many values are listed without naming the nearest to what was written. Chosen.
_LISTED = 5

#: pydantic error type -> message, filled from the error's context.
_BOUNDS = {
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
}


def describe(details: ErrorDetails) -> str:
    """Describe what is wrong with a value, without its key."""
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "missing":
        entry = details["loc"][-1]
        return f"the list needs an entry {entry + 1}" if isinstance(entry, int) else "required, and missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        known = re.findall(r"'([^']*)'", context["expected"])
        near = closest(value, known) if isinstance(value, str) and len(known) > _LISTED else ""
        return f"expected {context['expected']}; got {described(value)}{near}"
    if kind == "string_type" and type(value) in (int, float):
        return f"expected text, got the number {described(value)}; write it in quotes"
    if kind in _EXPECTED:
        return f"expected {_EXPECTED[kind]}, got {described(value)}"
    if kind in _BOUNDS:
        return f"{_BOUNDS[kind].format(**context)}, got {described(value)}"
    if kind == "string_pattern_mismatch":
        return f"{described(value)} does not match {context['pattern']}"
    if kind == "too_short":
        return f"needs {context['min_length']} or more entries, got {context['actual_length']}"
    if kind == "too_long":
        return f"may have {context['max_length']} entries at most, got {context['actual_length']}"
    return f"{details['msg']}; got {described(value)}"
