"""Compiled kernels that a wheel brings along, for any processor with a stated set of features.

``release/build_wheel.py`` compiles them into ``hisearch/prebuilt``, in the layout of the on-disk cache. Folders are
named after the same digests, so that a kernel of another source or of another compiler is never loaded. What is missing
is compiled as without them.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "prebuilt"


class Target(NamedTuple):
    """What the kernels of a wheel are compiled for."""

    cpu: str
    #: LLVM's features beyond those of ``cpu``.
    features: str
    #: LLVM's names of what a processor must have.
    needed: tuple[str, ...]


#: By ``platform.machine()``. Linux alone.
TARGETS = {
    "x86_64": Target(
        "x86-64-v3", "",
        ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse3", "sse4.1",
         "sse4.2", "ssse3", "xsave"),
    ),
    "aarch64": Target("generic", "", ("neon",)),
}  # fmt: skip


def target() -> Target | None:
    """What a wheel for this kind of machine is compiled for; None where there is no such wheel."""
    return TARGETS.get(platform.machine()) if sys.platform == "linux" else None


@functools.cache
def refusal() -> str | None:
    """Why the kernels that this installation brings along are not loaded; None where they are."""
    kind = target()
    if not FOLDER.is_dir():
        return "this installation has none"
    if kind is None:
        return f"none are made for {sys.platform} on {platform.machine()}"
    if os.environ.get("NUMBA_CPU_NAME") or os.environ.get("NUMBA_CPU_FEATURES"):
        return "NUMBA_CPU_NAME or NUMBA_CPU_FEATURES is set"
    missing = _missing_features(kind)
    if missing:
        return f"they need {kind.cpu}, and this processor lacks {', '.join(missing)}"
    return None


def _missing_features(kind: Target) -> list[str]:
    import llvmlite.binding as llvm  # type: ignore[import-untyped]

    has = llvm.get_host_cpu_features()
    return [name for name in kind.needed if not has.get(name)]


def folder(name: str) -> Path | None:
    """The folder ``name`` of the on-disk cache among the kernels brought along, where it is there and may be loaded."""
    folder = FOLDER / name
    return folder if folder.is_dir() and refusal() is None else None


def description() -> dict[str, Any]:
    """What the kernels brought along were compiled for and with; empty where there are none."""
    try:
        read = json.loads((FOLDER / "target.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def state(name: str) -> str:
    """Whether the kernels brought along are in use, in words.

    Args:
        name: a folder of the on-disk cache that a complete set has.
    """
    refused = refusal()
    if refused is not None:
        return f"not in use: {refused}"
    made = description()
    if folder(name) is None:
        with_versions = ", ".join(f"{package} {number}" for package, number in made.get("with", {}).items())
        return f"not in use: their sources or versions differ (compiled with {with_versions})"
    return f"in use ({made.get('cpu')})"
