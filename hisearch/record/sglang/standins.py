"""Stand-ins for what a machine without GPU lacks: packages of kernels, and the parts of SGLang that run a model.

``install`` must come before the first import of ``sglang``. A stand-in module has any attribute, each an empty class:
good enough to be imported, subclassed, or used as a decorator, and without any effect.
"""

# mypy: allow-untyped-defs, no-warn-unused-ignores, disable-error-code="has-type,var-annotated,func-returns-value"

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: Parts of SGLang that only serve to run a model, to draft, or to talk to other processes.
_UNUSED = (
    "configs", "layers", "models", "model_loader", "multimodal", "distributed", "eplb", "constrained",
    "multiplex", "parser", "function_call", "connector", "entrypoints", "compilation", "batch_overlap", "tokenizer",
)  # fmt: skip


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


class _StandInModule(types.ModuleType):
    """A module that has every attribute."""

    __path__ = []  # noqa: RUF012 - as modules have it
    __version__ = "0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stand_in(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not self._replaces(fullname):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass

    def _replaces(self, fullname: str) -> bool:
        raise NotImplementedError


class _UnusedParts(_Finder):
    """Asked first: parts of SGLang itself."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(f"sglang.{name}" for name in names)

    def _replaces(self, fullname: str) -> bool:
        return any(fullname == name or fullname.startswith(f"{name}.") for name in self._names)


class _MissingPackages(_Finder):
    """Asked last: packages that are not installed, as far as a module of SGLang asks for them."""

    def _replaces(self, fullname: str) -> bool:
        root = fullname.partition(".")[0]
        if root in sys.stdlib_module_names or root in ("sglang", "torch", "numpy"):
            return False
        if isinstance(sys.modules.get(root), _StandInModule):
            return True
        frame = sys._getframe(1)
        while frame.f_back is not None and (
            "importlib" in frame.f_code.co_filename or frame.f_code.co_filename == __file__
        ):
            frame = frame.f_back
        return str(frame.f_globals.get("__name__", "")).startswith("sglang")


def install(version: str, more_unused: Sequence[str] = ()) -> None:
    """Put the stand-ins in place.

    Args:
        version: of the installed SGLang.
        more_unused: further modules below ``sglang`` to replace.
    """
    import torch

    # Nothing is compiled: compilers would ask for a GPU's toolchain, and the few functions concerned are tiny.
    torch.compile = lambda *args, **_: args[0] if args else (lambda function: function)
    # The front module imports the client language; only its submodules are needed.
    package = types.ModuleType("sglang")
    roots = (Path(entry or ".") / "sglang" for entry in sys.path)
    package.__path__ = [str(root) for root in roots if (root / "srt").is_dir()]
    package.__version__ = version  # type: ignore[attr-defined]
    package.__spec__ = importlib.machinery.ModuleSpec("sglang", None, is_package=True)
    sys.modules["sglang"] = package
    sys.meta_path.insert(0, _UnusedParts(["kernels", *(f"srt.{name}" for name in _UNUSED), *more_unused]))
    sys.meta_path.append(_MissingPackages())
