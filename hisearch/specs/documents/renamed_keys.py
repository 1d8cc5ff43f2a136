"""Keys under former names: documents that use them are read as before, with a warning that names the new key.

To rename a key: rename the field, and add the former name to ``renamed`` of its model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hisearch.specs.annotations import child, members
from hisearch.specs.base import Strict
from hisearch.specs.errors import KeyPath, RenamedKeyWarning, dotted
from hisearch.specs.source import Source

_UNTIL = "the former name will stop working in 2.0"


def with_current_keys(source: Source, annotation: Any) -> Source:
    """``source`` with every key under its current name; ``annotation``: the type that its data is validated against.

    A former key next to its successor is left in place, so that validation refuses it.
    """
    former = dict(_former_keys(source.data, annotation, ()))
    if not former:
        return source

    def current(path: KeyPath) -> KeyPath:
        return tuple(former.get(path[: at + 1], key) for at, key in enumerate(path))

    for path, name in former.items():
        problem = source.problem(path, f"this key is called '{name}' now; {_UNTIL}")
        warnings.warn(str(problem), RenamedKeyWarning, stacklevel=2)
    return replace(
        source,
        data=_renamed(source.data, former, ()),
        positions={current(path): position for path, position in source.positions.items()},
        settings={current(path): setting for path, setting in source.settings.items()},
    )


def with_current_path(keypath: KeyPath, annotation: Any, setting: str) -> KeyPath:
    """``keypath`` of a ``--set`` argument with every key under its current name."""
    current: list[str | int] = []
    for key in keypath:
        name = _former_names(annotation).get(str(key), key)
        if name != key:
            former = dotted((*current, key))
            text = f"--set {setting}: {former}: this key is called '{name}' now; {_UNTIL}"
            warnings.warn(text, RenamedKeyWarning, stacklevel=2)
        current.append(name)
        annotation = child(annotation, name)
    return tuple(current)


def current_data(data: Any, annotation: Any) -> Any:
    """``data``, stored by an earlier version, with every key under its current name, without warnings."""
    return _renamed(data, dict(_former_keys(data, annotation, ())), ())


def _former_keys(data: Any, annotation: Any, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Key paths of former names in ``data``, each with the current name of its last key."""
    if isinstance(data, dict):
        names = _former_names(annotation)
        for key, value in data.items():
            name = names.get(key)
            if name is not None and name not in data:
                yield (*path, key), name
            else:
                name = key
            yield from _former_keys(value, child(annotation, name), (*path, key))
    elif isinstance(data, list):
        for at, value in enumerate(data):
            yield from _former_keys(value, child(annotation, at), (*path, at))


def _former_names(annotation: Any) -> dict[str, str]:
    """Former names of keys of a value of ``annotation``, with their current names."""
    names: dict[str, str] = {}
    for model in members(annotation):
        if isinstance(model, type) and issubclass(model, Strict):
            names |= model.renamed
    return names


def _renamed(data: Any, former: dict[KeyPath, str], path: KeyPath) -> Any:
    if isinstance(data, dict):
        return {former.get((*path, key), key): _renamed(value, former, (*path, key)) for key, value in data.items()}
    if isinstance(data, list):
        return [_renamed(value, former, (*path, at)) for at, value in enumerate(data)]
    return data
