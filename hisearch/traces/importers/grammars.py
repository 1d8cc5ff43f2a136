"""Which grammar a logged request asked its output to follow: by the body that its client sent.

A name is a kind and a hash of the schema, so that equal schemas have one name. Sources: OpenAI's API
(``response_format``, in the Responses API ``text.format``; ``tools`` with ``tool_choice``), vLLM's protocol
(``structured_outputs``, before it ``guided_json`` and its like), SGLang's (``regex``, ``ebnf``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

#: Fields of a body that state a grammar by themselves.
_STATED = (
    "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar", "json_schema", "regex",
    "ebnf", "structural_tag",
)  # fmt: skip
_FORMATS = ("response_format", "text.format")
#: What gateways write for a value that there is none of.
BLANK = (None, "", "-", "null", "None")


def grammar_of(values: Mapping[str, Any], places: Sequence[str]) -> str | None:
    """The name of the grammar; None: free text, or nothing is said.

    Tools alone leave the model free to answer in text: only a ``tool_choice`` of ``required``, or of one of them, binds
    it to their schemas.

    Args:
        values: of a row, nested fields by dotted paths.
        places: where a request's body may be: "", or a path that ends with a dot.
    """
    for place in places:
        for field in _FORMATS:
            asked = _part(values, place + field)
            if asked is not None and _kind(asked) not in ("text", ""):
                return _name(_kind(asked), asked)
        for field in _STATED:
            asked = _part(values, place + field)
            if asked is not None:
                return _name(field, asked)
        choice, tools = _part(values, f"{place}tool_choice"), _part(values, f"{place}tools")
        if tools is not None and choice not in (None, "auto", "none"):
            return _name("tools", [choice, tools])
    return None


def _part(values: Mapping[str, Any], path: str) -> Any:
    """The value at a path: as it is, or the leaves below it; None where there is nothing."""
    value = values.get(path)
    if isinstance(value, str) and value[:1] in ("{", "["):
        # A regular expression may begin so too.
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    if _says(value):
        return value
    below = {name: leaf for name, leaf in values.items() if name.startswith(f"{path}.")}
    said = {name[len(path) + 1 :]: leaf for name, leaf in below.items() if leaf is not None}
    return said if any(_says(leaf) for leaf in said.values()) else None


def _says(value: Any) -> bool:
    """Whether a value states anything: not an empty one, a placeholder of logs, or a switch that is off."""
    if isinstance(value, dict):
        return any(_says(leaf) for leaf in value.values())
    return value not in (False, [], *BLANK)


def _kind(asked: Any) -> str:
    """The kind of a ``response_format``."""
    return str(asked.get("type", "")) if isinstance(asked, dict) else str(asked)


def _name(kind: str, asked: Any) -> str:
    text = json.dumps(asked, sort_keys=True, default=str)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
