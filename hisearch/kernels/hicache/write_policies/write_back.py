"""Copied when it leaves HBM."""

from __future__ import annotations

from hisearch.base.policies import WritePolicy

WRITE_POLICY = WritePolicy(
    "Copied when KV is evicted, which then waits for the copy; SGLang writes nothing to a storage tier then.",
    at_eviction=True,
    flag="write_back",
)
