"""A LatencyProfile as the YAML document that the catalogue reads."""

from __future__ import annotations

from typing import Any

import yaml

from hisearch.specs.base import API_VERSION
from hisearch.specs.machines.profile import LatencyProfileSpec


def profile_yaml(name: str, description: str, profile: LatencyProfileSpec) -> str:
    """The document's text; lists and short mappings take one line where they fit."""
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "LatencyProfile",
        "metadata": {"name": name, "description": description},
        "spec": profile.model_dump(mode="python", exclude_none=True, exclude_defaults=False),
    }
    return yaml.dump(_plain(document), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


#: Entries of a mapping that takes one line.
SHORT = 6


class _Dumper(yaml.SafeDumper):
    """Leaf collections in flow style."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item not in ({}, [], "")}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _sequence(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    nested = any(isinstance(item, dict) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=not nested)


def _mapping(dumper: yaml.SafeDumper, data: dict[str, Any]) -> yaml.Node:
    short = len(data) <= SHORT and not any(
        isinstance(item, dict | list) or len(str(item)) > 40 for item in data.values()
    )
    return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=short)


_Dumper.add_representer(list, _sequence)
_Dumper.add_representer(dict, _mapping)
