"""Walks the type annotations of spec models along a key path."""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel

from hisearch.specs.base import Strict
from hisearch.specs.errors import KeyPath

Loc = tuple[str | int, ...]


def members(annotation: Any) -> list[Any]:
    """Alternatives of an annotation, ``Annotated`` unwrapped and ``None`` left out."""
    origin = typing.get_origin(annotation)
    if origin is Annotated:
        return members(typing.get_args(annotation)[0])
    if origin in {Union, types.UnionType}:
        return [member for part in typing.get_args(annotation) for member in members(part) if member is not type(None)]
    return [annotation]


def is_model(annotation: Any) -> bool:
    """True for a spec model."""
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The spec model among the alternatives of an annotation, if any."""
    return next((member for member in members(annotation) if is_model(member)), None)


def child(annotation: Any, key: str | int) -> Any:
    """Annotation of ``key`` inside a value of ``annotation``; None where the annotation has no such key."""
    for member in members(annotation):
        origin, arguments = typing.get_origin(member), typing.get_args(member)
        if is_model(member):
            if isinstance(key, str) and key in member.model_fields:
                return member.model_fields[key].annotation
        elif origin is dict and isinstance(key, str):
            return arguments[1]
        elif origin is list and isinstance(key, int):
            return arguments[0]
        elif origin is tuple and isinstance(key, int) and 0 <= key < len(arguments):
            return arguments[key]
    return None


def known_keys(annotation: Any) -> list[str] | None:
    """Keys that a value of ``annotation`` may have; None where any goes or it has none."""
    for member in members(annotation):
        if is_model(member):
            return list(member.model_fields)
        if typing.get_origin(member) is dict:
            keys = members(typing.get_args(member)[0])
            if len(keys) == 1 and typing.get_origin(keys[0]) is Literal:
                return [str(key) for key in typing.get_args(keys[0])]
    return None


def replacement(annotation: Any, key: str) -> str:
    """What to write instead of the removed ``key``; "" where ``annotation`` never had it."""
    model = model_of(annotation)
    return model.replaced.get(key, "") if model is not None and issubclass(model, Strict) else ""


def split_branches(annotation: Any, loc: Loc) -> tuple[KeyPath, tuple[str, ...], Any]:
    """Separates a pydantic error location into real keys and the union branches between them.

    Returns:
        The key path, the tags of the branches it went through, and the annotation of the container of the last key.
    """
    keys: list[str | int] = []
    tags: list[str] = []
    container, current = None, annotation
    for part in loc:
        options = members(current) if current is not None else []
        tagged = next((option for option in options if len(options) > 1 and _is_tag(part, option)), None)
        if tagged is not None:
            tags.append("str" if tagged is str else tagged.__name__)
            current = tagged
        elif part != "[key]":
            keys.append(part)
            container, current = current, child(current, part) if current is not None else None
    return tuple(keys), tuple(tags), container


def _is_tag(part: str | int, option: Any) -> bool:
    """True where ``part`` is pydantic's name for a branch of a union: its type's, wrapped where it has validators."""
    if typing.get_origin(option) is list:
        return isinstance(part, str) and part.startswith("list[")
    name = getattr(option, "__name__", str(option))
    return part == name or (isinstance(part, str) and part.endswith(f", {name}]"))
