"""Puts compiled kernels into a wheel: those in the folder that ``HISEARCH_PREBUILT`` names."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrebuiltKernels(BuildHookInterface):
    """Without ``HISEARCH_PREBUILT`` the wheel is pure Python, and its kernels are compiled where they are used."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folder, and say for which Python and machine the wheel is."""
        folder = os.environ.get("HISEARCH_PREBUILT")
        if not folder or version != "standard":
            return
        python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
        build_data["force_include"][folder] = "hisearch/prebuilt"
        build_data["pure_python"] = False
        # The kernels are loaded by numba, not by the system's linker, so that they depend on no C library.
        build_data["tag"] = f"{python}-{python}-manylinux_2_17_{platform.machine()}"
