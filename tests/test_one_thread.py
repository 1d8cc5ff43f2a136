"""Linear algebra keeps to one thread, whoever imported NumPy first: studies take three times as long otherwise."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval
from textwrap import dedent


def test_fits_keep_to_one_thread_in_a_program_that_imported_numpy_first() -> None:
    program = """
        import os
        os.environ.update(OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="2", MKL_NUM_THREADS="2")
        import numpy
        from hisearch.one_thread import on_one_thread
        from threadpoolctl import threadpool_info

        def threads():
            return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

        print([threads(), on_one_thread(threads)(), threads()])
    """
    found = subprocess.run([sys.executable, "-c", dedent(program)], capture_output=True, text=True, check=True)
    before, within, after = literal_eval(found.stdout)
    assert within == {1}
    assert before == after
