"""JSON Schema of every kind, for editors and other tools."""

from __future__ import annotations

from typing import Any

from hisearch.specs.documents.kinds import KINDS, envelope_model
from hisearch.specs.wording import unknown


def json_schema(kind: str) -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a whole document of ``kind``, envelope included.

    Raises:
        ValueError: no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no kind '{kind}'{unknown(kind, KINDS)}")
    schema = envelope_model(kind).model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": f"hisearch {kind}"}
