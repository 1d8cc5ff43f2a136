"""Linear algebra keeps to one thread, whoever imported NumPy first: studies take three times as long otherwise."""

from __future__ import annotations

import subprocess
import sys
from ast import literal_eval
from textwrap import dedent

#: What a program begins with that imported NumPy, with threads, before hisearch.
_BEGINS = """
import os
os.environ.update(OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="2", MKL_NUM_THREADS="2")
import numpy, threading
from hisearch.base.one_thread import on_one_thread
from threadpoolctl import threadpool_info

def threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

"""


def _printed(program: str) -> list[set[int]]:
    done = subprocess.run([sys.executable, "-c", _BEGINS + dedent(program)], capture_output=True, text=True, check=True)
    threads: list[set[int]] = literal_eval(done.stdout)
    return threads


def test_fits_keep_to_one_thread_in_a_program_that_imported_numpy_first() -> None:
    before, within, after = _printed("print([threads(), on_one_thread(threads)(), threads()])")
    assert within == {1}
    assert before == after


def test_fits_that_overlap_keep_to_one_thread_until_the_last_has_ended() -> None:
    program = """
        before, inside, leave = threads(), threading.Event(), threading.Event()
        first = threading.Thread(target=on_one_thread(lambda: (inside.set(), leave.wait(60))))

        @on_one_thread
        def second():
            leave.set()
            first.join()
            return threads()

        first.start()
        inside.wait(60)
        print([before, second(), threads()])
    """
    before, within, after = _printed(program)
    assert within == {1}
    assert before == after
