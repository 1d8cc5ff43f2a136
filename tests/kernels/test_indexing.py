"""Kernels' indices are taken as they are; other functions' count from the end where they are negative."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

import hisearch.base.indexing  # noqa: F401

#: A function of a module among the kernels, compiled for the integers that it is given.
KERNEL = """
import sys
import numpy as np
from hisearch.base.jit import OPTIONS
from numba import njit

code = {"__name__": "hisearch.kernels.made_up"}
exec("def at(table, index):\\n    return table[index]", code)
print(int(njit(**OPTIONS)(code["at"])(np.arange(8)[4:6], int(sys.argv[1]))))
"""


def test_elsewhere_negative_indices_count_from_the_end() -> None:
    last = numba.njit(lambda table, index: table[index])
    assert last(np.arange(5), -1) == 4
    assert last(np.arange(5), 3) == 3


@pytest.mark.parametrize(("index", "checked"), [(-1, False), (1, True), (2, True)])
def test_in_kernels_an_index_is_an_offset_or_ends_the_process(index: int, checked: bool, tmp_path: Path) -> None:
    environment = {"HISEARCH_CHECK_INDICES": str(int(checked)), "HISEARCH_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", KERNEL, str(index)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if checked and index > 1:
        assert ran.returncode in (-signal.SIGILL, -signal.SIGTRAP)
        assert "index 2 of 2 in 7kernels7made_up2at" in ran.stderr
    else:
        assert ran.stdout.strip() == str(4 + index), ran.stderr
