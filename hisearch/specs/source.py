"""A file as read: plain data, where each key stands, which keys the command line has set."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hisearch.specs.errors import KeyPath, Problem, SpecError, dotted
from hisearch.specs.yaml_nodes import Positions, load_yaml

#: Ends of names of trace files, which are paths although they may hold no slash.
TRACE_SUFFIXES = (".jsonl", ".csv", ".parquet", ".gz", ".zst")


@dataclass(frozen=True)
class Source:
    """Data of one document with what error messages need.

    Attributes:
        path: the file, absolute; for text made in memory, a name for it.
        data: plain data.
        positions: key path -> line and column.
        digest: SHA-256 of the file's bytes, hexadecimal.
        settings: key path -> the ``--set`` argument that put its value there.
    """

    path: Path
    data: Any
    positions: Positions
    digest: str
    settings: dict[KeyPath, str] = field(default_factory=dict)

    def problem(self, keypath: KeyPath, message: str) -> Problem:
        """A problem at ``keypath``: the ``--set`` argument that set it, else the line of the nearest enclosing key."""
        around = [keypath[:length] for length in range(len(keypath), -1, -1)]
        setting = next((self.settings[near] for near in around if near in self.settings), "")
        if setting:
            return Problem(message, self.path, None, dotted(keypath), setting)
        line = next((self.positions[near].line for near in around if near in self.positions), None)
        return Problem(message, self.path, line, dotted(keypath))

    def error(self, keypath: KeyPath, message: str) -> SpecError:
        """A :class:`SpecError` of one problem at ``keypath``."""
        return SpecError(self.problem(keypath, message))


def read_source(path: Path) -> Source:
    """Reads a YAML file.

    Raises:
        SpecError: the file cannot be read, is a trace, is not UTF-8 or not plain YAML.
    """
    if path.name.endswith(TRACE_SUFFIXES):
        raise SpecError.at("a trace file; expected a YAML document", path=path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise SpecError.at(f"cannot be read: {error.strerror}", path=path) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SpecError.at("not UTF-8 text", path=path, line=line) from None
    return text_source(text, path.absolute(), hashlib.sha256(raw).hexdigest())


def text_source(text: str, path: Path, digest: str | None = None) -> Source:
    """A document from text; ``path`` is its name in messages and the base of its relative references.

    Raises:
        SpecError: not plain YAML.
    """
    data, positions = load_yaml(text, path)
    return Source(path, data, positions, digest or hashlib.sha256(text.encode()).hexdigest())
