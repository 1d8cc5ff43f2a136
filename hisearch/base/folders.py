"""Where things are kept that can be computed again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Folder for everything that can be recomputed: ``$HISEARCH_CACHE_DIR``, else ``$XDG_CACHE_HOME/hisearch``."""
    folder = os.environ.get("HISEARCH_CACHE_DIR")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hisearch"


#: Folder of all compiled kernels, whatever their version.
COMPILED_KERNELS = cache_root() / "kernels"
