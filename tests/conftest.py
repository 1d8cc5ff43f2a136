"""Property tests look at the same examples every time; at fresh ones with ``$HISEARCH_EXAMPLES`` set.

So a change is told from luck. Tests by ``tests.kernels.systems.examples`` take its value for their number too. They
look at a twentieth of their examples, at half with ``$HISEARCH_FULL`` set, at all with it set to ``all``. Others look
at 20, at 100 with either set.

Tests that would begin after ``$HISEARCH_UNTIL``, seconds since 1970, are skipped: a slow machine answers in time too,
and says how many it left out.
"""

from __future__ import annotations

import gc
import os
import time

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

#: Of property tests that do not say how many.
EXAMPLES = 100 if {"HISEARCH_EXAMPLES", "HISEARCH_FULL"} & os.environ.keys() else 20
settings.register_profile(
    "hisearch",
    derandomize="HISEARCH_EXAMPLES" not in os.environ,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],  # it measures the machine
)
settings.load_profile("hisearch")

# What is imported stays: while tests are collected there is no garbage to speak of, and later it is not looked through.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark property tests, of which ``make test-slow`` runs more examples."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")


def pytest_collection_finish() -> None:
    """Collect garbage from now on, among what tests make."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin too late."""
    until = os.environ.get("HISEARCH_UNTIL")
    if until and time.time() > float(until):
        pytest.skip("not run: out of time")
