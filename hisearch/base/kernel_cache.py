"""On-disk cache of compiled kernels: a folder for each module, named after a digest of all its sources.

A kernel is compiled together with everything it calls, and constants of other modules become part of it. Numba's own
on-disk cache compares only the bytes of the kernel's file. It would run stale kernels, and recompile after a change of
a comment. Here the folder's name is a digest of the module and of every hisearch module that it imports, directly or
indirectly, without comments and docstrings. A change in one engine leaves the others compiled, and a stale kernel
never runs.

The classes below depend on numba's internals (``numba.core.caching``); ``tests/kernels/test_kernel_cache.py`` tests
what they rely on.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile

from hisearch.base import policies, prebuilt
from hisearch.base.folders import COMPILED_KERNELS

_PACKAGE = Path(__file__).parents[1]
_ROOT = _PACKAGE.name


class KernelCache(FunctionCache):
    """Numba's cache of one function, under ``folder_of`` its module; else among the kernels of the installation."""

    class _impl_class(CompileResultCacheImpl):  # noqa: N801  (numba's name)
        def __init__(self, function: Callable[..., Any]) -> None:
            self._module = function.__module__
            self._locator = _Locator(function)
            self._lineno = function.__code__.co_firstlineno
            self._filename_base = _file_stem(function.__qualname__)

        def check_cachable(self, data: Any) -> bool:
            """Whether the kernel may be saved: not if a source of it was edited since this process began."""
            return _is_unchanged(self._module) and bool(super().check_cachable(data))  # type: ignore[no-untyped-call]

    def _load_overload(self, sig: Any, target_context: Any) -> Any:
        overload = super()._load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        folder, target = prebuilt.folder(self._impl.locator.get_source_stamp()), prebuilt.target()
        if overload is not None or folder is None or target is None:
            return overload
        _, (triple, _, _), code = self._index_key(sig, target_context.codegen())  # type: ignore[no-untyped-call]
        key = (sig, (triple, target.cpu, target.features), code)
        file = IndexDataCacheFile(str(folder), self._impl.filename_base, folder.name)  # type: ignore[no-untyped-call]
        data = file.load(key)  # type: ignore[no-untyped-call]
        return None if data is None else self._impl.rebuild(target_context, data)


