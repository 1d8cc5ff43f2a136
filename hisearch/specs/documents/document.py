"""A validated document, and validation errors as plain messages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hisearch.specs.annotations import known_keys, replacement, split_branches
from hisearch.specs.base import API_VERSION, Strict
from hisearch.specs.documents.kinds import KINDS, envelope_model
from hisearch.specs.documents.renamed_keys import with_current_keys
from hisearch.specs.errors import KeyedError, KeyPath, Problem, SpecError, as_keypath
from hisearch.specs.source import Source, read_source
from hisearch.specs.validation_messages import describe
from hisearch.specs.wording import described, nearest, unknown
from hisearch.specs.yaml_nodes import Positions

T = TypeVar("T", bound=Strict)


@dataclass(frozen=True)
class Document(Generic[T]):
    """A validated document, or an inline part of one.

    Attributes:
        kind: one of :data:`hisearch.specs.documents.kinds.KINDS`.
        name: the document's name; for an inline part, a name made from its surroundings.
        spec: the validated model.
        source: data, positions and digest of the file.
        base: where ``spec`` stands in the file: ``("spec",)``, deeper for an inline part.
        kept: it is a run's own copy of what was found by its name.
    """

    kind: str
    name: str
    spec: T
    source: Source = field(repr=False)
    base: KeyPath = ("spec",)
    description: str = ""
    kept: bool = False

    @property
    def path(self) -> Path:
        """The file."""
        return self.source.path

    @property
    def digest(self) -> str:
        """SHA-256 of the file's bytes; for an inline part, of its data."""
        if not self.inline:
            return self.source.digest
        return hashlib.sha256(json.dumps(self._data(), sort_keys=True).encode()).hexdigest()

    @property
    def positions(self) -> Positions:
        """Key path in the file -> line and column."""
        return self.source.positions

    @property
    def inline(self) -> bool:
        """True for a part of another document."""
        return self.base != ("spec",)

    def problem(self, keypath: str | Sequence[str | int], message: str) -> Problem:
        """A problem at ``keypath``, which begins with ``spec`` (or ``metadata``), at its line in the file."""
        keys = as_keypath(keypath)
        return self.source.problem((*self.base, *keys[1:]) if keys[:1] == ("spec",) else keys, message)

    def error(self, keypath: str | Sequence[str | int], message: str) -> SpecError:
        """A :class:`SpecError` of one such problem."""
        return SpecError(self.problem(keypath, message))

    def part(self, kind: str, name: str, spec: T, keypath: str) -> Document[T]:
        """The inline ``spec`` at ``keypath`` as a document of its own."""
        return Document(kind, name, spec, self.source, as_keypath(keypath))

    def _data(self) -> Any:
        data = self.source.data
        for key in self.base:
            data = data[key]
        return data


def kind_of(path: Path) -> str:
    """Kind of the document in a YAML file.

    Raises:
        SpecError: not YAML, or no such kind.
    """
    return _kind(read_source(path), None)


def parse_document(source: Source, kind: str | None = None) -> Document[Any]:
    """Validates a whole document.

    Args:
        source: the file as read.
        kind: the expected kind; any where None.

    Raises:
        SpecError: all that is wrong with it, one line each.
    """
    doc_kind = _kind(source, kind)
    try:
        source = with_current_keys(source, envelope_model(doc_kind))
        envelope: Any = envelope_model(doc_kind).model_validate_json(json.dumps(source.data), strict=True)
    except ValidationError as error:
        raise SpecError(*_problems(error, doc_kind, source)) from None
    return Document(doc_kind, envelope.metadata.name, envelope.spec, source, description=envelope.metadata.description)


def _kind(source: Source, expected: str | None) -> str:
    if not isinstance(source.data, dict):
        message = f"expected a document with apiVersion: {API_VERSION}, kind, metadata and spec; got "
        raise source.error((), message + ("an empty file" if source.data is None else described(source.data)))
    kind = source.data.get("kind")
    if "kind" not in source.data:
        raise source.error(("kind",), f"required; known: {', '.join(KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise source.error(("kind",), f"no kind '{kind}'{unknown(str(kind), KINDS)}")
    if expected is not None and kind != expected:
        raise source.error(("kind",), f"expected a document of kind {expected}, got {kind}")
    return kind


def _problems(error: ValidationError, kind: str, source: Source) -> list[Problem]:
    """One problem per key; of a union, only of the branch that the data matches.

    A key that is missing because it was misspelt is reported once: at the misspelt key, with the expected one.
    """
    problems: dict[KeyPath, Problem] = {}
    missing, meant = set[KeyPath](), set[KeyPath]()
    for details in error.errors(include_url=False):
        keypath, tags, container = split_branches(envelope_model(kind), details["loc"])
        chosen = tags[-1] if tags else ""
        value = details["input"]
        if _of_another_branch(details["type"], chosen, value):
            continue
        if chosen and chosen != "str" and details["type"] == "model_type":
            details = {**details, "type": "string_type"}  # noqa: PLW2901 - same value, reported once for all branches
        error_inside = details.get("ctx", {}).get("error")
        if isinstance(error_inside, KeyedError):
            keypath = (*keypath, *error_inside.keypath)
        if keypath not in problems:
            # The value itself has a union for its type where the error is at the place of its branch.
            itself = bool(chosen) and keypath == tuple(details["loc"][:-1])
            text = _words(details, keypath, container, named_or_inline=itself)
            problems[keypath] = source.problem(keypath, text)
        if details["type"] == "missing":
            missing.add(keypath)
        elif details["type"] == "extra_forbidden":
            word = nearest(str(keypath[-1]), known_keys(container) or [])
            meant |= {(*keypath[:-1], word)} if word is not None else set()
    for keypath in missing & meant:
        del problems[keypath]
    line = {problem.key: problem.line or 0 for problem in problems.values()}
    return sorted(problems.values(), key=lambda problem: line[problem.key])


def _of_another_branch(error: str, chosen: str, value: Any) -> bool:
    """True where a section or a list was validated against a union branch of another type."""
    if isinstance(value, dict):
        return chosen == "str" or (chosen == "list" and error == "list_type")
    return bool(chosen) and isinstance(value, list) and error == "model_type"


def _words(details: ErrorDetails, keypath: KeyPath, container: Any, *, named_or_inline: bool) -> str:
    kind, value, context = details["type"], details["input"], details.get("ctx", {})
    if kind == "extra_forbidden":
        instead = replacement(container, str(keypath[-1]))
        return instead or f"unknown key{unknown(str(keypath[-1]), known_keys(container) or [])}"
    if kind == "value_error" and isinstance(context["error"], KeyedError):
        return context["error"].message
    if named_or_inline and kind == "string_type":
        return f"expected a name, a path or a section; got {described(value)}"
    return describe(details)
