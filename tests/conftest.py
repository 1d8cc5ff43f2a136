"""Property tests look at the same examples every time; at fresh ones with ``$HISEARCH_EXAMPLES`` set.

So a change is told from luck. Tests by ``tests.kernels.systems.examples`` take its value for their number too. They
look at a tenth of their examples, at half with ``$HISEARCH_FULL`` set, at all with it set to ``all``.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import is_hypothesis_test, settings

settings.register_profile("hisearch", derandomize="HISEARCH_EXAMPLES" not in os.environ)
settings.load_profile("hisearch")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark property tests, of which ``make test-slow`` runs more examples."""
    for item in items:
        if is_hypothesis_test(getattr(item, "obj", None)):
            item.add_marker("property")