class _Locator:
    """Tells numba where a function is cached, and for which version of its source."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._folder = folder_of(function.__module__)
        #: Numba names this file when it cannot cache a function.
        self._py_file = function.__code__.co_filename

    def ensure_cache_path(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name


def is_cached(module: str, function: str) -> bool:
    """True where the current version of ``function`` of ``module`` is in the cache or came with the installation."""
    folder, index = folder_of(module), f"{_file_stem(function)}.nbi"
    brought = prebuilt.folder(folder.name)
    return (folder / index).is_file() or (brought is not None and (brought / index).is_file())


def folder_of(module: str) -> Path:
    """Folder of compiled kernels of the current version of ``module`` (dotted name)."""
    return COMPILED_KERNELS / f"{module.removeprefix(f'{_ROOT}.')}-{digest([module])}"


def all_kernels_digest() -> str:
    """Digest of everything that any kernel of ``hisearch.kernels`` is compiled from."""
    return digest(_all_kernels())


def digest(modules: Iterable[str]) -> str:
    """Digest of ``modules`` and all hisearch modules that they import, directly or indirectly.

    It covers the versions of Python and of the compiler, the processor type and the option ``HISEARCH_CHECK_INDICES``.
    Of Python's and NumPy's version it covers what compiled code depends on. It ignores comments, docstrings and the
    location of the installation.
    """
    _read_all_kernels()
    hasher = hashlib.sha256(_platform().encode())
    closure = _closure(modules)
    _write_sources()
    for module in sorted(closure):
        hasher.update(module.encode())
        hasher.update(_source(module)[0].encode())
    if policies.__name__ in closure:
        hasher.update(policies.kernel_text().encode())
    return hasher.hexdigest()[:16]


@functools.cache
def _read_all_kernels() -> None:
    """Read every source before the first kernel is compiled: digests are of the sources with which a process began."""
    _closure(_all_kernels())


def _is_unchanged(module: str) -> bool:
    """Whether ``module`` and all that it imports are on disk as this process read them."""
    return all(
        (path := _path_of(name)) is not None and hashlib.sha256(path.read_bytes()).hexdigest() == _sources()[name][0]
        for name in _closure([module])
    )


def _all_kernels() -> list[str]:
    return [_module_name(path) for path in sorted(_PACKAGE.glob("kernels/**/*.py"))]


def _file_stem(function: str) -> str:
    return f"{function.replace('<', '').replace('>', '')}.py{sys.version_info[0]}{sys.version_info[1]}"


@functools.cache
def _platform() -> str:
    packages = [version("numba"), version("numpy").split(".")[0], version("llvmlite")]
    return repr([packages, platform.machine(), sys.version_info[:2], os.environ.get("HISEARCH_CHECK_INDICES", "")])


def _closure(modules: Iterable[str]) -> set[str]:
    """``modules`` and every hisearch module that they import, directly or indirectly."""
    seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += _source(module)[1]
    return seen


@functools.cache
def _source(module: str) -> tuple[str, tuple[str, ...]]:
    """Digest of a module's code, and the hisearch modules that it imports."""
    path = _path_of(module)
    if path is None:
        raise ModuleNotFoundError(f"no module '{module}' under {_PACKAGE}", name=module)
    raw = path.read_bytes()
    file_digest = hashlib.sha256(raw).hexdigest()
    if _sources().get(module, [""])[0] != file_digest:
        _sources()[module] = [file_digest, *_analysed(raw)]
        _unwritten.add(module)
    _, code, imported = _sources()[module]
    return code, tuple(sorted({module for name in imported for module in _resolved(name)}))


def _analysed(raw: bytes) -> tuple[str, list[str]]:
    """Digest of the code without comments and docstrings, and the dotted hisearch names that it imports."""
    tree = ast.parse(raw)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, False) is not None
        ):
            del node.body[0]
    ours = sorted(name for name in names if name.split(".")[0] == _ROOT)
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), ours


def _resolved(name: str) -> list[str]:
    """Modules that importing the dotted ``name`` may bring in: it, or what it is an attribute of.

    A package stands for all its modules: policies are found in a folder, not named in imports.
    """
    path = _path_of(name)
    if path is None:
        name, _, _ = name.rpartition(".")
        path = _path_of(name)
    if path is None or name == _ROOT:
        return []
    if path.name != "__init__.py":
        return [name]
    return [name, *(f"{name}.{module.stem}" for module in path.parent.glob("[!_]*.py"))]


def _path_of(module: str) -> Path | None:
    base = _PACKAGE.joinpath(*module.split(".")[1:])
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def _module_name(path: Path) -> str:
    parts = path.relative_to(_PACKAGE).with_suffix("").parts
    return ".".join((_ROOT, *(parts[:-1] if parts[-1] == "__init__" else parts)))


@functools.cache
def _sources() -> dict[str, list[Any]]:
    """Module -> digest of its file, of its code, and its imports, as written by earlier processes: saves parsing."""
    try:
        kept = json.loads(_sources_file().read_text())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


#: Modules that this process has analysed and not yet written to the file.
_unwritten: set[str] = set()


def _write_sources() -> None:
    """Write newly analysed sources to disk, atomically: a killed process leaves the file unchanged."""
    if not _unwritten:
        return
    target = _sources_file()
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(_sources()))
        temporary.replace(target)
    except OSError:
        # Without it sources are parsed again; numba reports a cache that cannot be written when it saves kernels.
        return
    _unwritten.clear()


def _sources_file() -> Path:
    return COMPILED_KERNELS / "sources.json"
