"""``--set key.path=value``: changes to a document's data before it is validated."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hisearch.specs.annotations import child, known_keys, model_of, replacement
from hisearch.specs.documents.kinds import envelope_model
from hisearch.specs.documents.renamed_keys import with_current_keys, with_current_path
from hisearch.specs.errors import KeyPath, SpecError, as_keypath, dotted
from hisearch.specs.source import Source
from hisearch.specs.wording import described, unknown
from hisearch.specs.yaml_nodes import load_value


def split_setting(setting: str) -> tuple[KeyPath, Any]:
    """Key path and value of one ``--set`` argument; the value is a YAML scalar or flow collection.

    Raises:
        SpecError: no ``=``, no key, or a value that is not YAML.
    """
    key, equals, text = setting.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise SpecError.at("expected KEY=VALUE, for example spec.budget.simulations=500", setting=setting)
    keypath = as_keypath(key.strip())
    try:
        return keypath, load_value(text)
    except SpecError as error:
        raise SpecError.at(f"{error.message}; put the value in quotes", key=dotted(keypath), setting=setting) from None


def apply_overrides(source: Source, kind: str, settings: Iterable[str]) -> Source:
    """``source`` with every setting applied, in order; the original is left as it is.

    Sections that the kind has and the file leaves out are made on the way.

    Raises:
        SpecError: a setting that is not understood, or a key that the kind does not have.
    """
    if not isinstance(source.data, dict):
        return source
    model = envelope_model(kind)
    source = with_current_keys(source, model)
    data = copy.deepcopy(source.data)
    marks = dict(source.settings)
    for setting in settings:
        keypath, value = split_setting(setting)
        keypath = with_current_path(keypath, model, setting)
        _set(data, keypath, value, kind, replace(source, settings={**marks, keypath: setting}))
        marks[keypath] = setting
    return replace(source, data=data, settings=marks)


def _set(data: Any, keypath: KeyPath, value: Any, kind: str, source: Source) -> None:
    """Puts ``value`` into ``data``, in place."""
    container: Any = data
    annotation: Any = envelope_model(kind)
    for depth in range(len(keypath)):
        key = _checked_key(container, annotation, keypath, depth, source)
        if depth == len(keypath) - 1:
            container[key] = value
            return
        annotation = child(annotation, key)
        if isinstance(container, dict) and container.get(str(key)) is None and model_of(annotation) is not None:
            container[str(key)] = {}
        container = container.get(key) if isinstance(container, dict) else container[key]


def _checked_key(container: Any, annotation: Any, keypath: KeyPath, depth: int, source: Source) -> Any:
    """The key at ``depth``: an index that a list has, or a key that a section may have."""
    key, place = keypath[depth], dotted(keypath[:depth]) or "the document"
    if isinstance(container, list):
        if not isinstance(key, int) or key >= len(container):
            known = f"expected an index from 0 to {len(container) - 1}" if container else "it is empty"
            raise source.error(keypath, f"{place} is a list and has no entry '{key}'; {known}")
        return key
    if not isinstance(container, dict):
        raise source.error(keypath, f"{place} is {described(container)}, which has no key '{key}'")
    allowed = known_keys(annotation)
    if allowed is not None and str(key) not in allowed:
        instead = replacement(annotation, str(key))
        raise source.error(keypath, instead or f"{place} has no key '{key}'{unknown(str(key), allowed)}")
    return str(key)
