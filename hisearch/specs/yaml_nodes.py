"""YAML as data with positions: one document, safe, YAML 1.2 scalars.

Differences from PyYAML's safe loader
    * ``8e10`` and ``3.35e12`` are numbers, ``on``, ``no`` and ``yes`` are text, dates are text; only ``true`` and
      ``false`` are booleans (YAML 1.2, core schema, https://yaml.org/spec/1.2.2/#103-core-schema).
    * Duplicate keys, keys that are not text, several documents, custom tags and aliases that multiply are refused.
    * Every key and list item keeps its line and column.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hisearch.specs.errors import KeyPath, SpecError, dotted

MAX_BYTES = 4 * 1024 * 1024
MAX_NODES = 100_000
MAX_DEPTH = 64

_STR, _NULL, _BOOL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool"
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_MAP, _SEQ = "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"

_SCALARS = (
    (_NULL, re.compile(r"^(?:~|null|Null|NULL|)$"), "~nN\0"),
    (_BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    (_INT, re.compile(r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), "-+0123456789"),
    (
        _FLOAT,
        re.compile(
            r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        "-+.0123456789",
    ),
)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, firsts in _SCALARS:
        for first in firsts:
            table.setdefault("" if first == "\0" else first, []).append((tag, pattern))
    return table


#: Where libyaml and PyYAML read differently: white space but the blank and the newline, ``?`` inside plain text, tags
#: of no name, an empty document after its marker, a comment right after ``|``. Such texts are read by PyYAML.
_READ_OTHERWISE = re.compile(r"[\t\r\x85\u2028\u2029\ufeff?!]|---|[|>][-+0-9]*#")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalars of YAML 1.2."""

    yaml_implicit_resolvers = _resolvers()


if yaml.__with_libyaml__:

    class _FastLoader(yaml.composer.Composer, yaml.CSafeLoader):
        """:class:`_Loader` whose events come from libyaml, in a quarter of the time.

        Nodes are composed in Python: its recursion has a limit, where libyaml's ends the process.
        """

        yaml_implicit_resolvers = _resolvers()

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            yaml.composer.Composer.__init__(self)


class _Dumper(yaml.SafeDumper):
    """Quotes exactly what :class:`_Loader` would not read back as text."""

    yaml_implicit_resolvers = _resolvers()

    def ignore_aliases(self, data: Any) -> bool:
        """Repeated values are written out."""
        return True


@dataclass(frozen=True)
class Mark:
    """A position in a file, both counted from 1."""

    line: int
    column: int


Positions = dict[KeyPath, Mark]


@dataclass
class _Builder:
    """Turns composed nodes into plain data and records the position of every key and item."""

    path: Path | None
    positions: Positions = field(default_factory=dict)
    nodes: int = 0

    def error(self, message: str, mark: yaml.Mark, keypath: KeyPath) -> SpecError:
        return SpecError.at(message, path=self.path, line=mark.line + 1, key=dotted(keypath))

    def build(self, node: yaml.Node, keypath: KeyPath) -> Any:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise self.error(f"more than {MAX_NODES} values, aliases written out", node.start_mark, ())
        if len(keypath) > MAX_DEPTH:
            raise self.error(f"nested more than {MAX_DEPTH} levels deep", node.start_mark, keypath[:3])
        self.positions.setdefault(keypath, Mark(node.start_mark.line + 1, node.start_mark.column + 1))
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self._mapping(node, keypath)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return [self.build(item, (*keypath, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, keypath)
        raise self.error(f"tag {node.tag} is not allowed here; plain data only", node.start_mark, keypath)

    def _mapping(self, node: yaml.MappingNode, keypath: KeyPath) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._scalar(key_node, keypath) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise self.error("a key must be text; put it in quotes", key_node.start_mark, keypath)
            child_path = (*keypath, key)
            if key in data:
                first = self.positions[child_path].line
                raise self.error(f"given twice, first in line {first}", key_node.start_mark, child_path)
            self.positions[child_path] = Mark(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            data[key] = self.build(value_node, child_path)
        return data

    def _scalar(self, node: yaml.ScalarNode, keypath: KeyPath) -> Any:
        text: str = node.value
        if node.tag == _STR:
            if any("\ud800" <= char <= "\udfff" for char in text):
                raise self.error("text holds half of a surrogate pair", node.start_mark, keypath)
            return text
        if node.tag == _NULL:
            return None
        if node.tag == _BOOL and text.lower() in {"true", "false"}:
            return text.lower() == "true"
        try:
            if node.tag == _INT:
                return int(text, 0) if text[:2] in {"0o", "0x"} else int(text)
            if node.tag == _FLOAT:
                return float(re.sub(r"\.(inf|nan)", r"\1", text.lower()))
        except ValueError:
            raise self.error(f"'{text[:40]}' is not a usable number", node.start_mark, keypath) from None
        raise self.error(f"tag {node.tag} is not allowed here; plain data only", node.start_mark, keypath)


def load_yaml(text: str, path: Path | None = None) -> tuple[Any, Positions]:
    """Plain data of the one document in ``text``, and the position of every key path in it.

    Args:
        text: the file's content.
        path: the file, for error messages.

    Returns:
        Data of dicts, lists, str, int, float, bool and None; and key path -> :class:`Mark`, where a mapping's entry is
        marked at its key and a list's at the item. ``()`` marks the document.

    Raises:
        SpecError: not YAML, or one of the refused constructs in the module's docstring.
    """
    if len(text) > MAX_BYTES:
        raise SpecError.at(f"larger than {MAX_BYTES} characters; this is no spec", path=path)
    node = _compose(text, path)
    if node is None:
        return None, {(): Mark(1, 1)}
    builder = _Builder(path)
    data = builder.build(node, ())
    return data, builder.positions


def _compose(text: str, path: Path | None) -> yaml.Node | None:
    """The document's node, by libyaml where it reads alike; what that refuses is read anew, for PyYAML's message."""
    if yaml.__with_libyaml__ and not _READ_OTHERWISE.search(text):
        try:
            return _single_node(_FastLoader, text)
        except (yaml.YAMLError, RecursionError, UnicodeError):
            pass
    try:
        return _single_node(_Loader, text)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, path) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError.at("not YAML: holds a control character", path=path, line=line) from None
    except RecursionError:
        raise SpecError.at("nested too deeply", path=path, line=1) from None


def _single_node(loader: Callable[[str], Any], text: str) -> yaml.Node | None:
    reader = loader(text)
    try:
        node: yaml.Node | None = reader.get_single_node()
        return node
    finally:
        reader.dispose()


def load_value(text: str) -> Any:
    """A YAML scalar or flow collection given on a command line: ``500``, ``[1, 2]``, ``{a: b}``, ``text``.

    Raises:
        SpecError: the text is not YAML.
    """
    return load_yaml(text)[0]


def dump_yaml(data: Any) -> str:
    """YAML text that :func:`load_yaml` reads back as ``data``; keys keep their order."""
    return str(
        yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)
    )


def _syntax_error(error: yaml.MarkedYAMLError, path: Path | None) -> SpecError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else None
    if error.context == "expected a single document in the stream":
        return SpecError.at("a second document begins here; one file holds one document", path=path, line=line)
    detail = " ".join(part for part in (error.context, error.problem) if part)
    column = f", column {mark.column + 1}" if mark is not None else ""
    return SpecError.at(f"not YAML: {detail}{column}", path=path, line=line)
