"""The one decorator of all kernels.

Numba's on-disk cache does not notice that a callee in another file changed. The cache folder is therefore named by a
hash of all kernel sources, their place and the versions of numba and numpy, and set before numba is first imported: a
stale kernel can never run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parents[1]
#: What kernels are compiled from outside their package.
_OUTSIDE = (
    "base/jit.py",
    "base/indexing.py",
    "latency/measured/_tiles.py",
    "latency/costs.py",
    "traces/_reuse.py",
    "traces/_tree.py",
)


def cache_root() -> Path:
    """Folder for everything that can be recomputed: ``$HISEARCH_CACHE_DIR``, else ``$XDG_CACHE_HOME/hisearch``."""
    own = os.environ.get("HISEARCH_CACHE_DIR")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hisearch"


def _kernel_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted((*_PACKAGE.glob("kernels/**/*.py"), *(_PACKAGE / name for name in _OUTSIDE))):
        digest.update(path.relative_to(_PACKAGE).as_posix().encode())
        digest.update(path.read_bytes())
    for package in ("numba", "numpy", "llvmlite"):
        digest.update(version(package).encode())
    digest.update(os.environ.get("HISEARCH_CHECK_INDICES", "").encode())
    # Numba keeps kernels of equal sources at different places apart.
    digest.update(f"{platform.machine()}{sys.version_info[:3]}{_PACKAGE}".encode())
    return digest.hexdigest()[:16]


def _point_numba_at_cache() -> Path:
    folder = cache_root() / "kernels" / _kernel_digest()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    if "numba" in sys.modules:
        from numba.core import config

        config.CACHE_DIR = str(folder)
    return folder


CACHE_FOLDER = _point_numba_at_cache()

from numba import config as _config  # noqa: E402  (after the cache folder is set)
from numba import njit as _njit  # noqa: E402
from numba import types as _types  # noqa: E402

import hisearch.base.indexing  # noqa: E402, F401  (before anything is compiled)

#: No GIL, IEEE arithmetic (no fast-math: stepping and skipping must agree bit for bit).
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def kernel(function: Any) -> Any:
    """Compile ``function``: for Python, cached on disk; for other kernels, lean.

    What a kernel calls is compiled apart from what Python calls: without the wrappers that Python needs, a third of the
    time, and for int64 whatever the width of the integers that it is given, where else every mixture of widths would
    make a version of its own. With the jit off, ``function`` itself.
    """
    if _config.DISABLE_JIT:
        return function
    outer = _njit(cache=True, **OPTIONS)(function)
    inner = _njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **OPTIONS)(function)

    def call_template(args: Any, kws: Any) -> Any:
        _, args = outer._compiler.fold_argument_types(args, kws)
        return inner.get_call_template(tuple(_widened(arg) for arg in args), {})

    outer.get_call_template = call_template
    outer.get_overload = inner.get_overload
    outer.get_compile_result = inner.get_compile_result
    return outer


def _widened(arg: Any) -> Any:
    plain = _types.unliteral(arg)
    narrow = isinstance(plain, _types.Integer) and plain.bitwidth < 64
    return _types.int64 if narrow else plain


def is_compiled(module: str | None = None) -> bool:
    """True where this version of the engine in ``module`` is in the on-disk cache; None: of the event loop."""
    package, name = ("fleet", "cluster.run") if module is None else module.split(".")
    return any(CACHE_FOLDER.glob(f"{package}_*/{name if module is None else f'{name}.door'}-*.nbi"))
