"""Identifies the catalogue's accelerators by their data sheets, whatever a document calls them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.errors import UnknownReferenceError
from hisearch.specs.machines.hardware import AcceleratorSpec


def of_catalogue(kind: str, name: str) -> Any:
    """A document's spec in the catalogue seen from the working folder, read once.

    Raises:
        SpecError: there is none.
    """
    return _spec(Path.cwd(), kind, name)


def in_catalogue(kind: str, name: str) -> bool:
    """Whether the catalogue seen from the working folder has it, by name or path."""
    try:
        of_catalogue(kind, name)
    except UnknownReferenceError:
        return False
    return True


def same_sheet(first: AcceleratorSpec, second: AcceleratorSpec) -> bool:
    """Whether two accelerators have the same bandwidth and peaks; price, host and power may differ."""
    return (
        first.memory_bandwidth_bytes_per_s == second.memory_bandwidth_bytes_per_s
        and first.peak_flops == second.peak_flops
    )


def accelerators() -> list[str]:
    """Names of all accelerators of the catalogue seen from the working folder."""
    return Catalogue(Path.cwd()).names("Accelerator")


def named_as(accelerator: AcceleratorSpec, names: Iterable[str]) -> str | None:
    """The first of ``names`` with the data sheet of ``accelerator``; None where there is none."""
    return next((name for name in names if same_sheet(accelerator, of_catalogue("Accelerator", name))), None)


def called(hardware: str, names: Iterable[str]) -> str | None:
    """The accelerator that a profiler calls ``hardware``: equal names, ignoring case, punctuation and suffixes."""
    target = _plain(hardware)
    for name in sorted(names, key=len):
        plain = _plain(name)
        if target and (plain.startswith(target) or target.startswith(plain)):
            return name
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@functools.lru_cache(maxsize=64)
def _spec(root: Path, kind: str, name: str) -> Any:
    return Catalogue(root).get(kind, name).spec
