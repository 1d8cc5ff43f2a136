from __future__ import annotations

import json
from typing import Any

import pytest

from hisearch.specs.documents.kinds import KINDS, json_schema


def _keys(schema: dict[str, Any], model: str) -> set[str]:
    return set(schema["$defs"][model]["properties"])


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_of_a_kind_is_closed_and_names_every_key(kind: str) -> None:
    schema = json_schema(kind)
    json.dumps(schema)
    assert schema["title"] == f"hisearch {kind}"
    assert schema["properties"]["kind"]["const"] == kind
    assert schema["properties"]["apiVersion"]["const"] == "hisearch/v1"
    assert set(schema["required"]) == {"apiVersion", "kind", "metadata", "spec"}
    assert schema["additionalProperties"] is False
    assert _keys(schema, KINDS[kind].__name__) == set(KINDS[kind].model_fields)
    assert all(
        definition.get("additionalProperties") is False
        for definition in schema["$defs"].values()
        if "properties" in definition
    )


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no kind 'Modle'; did you mean 'Model'\? known: Study, SLO"):
        json_schema("Modle")
