"""A LatencyProfile as the YAML document that the catalogue reads."""

from __future__ import annotations

from typing import Any

import yaml

from hisearch.specs.base import API_VERSION
from hisearch.specs.machines.profile import LatencyProfileSpec


def profile_yaml(name: str, description: str, profile: LatencyProfileSpec) -> str:
    """The document's text; mappings of values and lists alone are written in flow style."""
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "LatencyProfile",
        "metadata": {"name": name, "description": description},
        "spec": profile.model_dump(mode="python", exclude_none=True, exclude_defaults=False),
    }
    return yaml.dump(_plain(document), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


#: Characters of a text beyond which its mapping takes a line for each key.
LONG = 40


class _Dumper(yaml.SafeDumper):
    """Collections without mappings in flow style."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item not in ({}, [], "")}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _is_leaf(value: Any) -> bool:
    """Whether ``value`` has no mapping in it and no long text."""
    if isinstance(value, list):
        return all(_is_leaf(item) for item in value)
    return not isinstance(value, dict) and len(str(value)) <= LONG


def _sequence(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    nested = any(isinstance(item, dict) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=not nested)


def _mapping(dumper: yaml.SafeDumper, data: dict[str, Any]) -> yaml.Node:
    leaves = all(_is_leaf(item) for item in data.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", data.items(), flow_style=leaves)


_Dumper.add_representer(list, _sequence)
_Dumper.add_representer(dict, _mapping)
