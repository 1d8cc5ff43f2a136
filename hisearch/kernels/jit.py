"""The one decorator of all kernels.

Numba's on-disk cache does not notice that a callee in another file changed. The cache folder is therefore named by a
hash of all kernel sources and the versions of numba and numpy, and set before numba is first imported: a stale kernel
can never run.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def cache_root() -> Path:
    """Folder for everything that can be recomputed: ``$HISEARCH_CACHE_DIR``, else ``$XDG_CACHE_HOME/hisearch``."""
    own = os.environ.get("HISEARCH_CACHE_DIR")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hisearch"


def _kernel_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    for package in ("numba", "numpy", "llvmlite"):
        digest.update(version(package).encode())
    digest.update(f"{platform.machine()}{sys.version_info[:3]}".encode())
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

from numba import njit as _njit  # noqa: E402  (after the cache folder is set)

#: Every kernel: no GIL, cached on disk, IEEE arithmetic (no fast-math: stepping and skipping must agree bit for bit).
kernel: Any = _njit(nogil=True, cache=True, error_model="numpy")


def is_compiled() -> bool:
    """True where this version's event loop, and so all that it calls, is in the on-disk cache."""
    return any(CACHE_FOLDER.rglob("cluster.run-*.nbi"))
