"""Kernels are plain Python too: with the jit off, where a debugger can step through them, results are the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kernels.tiny_system import fingerprint


def test_plain_python_gives_the_compiled_bytes() -> None:
    done = subprocess.run(
        # 64-bit integers of the random stream wrap silently in compiled code, and with a warning in NumPy.
        [sys.executable, "-W", "ignore::RuntimeWarning", "-m", "tests.kernels.tiny_system"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1", fingerprint()]
