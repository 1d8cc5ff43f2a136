"""Tests run as users do: NumPy's algebra keeps to one thread, which several times the processor time depends on."""

from __future__ import annotations

import os
import sys


def test_hisearch_was_imported_before_numpy() -> None:
    assert os.environ["OPENBLAS_NUM_THREADS"]
    imported = list(sys.modules)
    assert "numpy" not in imported or imported.index("hisearch") < imported.index("numpy")
