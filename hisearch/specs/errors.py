"""Errors of specs: what is wrong, in which file, at which line and key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hisearch.specs.storage_url import mask_passwords

KeyPath = tuple[str | int, ...]


def dotted(keypath: KeyPath) -> str:
    """A key path as people write it: ``spec.terms.0.metric``."""
    return ".".join(str(key) for key in keypath)


def as_keypath(keypath: str | Sequence[str | int]) -> KeyPath:
    """The inverse of :func:`dotted`; sequences pass through."""
    if isinstance(keypath, str):
        return tuple(int(key) if key.isdigit() else key for key in keypath.split(".")) if keypath else ()
    return tuple(keypath)


def shown_path(path: Path) -> str:
    """``path`` relative to the working directory where it lies beneath it."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


class RenamedKeyWarning(FutureWarning):
    """A document has a key under its former name."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        message: what is wrong and what was expected.
        path: the file; None where there is none.
        line: its line, from 1; None where unknown or where the value comes from the command line.
        key: dotted key path in the document, or "".
        setting: the ``--set`` argument that put the value there, or "".
    """

    message: str
    path: Path | None = None
    line: int | None = None
    key: str = ""
    setting: str = ""

    def __str__(self) -> str:
        where = shown_path(self.path) if self.path is not None else ""
        if self.setting:
            where = f"{where} (--set {mask_passwords(self.setting)})".strip()
        elif where and self.line is not None:
            where = f"{where}:{self.line}"
        return ": ".join(part for part in (where, self.key, self.message) if part)


class SpecError(ValueError):
    """A spec that cannot be used; all that is wrong with one document, one line each.

    ``path``, ``line``, ``key`` and ``message`` are those of the first problem.
    """

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*problems)
        self.problems = problems

    @classmethod
    def at(
        cls, message: str, *, path: Path | None = None, line: int | None = None, key: str = "", setting: str = ""
    ) -> SpecError:
        """An error of one problem."""
        return cls(Problem(message, path, line, key, setting))

    @property
    def path(self) -> Path | None:
        """File of the first problem."""
        return self.problems[0].path

    @property
    def line(self) -> int | None:
        """Line of the first problem, from 1."""
        return self.problems[0].line

    @property
    def key(self) -> str:
        """Dotted key path of the first problem."""
        return self.problems[0].key

    @property
    def message(self) -> str:
        """Message of the first problem, without its location."""
        return self.problems[0].message

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class KeyedError(ValueError):
    """Raised by a validator of a section about one key below it.

    keypath: from the section on.
    """

    def __init__(self, keypath: KeyPath, message: str) -> None:
        super().__init__(f"{dotted(keypath)}: {message}")
        self.keypath = keypath
        self.message = message


class UnknownReferenceError(SpecError):
    """A name or path that leads to no document."""
