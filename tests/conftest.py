"""Property tests look at the same examples every time; at fresh ones with ``$HISEARCH_EXAMPLES`` set.

So a change is told apart from luck. Tests by ``tests.kernels.systems.examples`` take its value for their number too.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("hisearch", derandomize="HISEARCH_EXAMPLES" not in os.environ)
settings.load_profile("hisearch")
