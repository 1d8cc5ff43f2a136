"""No waiting."""

from __future__ import annotations

from hisearch.base.policies import PrefetchPolicy

PREFETCH = PrefetchPolicy("A request starts with what has come from storage when its turn comes.", flag="best_effort")
