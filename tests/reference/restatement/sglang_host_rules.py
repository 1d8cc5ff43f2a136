"""What HiCache's settings come to: thresholds of writes, limits and deadlines of prefetches."""

from __future__ import annotations

import math

from hisearch.base.policies import PREFETCHES
from hisearch.validate.hicache_settings import HostTierConfig, StorageConfig

#: Share of the host pool's size beyond the device's that prefetches may occupy together.
PREFETCH_SHARE = 0.8
#: Share of the host pool from release 0.5.20 on.
PREFETCH_SHARE_BY_HITS = 0.5


def copies(config: HostTierConfig, hits: int) -> bool:
    """Whether a node in HBM alone is copied by an insertion that is its ``hits``-th hit."""
    if config.write_policy == "write_through_selective":
        return hits >= 2
    return config.write_policy == "write_through"


def writes_at_eviction(config: HostTierConfig) -> bool:
    """Whether nodes are copied when they are evicted; hits are not counted then."""
    return config.write_policy == "write_back"


def prefetch_limit_tokens(config: HostTierConfig, device_tokens: int, page_size: int, by_hits: bool) -> int:
    """No prefetch is begun while those under way occupy this much, or by hits look for it."""
    host_tokens = config.host_tokens(device_tokens, page_size)
    if by_hits:
        return int(PREFETCH_SHARE_BY_HITS * host_tokens)
    return int(PREFETCH_SHARE * (host_tokens - device_tokens))


def longest_wait_s(config: StorageConfig, tokens: int) -> float | None:
    """How long a request waits for a fetch of ``tokens``; None: it does not wait."""
    if config.prefetch_policy == "timeout":
        parameters = PREFETCHES.given_values(config.parameters)
        per_ki_token_s = parameters["prefetch_timeout_s_per_ki_token"]
        return float(parameters["prefetch_timeout_base_s"] + tokens / 1024 * per_ki_token_s)
    return math.inf if config.prefetch_policy == "wait_complete" else None
