"""The environment of a benchmark: machine, versions, date."""

from __future__ import annotations

import datetime
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("hisearch", "numba", "numpy")


def machine() -> dict[str, Any]:
    """CPU model, cores, memory (None where unknown), versions, date and current load; for JSON."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load_average_1min": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def _cpu_model() -> str:
    """The CPU's name from Linux, else from ``platform``."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        lines = [line.partition(":") for line in facts.read_text().splitlines()]
        fields = {key.strip(): value.strip() for key, colon, value in lines if colon}
        family, model = fields.get("cpu family"), fields.get("model")
        name = fields.get("model name", "unknown")
        return f"{name} (family {family}, model {model})" if family and model else name
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):
        return None
