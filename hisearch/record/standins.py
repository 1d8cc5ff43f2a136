"""Stand-ins for packages that a machine without GPU lacks.

A stand-in module has any attribute, each an empty class: good enough to be imported, subclassed, or used as a
decorator, and without any effect.
"""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any


class _StandInMeta(type):
    """Makes a class that can be called, indexed and asked for any attribute."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: Any) -> _StandInMeta:
        return super().__new__(cls, name, bases, body)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, body)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or "_stand_in" not in cls.__dict__:
            raise AttributeError(name)
        return _stand_in(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_stand_in" not in cls.__dict__:
            return super().__call__(*args, **kwargs)
        # As a decorator, with or without arguments, it changes nothing.
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return _stand_in(cls.__name__)

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __setitem__(cls, key: Any, value: Any) -> None:
        pass

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __bool__(cls) -> bool:
        # What a replaced function returns is no answer, hence never "yes".
        return "_stand_in" not in cls.__dict__

    def __enter__(cls) -> Any:
        return cls

    def __exit__(cls, *details: object) -> None:
        pass


class _Base:
    def __init_subclass__(cls, **_: Any) -> None:
        pass


def _stand_in(name: str) -> Any:
    return _StandInMeta(name, (_Base,), {"_stand_in": True, "__module__": "stand_in"})


class StandInModule(types.ModuleType):
    """A module that has every attribute."""

    __path__ = []  # noqa: RUF012 - as modules have it
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stand_in(name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives stand-ins for the modules that ``_replaces`` names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As the import system asks it."""
        if not self._replaces(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        """As the import system asks it."""
        return StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: a stand-in has no code."""

    def _replaces(self, fullname: str) -> bool:
        raise NotImplementedError


class MissingPackages(Finder):
    """Asked last: packages that are not installed, as far as a module of the engine asks for them.

    Args:
        engine: name of the engine's package.
        real: further packages that must not be replaced.
    """

    def __init__(self, engine: str, real: Sequence[str] = ("torch", "numpy")) -> None:
        self._engine = engine
        self._real = (engine, *real)

    def _replaces(self, fullname: str) -> bool:
        root = fullname.partition(".")[0]
        if root in sys.stdlib_module_names or root in self._real:
            return False
        if isinstance(sys.modules.get(root), StandInModule):
            return True
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            "importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
        ):
            frame = frame.f_back
        return str(frame.f_globals.get("__name__", "")).startswith(self._engine)
