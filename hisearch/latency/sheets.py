"""Which accelerator of the catalogue a sheet is of: documents that name one mean the sheet, whatever it is called."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hisearch.specs.documents.catalogue import Catalogue
from hisearch.specs.machines.hardware import AcceleratorSpec


def of_catalogue(kind: str, name: str) -> Any:
    """A document's spec in the catalogue seen from the working folder, read once.

    Raises:
        SpecError: there is none.
    """
    return _spec(Path.cwd(), kind, name)


def same_sheet(one: AcceleratorSpec, other: AcceleratorSpec) -> bool:
    """Whether two accelerators are the same but for price, host and power."""
    return one.memory_bandwidth_bytes_per_s == other.memory_bandwidth_bytes_per_s and one.peak_flops == other.peak_flops


def accelerators() -> list[str]:
    """Names of all accelerators of the catalogue seen from the working folder."""
    return Catalogue(Path.cwd()).names("Accelerator")


def named_as(accelerator: AcceleratorSpec, names: Iterable[str]) -> str | None:
    """The first of ``names`` whose sheet is that of ``accelerator``; None where none is."""
    return next((name for name in names if same_sheet(accelerator, of_catalogue("Accelerator", name))), None)


def called(hardware: str, names: Iterable[str]) -> str | None:
    """The accelerator that a profiler calls ``hardware``: the same name but for case, signs and what follows."""
    wanted = _plain(hardware)
    for name in sorted(names, key=len):
        plain = _plain(name)
        if wanted and (plain.startswith(wanted) or wanted.startswith(plain)):
            return name
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@functools.lru_cache(maxsize=64)
def _spec(root: Path, kind: str, name: str) -> Any:
    return Catalogue(root).get(kind, name).spec
